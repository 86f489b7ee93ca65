"""Networks that act in numpy, whose overhead for a few rows of a small network is a fraction of torch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.models.features import (
    FEATURE_LIMIT,
    MOMENTS,
    feature_encoder,
    feature_leaves,
    feature_width,
    measured_features,
)
from flowrl.nodes.models.heads import (
    DuelingHead,
    FreeHead,
    Head,
    Heads,
    ImplicitHead,
    ScalarHead,
    SharesHead,
    midpoints,
    output_layers,
)
from flowrl.nodes.models.layers import Layer, NumpyDense, RecurrentNumpyLayer, Shape
from flowrl.nodes.models.saved_weights import check_shapes
from flowrl.nodes.moments import Moments
from flowrl.nodes.observations import ObsColumns

MEMORY = "memory"


class NumpyModel:
    """An encoder of flat features, a trunk of layers, and heads. Parameters have the names of the torch module."""

    def __init__(
        self,
        obs: ObsColumns,
        layers: Sequence[Layer],
        heads: Heads,
        *,
        shared: bool,
        noisy: bool,
        scale_bytes: bool,
        normalise: bool,
        rng: np.random.Generator | None = None,
    ) -> None:
        leaves = feature_leaves(obs)
        features = sum(map(feature_width, leaves.values()))
        self.rng = rng
        self.encode = feature_encoder(obs, scale_bytes)
        self.moments = NumpyNormaliser(measured_features(leaves)) if normalise else None
        self.memory_sizes = [layer.memory_size for layer in layers] if shared else []
        self.parts: dict[str, Any] = {}  # all layers by the names of their parameters
        width: Shape = (features,)
        self.trunk, shared_width = self._layers("trunk", layers if shared else (), width)
        self.heads: dict[str, tuple[list[Any], NumpyHead]] = {}
        for name, head in heads.items():
            below: list[Any] = []
            outputs = shared_width
            if not shared and not isinstance(head, FreeHead):
                below, outputs = self._layers(name, layers, width)
            self.parts[name] = made = NumpyHead(head, outputs[0], noisy)
            self.heads[name] = below, made
        self.shapes = {
            f"{p}.{n}": s for p, part in self.parts.items() for n, s in part.shapes.items()
        }
        if normalise:
            sizes = zip(MOMENTS, (1, features, features), strict=True)
            self.shapes.update((f"features.moments.{name}", (size,)) for name, size in sizes)
        self.is_loaded = False

    def _layers(self, owner: str, layers: Sequence[Layer], width: Shape) -> tuple[list[Any], Shape]:
        made: list[Any] = []
        for i, layer in enumerate(layers):
            made.append(layer.numpy_layer(width))
            self.parts[f"{owner}.{i}"] = made[-1]
            width = layer.output_shape(width)
        return made, width

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Use these weights from now on; those that acting does not need are ignored."""
        wanted = tuple(self.heads)
        needed = {n: a for n, a in arrays.items() if is_acting_parameter(wanted, n)}
        check_shapes("the model", needed, self.shapes)
        for name, part in self.parts.items():
            part.load({n: arrays[f"{name}.{n}"] for n in part.shapes})
        if self.moments is not None:
            self.moments.load({n: arrays[f"features.moments.{n}"] for n in MOMENTS})
        self.is_loaded = True

    def __call__(self, obs: Array, memory: Array | None = None) -> dict[str, Array]:
        """Map observations (B, …) to heads (B, …); with memory (B, M), also to the memory after the step."""
        if not self.is_loaded:
            raise RuntimeError("the model has no weights; load those of a learner first")
        x, rng = self.encode(obs), self.rng
        if self.moments is not None:
            x = self.moments(x)
        if memory is None:
            for layer in self.trunk:
                x = layer(x, rng)
            after: dict[str, Array] = {}
        else:
            x, after = self._run_recurrent_trunk(x, memory)
        outputs: dict[str, Array] = {}
        for name, (below, head) in self.heads.items():
            y = x
            for layer in below:
                y = layer(y, rng)
            if isinstance(head.head, ImplicitHead) and head.head.shares:
                tau = midpoints(outputs[head.head.shares])
                outputs[name] = head.quantiles(y, rng, tau)
            else:
                outputs[name] = head(y, rng)
        return {**outputs, **after}

    def _run_recurrent_trunk(self, x: Array, memory: Array) -> tuple[Array, dict[str, Array]]:
        after, first = [], 0
        for layer, size in zip(self.trunk, self.memory_sizes, strict=True):
            if not size:
                x = layer(x, self.rng)
                continue
            recurrent = cast(RecurrentNumpyLayer, layer)
            x, new_memory = recurrent.step(x, memory[:, first : first + size])
            first += size
            after.append(new_memory)
        return x, {MEMORY: after[0] if len(after) == 1 else np.concatenate(after, 1)}


def is_acting_parameter(wanted: Sequence[str], name: str) -> bool:
    """Whether the parameter `name` belongs to a wanted head, or to the trunk or the features below it."""
    owner = name.split(".")[0]
    return owner in wanted or owner in ("trunk", "features")


