"""The multi-layer perceptron, which learns in torch and acts in numpy, so collectors need no torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.nodes.models.features import (
    FEATURE_LIMIT,
    MOMENTS,
    feature_encoder,
    feature_leaves,
    feature_width,
    measured_features,
)
from flowrl.nodes.models.model import (
    DuelingHead,
    FreeHead,
    Head,
    Heads,
    Model,
    Shape,
    check_shapes,
)
from flowrl.nodes.moments import Moments
from flowrl.nodes.observations import ObsColumns

if TYPE_CHECKING:
    from torch.nn import Module

Activation = Literal["relu", "tanh", "elu", "silu", "sigmoid"]

Affine = tuple[Array, Array]  # weight and bias

ONE, ZERO = np.float32(1), np.float32(0)


def _sigmoid(x: Array) -> Array:
    return ONE / (ONE + np.exp(-x))


# Each function may overwrite its argument.
ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, ZERO, out=x),
    "tanh": lambda x: np.tanh(x, out=x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, ZERO))),
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
}


class Mlp(Model):
    """Dense layers, with one trunk for all heads or one for each head."""

    class Config(BaseConfig):
        hidden: list[int] = param([128, 128, 64], "width of each hidden layer")
        activation: Activation = param("relu", "activation function after each hidden layer")
        init: Literal["uniform", "orthogonal"] = param(
            "uniform",
            "initial weights: uniform within 1/sqrt(inputs), or orthogonal with zero biases",
        )
        shared: bool = param(True, "all heads share one trunk; if false, each has its own")
        scale_bytes: bool = param(True, "uint8 observations are divided by 255")
        normalise_obs: bool = param(
            False, "normalise real-valued observations by the moments of the learner's data"
        )

    def network(self, obs: ObsColumns, heads: Heads) -> Module:
        from flowrl.nodes.models.torch_modules import TorchFeatures, TorchMlp

        c = self.config
        return TorchMlp(
            c, TorchFeatures(feature_leaves(obs), c.scale_bytes, c.normalise_obs), heads
        )

    def inference_model(
        self, obs: ObsColumns, heads: Heads, wanted: Collection[str]
    ) -> MlpInference:
        return MlpInference(self.config, obs, {name: heads[name] for name in wanted})

    def imported_modules(self, learn: bool) -> tuple[str, ...]:
        return ("torch",) if learn else ()

    def is_acting_parameter(self, wanted: Collection[str], name: str) -> bool:
        return is_acting_parameter(wanted, name)


def is_acting_parameter(wanted: Collection[str], name: str) -> bool:
    """Whether the parameter `name` belongs to a wanted head, or to the trunk or the features below it."""
    owner = name.split(".")[0]
    return owner in wanted or owner in ("trunk", "features")


def trunk_of(head: str, config: Mlp.Config) -> str:
    return "trunk" if config.shared else head


class MlpInference:
    """Acts in numpy, whose overhead for a few rows of a small network is a fraction of torch's."""

    def __init__(self, config: Mlp.Config, obs: ObsColumns, heads: Heads) -> None:
        self.config, self.heads = config, heads
        self.activate = ACTIVATIONS[config.activation]
        self.encode = feature_encoder(obs, config.scale_bytes)
        self.measured = measured_features(feature_leaves(obs)) if config.normalise_obs else None
        self.shapes = _shapes(config, sum(map(feature_width, feature_leaves(obs).values())), heads)
        self.normalisation: Affine | None = None  # the shift and scale of features
        self.trunks: dict[str, list[Affine]] = {}
        self.out: dict[str, tuple[str, Affine]] = {}  # each head's trunk and last layer
        self.free: dict[str, Array] = {}

    def load(self, arrays: Mapping[str, Array]) -> None:
        needed = {
            name: array for name, array in arrays.items() if is_acting_parameter(self.heads, name)
        }
        check_shapes("mlp", needed, self.shapes)
        if self.measured is not None:
            self.normalisation = _normalisation(arrays, self.measured)
        for name, head in self.heads.items():
            if isinstance(head, FreeHead):
                self.free[name] = arrays[f"{name}.free"]
                continue
            trunk = trunk_of(name, self.config)
            depth = len(self.config.hidden)
            self.trunks[trunk] = [_affine(arrays, f"{trunk}.{i}") for i in range(depth)]
            self.out[name] = trunk, _head_layer(arrays, name, head)

    def __call__(self, obs: Array) -> dict[str, Array]:
        if not self.out:
            raise RuntimeError("the model has no weights; load those of a learner first")
        x = self.encode(obs)
        if self.normalisation is not None:
            shift, scale = self.normalisation
            x = np.clip((x - shift) * scale, -FEATURE_LIMIT, FEATURE_LIMIT)
        outputs = {trunk: self._dense(x, layers) for trunk, layers in self.trunks.items()}
        heads = {name: outputs[trunk] @ w + b for name, (trunk, (w, b)) in self.out.items()}
        for name, free in self.free.items():
            heads[name] = np.broadcast_to(free, (len(obs), len(free)))
        return heads

    def _dense(self, x: Array, layers: list[Affine]) -> Array:
        for weight, bias in layers:
            x = x @ weight
            x += bias
            x = self.activate(x)
        return x