class NumpyNormaliser:
    """Normalises features by the running moments that came with the weights."""

    def __init__(self, measured: Array) -> None:
        self.measured = measured

    def load(self, arrays: Mapping[str, Array]) -> None:
        moments = Moments()
        moments.load_state_dict(arrays)
        self.shift = np.where(self.measured, moments.mean, 0.0).astype(np.float32)
        self.scale = np.where(self.measured, 1 / moments.std, 1.0).astype(np.float32)

    def __call__(self, x: Array) -> Array:
        return np.clip((x - self.shift) * self.scale, -FEATURE_LIMIT, FEATURE_LIMIT)


class NumpyHead:
    """The layers of a head. The two layers of a dueling head are merged into one, because their sum is affine, too."""

    def __init__(self, head: Head, width: int, noisy: bool) -> None:
        self.head, self.noisy = head, noisy
        self.dense = {
            name: NumpyDense(width, outputs, "none", noisy=noisy)
            for name, (outputs, _) in output_layers(head).items()
        }
        if isinstance(head, ImplicitHead):
            self.dense["embedding"] = NumpyDense(head.cosines, width, "relu", noisy=noisy)
        self.shapes = {
            f"{p}.{n}": s for p, layer in self.dense.items() for n, s in layer.shapes.items()
        }
        if isinstance(head, FreeHead):
            self.shapes = {"free": (head.n,)}
        self.compute: Callable[[Array, np.random.Generator | None], Array] = self._function()

    def load(self, arrays: Mapping[str, Array]) -> None:
        if isinstance(self.head, FreeHead):
            self.free = arrays["free"]
            return
        for name, layer in self.dense.items():
            layer.load({n: arrays[f"{name}.{n}"] for n in layer.shapes})
        if "value" in self.dense and not self.noisy:
            self.merged = self._merged()

    def __call__(self, x: Array, rng: np.random.Generator | None) -> Array:
        """Features (B, F) to outputs; an implicit head gives its quantiles at `ACTING_FRACTIONS` midpoints."""
        return self.compute(x, rng)

    def _function(self) -> Callable[[Array, np.random.Generator | None], Array]:
        head = self.head
        if isinstance(head, FreeHead):
            return lambda x, rng: np.broadcast_to(self.free, (len(x), len(self.free)))
        if isinstance(head, ImplicitHead):
            return lambda x, rng: self.quantiles(x, rng, acting_fractions()[None])
        if isinstance(head, DuelingHead):
            merge = self._noisy_dueling if self.noisy else self._dueling
            if head.each is None:
                return merge
            return lambda x, rng: merge(x, rng).reshape(len(x), head.n, -1)
        out = self.dense["out"]
        if isinstance(head, SharesHead):
            return lambda x, rng: softmax(out(x, rng))
        if isinstance(head, ScalarHead):
            return lambda x, rng: out(x, rng)[..., 0]
        if head.each is not None:
            return lambda x, rng: out(x, rng).reshape(len(x), head.n, -1)
        return out

    def _merged(self) -> tuple[Array, Array]:
        """The weights and biases of one layer that gives V + A - mean A."""
        value, advantage = self.dense["value"], self.dense["advantage"]
        each = len(value.bias)
        by_action = advantage.weight.reshape(len(advantage.weight), -1, each)
        bias = advantage.bias.reshape(-1, each)
        weight = value.weight[:, None] + by_action - by_action.mean(1, keepdims=True)
        return weight.reshape(len(weight), -1), (value.bias + bias - bias.mean(0)).reshape(-1)

    def _dueling(self, x: Array, rng: np.random.Generator | None) -> Array:
        weight, bias = self.merged
        merged: Array = x @ weight + bias
        return merged

    def _noisy_dueling(self, x: Array, rng: np.random.Generator | None) -> Array:
        value, advantage = self.dense["value"](x, rng), self.dense["advantage"](x, rng)
        by_action = advantage.reshape(*x.shape[:-1], -1, value.shape[-1])
        sums: Array = value[..., None, :] + by_action - by_action.mean(-2, keepdims=True)
        return sums.reshape(*x.shape[:-1], -1)

    def quantiles(self, x: Array, rng: np.random.Generator | None, tau: Array) -> Array:
        """The quantiles (B, K, n) of an implicit head at the fractions (B, K), or (1, K)."""
        embedded = self.dense["embedding"](cosines(tau, self.head.cosines), rng)  # type: ignore[union-attr]
        features = x[:, None] * embedded
        if "out" in self.dense:
            return self.dense["out"](features, rng)
        return self._noisy_dueling(features, rng) if self.noisy else self._dueling(features, rng)


ACTING_FRACTIONS = 32  # the fractions at which acting evaluates an implicit head


def acting_fractions() -> Array:
    """The midpoints of equal intervals of [0, 1], at which acting evaluates an implicit head."""
    return ((np.arange(ACTING_FRACTIONS) + 0.5) / ACTING_FRACTIONS).astype(np.float32)


def cosines(tau: Array, count: int) -> Array:
    """cos(pi i tau) for i = 0 … count - 1: (…, count)."""
    return np.cos(tau[..., None] * (np.arange(count, dtype=np.float32) * np.float32(np.pi)))


def softmax(logits: Array) -> Array:
    """exp(x) / sum exp(x), along the last axis."""
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    shares: Array = exp / exp.sum(-1, keepdims=True)
    return shares