def _shapes(config: Mlp.Config, features: int, heads: Heads) -> dict[str, Shape]:
    """The shapes of the parameters that acting needs, by the names of the torch module."""
    shapes: dict[str, Shape] = {
        f"{name}.free": (head.n,) for name, head in heads.items() if isinstance(head, FreeHead)
    }
    for layer, inputs, outputs in _layers(config, features, heads):
        shapes[f"{layer}.weight"], shapes[f"{layer}.bias"] = (outputs, inputs), (outputs,)
    if config.normalise_obs:
        sizes = zip(MOMENTS, (1, features, features), strict=True)
        shapes.update((f"features.moments.{name}", (size,)) for name, size in sizes)
    return shapes


def _layers(config: Mlp.Config, features: int, heads: Heads) -> Iterator[tuple[str, int, int]]:
    """Yield each layer's name, inputs and outputs; the layers of a shared trunk repeat for each head."""
    widths = [features, *config.hidden]
    for name, head in heads.items():
        if isinstance(head, FreeHead):
            continue
        for i, (inputs, outputs) in enumerate(pairwise(widths)):
            yield f"{trunk_of(name, config)}.{i}", inputs, outputs
        parts = (
            {"value": 1, "advantage": head.n} if isinstance(head, DuelingHead) else {"out": head.n}
        )
        for part, outputs in parts.items():
            yield f"{name}.{part}", widths[-1], outputs


def _normalisation(arrays: Mapping[str, Array], measured_features: Array) -> Affine:
    """The number subtracted from each feature, and the factor it is then multiplied by."""
    moments = Moments()
    moments.load_state_dict({name: arrays[f"features.moments.{name}"] for name in MOMENTS})
    shift, scale = (
        np.where(measured_features, moments.mean, 0.0),
        np.where(measured_features, 1 / moments.std, 1.0),
    )
    return shift.astype(np.float32), scale.astype(np.float32)


def _affine(arrays: Mapping[str, Array], name: str) -> Affine:
    """Contiguous copies of the weights (inputs, outputs) and biases."""
    return np.ascontiguousarray(arrays[f"{name}.weight"].T), arrays[f"{name}.bias"].copy()


def _head_layer(arrays: Mapping[str, Array], name: str, head: Head) -> Affine:
    """A head's last layer; the two layers of a dueling head are merged, because their sum is affine, too."""
    if not isinstance(head, DuelingHead):
        return _affine(arrays, f"{name}.out")
    value, value_bias = _affine(arrays, f"{name}.value")
    advantage, bias = _affine(arrays, f"{name}.advantage")
    return value + advantage - advantage.mean(1, keepdims=True), value_bias + bias - bias.mean()
