"""Models: descriptions of networks with named heads.

`build` makes the torch module that learns, and `inference_model` makes the function that acts. Both use
the same parameter names, so the weights of the first can be loaded into the second.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import Part, param
from flowrl.core.errors import shortened_repr
from flowrl.core.facts import UnsoundError
from flowrl.core.import_paths import (
    STANDARD_LIBRARY_HINT,
    StandardLibraryError,
    import_object,
    refuse_standard_library,
)
from flowrl.core.written_config import written_params
from flowrl.nodes.devices import CPU, to_device, to_numpy
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.features import Layout, feature_leaves
from flowrl.nodes.models.heads import NO_HEADS, Heads, ImplicitHead, check_heads
from flowrl.nodes.models.layers import Initialisation, Layer
from flowrl.nodes.models.numpy_model import (
    MEMORY,
    NumpyModel,
    acting_fractions,
    is_acting_parameter,
)
from flowrl.nodes.models.saved_weights import Shape, load_parameters
from flowrl.nodes.observations import ObsColumns

if TYPE_CHECKING:
    from torch.nn import Module

# Modules draw initial weights from torch's global generator, so only one is built at a time.
_BUILD_LOCK = threading.Lock()


class InferenceModel(Protocol):
    """Maps observations (B, …) to the wanted heads (B, …), in order to act.

    A recurrent model also takes its memory (B, M), and returns that after the step.
    """

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Use these weights from now on."""

    def __call__(self, obs: Array, memory: Array | None = None) -> dict[str, Array]:
        """Return the heads by name."""


class Model(Part):
    """The description of a network. A model of your own defines `network`; its module also acts.

    If the module defines `observe(obs)`, each train iteration ends by calling it with the
    observations that were learned from.
    """

    kind = "model"

    def for_obs(self, obs: ObsColumns) -> Model:
        """The model for these observations: this one, unless its type leaves the choice open."""
        return self

    def check_obs(self, obs: ObsColumns) -> None:
        """Raise `UnsoundError` unless the model can take these observations."""

    def ignored_settings(self, obs: ObsColumns) -> Mapping[str, str]:
        """The settings that have no effect for these observations, each with the reason."""
        return {}

    def network(self, obs: ObsColumns, heads: Heads) -> Module:
        """Make a module from observations (B, …) to a dict of heads (B, …)."""
        raise NotImplementedError(f"{type(self).__name__} does not define network")

    def build(self, obs: ObsColumns, heads: Heads, seed: int, copies: int | None = None) -> Module:
        """Make the module, with initial weights drawn from `seed` alone; with `copies`, several as one."""
        with _BUILD_LOCK, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if copies is None:
                return self.network(obs, heads)
            from flowrl.nodes.models.torch_modules import Copies

            return Copies([self.network(obs, heads) for _ in range(copies)])

    def inference_model(
        self,
        obs: ObsColumns,
        heads: Heads,
        wanted: Collection[str],
        rng: np.random.Generator | None = None,
        device: str = CPU,
    ) -> InferenceModel:
        """Make the function that acts with the wanted heads; it needs weights before it acts.

        Noisy layers draw their noise from `rng`; without it they act without noise.
        """
        # With all heads, as `is_acting_parameter` has all parameters sent.
        return TorchInference(self.build(obs, heads, seed=0), heads, wanted, rng, device)

    def parameter_shapes(self, obs: ObsColumns, heads: Heads) -> Mapping[str, Shape]:
        """The shapes of its weights by name, as far as they are known without torch; empty: they are not."""
        return {}

    def acting_settings(self) -> dict[str, Any]:
        """What its weights, and what it does with them, depend on, as plain data: its type and its parameters."""
        return {"type": type(self).__name__.lower(), **written_params(self.config)}

    def memory_columns(self) -> Schema:
        """The memory of a recurrent model, for one env."""
        return {}

    def keeps_batch_statistics(self, obs: ObsColumns) -> bool:
        """Whether a layer normalises by statistics of batches."""
        return False

    def acts_in_torch(self, obs: ObsColumns, heads: Heads) -> bool:
        """Whether the function that acts needs torch."""
        return True

    def is_acting_parameter(self, wanted: Sequence[str], name: str) -> bool:
        """Whether the parameter `name` is needed to act with the wanted heads."""
        return True


class TorchInference:
    """Acts with the torch module that learns."""

    def __init__(
        self,
        module: Module,
        heads: Heads,
        wanted: Collection[str],
        rng: np.random.Generator | None = None,
        device: str = CPU,
    ) -> None:
        self.module, self.device = module.eval().to(device), device
        self.wanted, self.rng = tuple(wanted), rng
        self._unchecked: Heads = {name: heads[name] for name in wanted}
        self.arguments: dict[str, Any] = {}
        implicit = [h for n in wanted if isinstance(h := heads[n], ImplicitHead)]
        if any(not head.shares for head in implicit):
            self.arguments["tau"] = to_device(acting_fractions(), device).unsqueeze(0)

    def load(self, arrays: Mapping[str, Array]) -> None:
        load_parameters(self.module, arrays)

    def __call__(self, obs: Array, memory: Array | None = None) -> dict[str, Array]:
        names, arguments = self.wanted, dict(self.arguments)
        if memory is not None:
            begins = torch.zeros((len(memory), 1), dtype=torch.bool, device=self.device)
            arguments |= {"memory": to_device(memory, self.device), "begins": begins}
            names = (*names, MEMORY)
        if self.rng is not None:
            self._draw_noise(self.rng)
        with torch.inference_mode():
            heads = self.module(self._tensors(obs), **arguments)
        if self._unchecked:
            check_heads(heads, self._unchecked, len(obs))
            self._unchecked = NO_HEADS
        return {name: to_numpy(heads[name]) for name in names}

    def _tensors(self, obs: Array) -> Any:
        if obs.dtype.names is None:
            return to_device(obs, self.device)
        leaves = {leaf: np.ascontiguousarray(obs[leaf]) for leaf in obs.dtype.names}
        return {leaf: to_device(array, self.device) for leaf, array in leaves.items()}

    def _draw_noise(self, rng: np.random.Generator) -> None:
        from flowrl.nodes.models.torch_layers import draw_noise, has_noise

        if has_noise(self.module):
            draw_noise(self.module, torch.Generator().manual_seed(int(rng.integers(2**62))))


class LayeredModel(Model):
    """A model of an encoder, a trunk of layers, and heads. A subclass names the layers."""

    class Config(BaseConfig):
        init: Initialisation = param(
            "uniform",
            "initial weights: uniform within 1/sqrt(inputs), or orthogonal with zero biases",
        )
        noisy: bool = param(
            False, "dense layers and heads have learned noise in their weights, which explores"
        )
        scale_bytes: bool = param(True, "uint8 observations are divided by 255")
        normalise_obs: bool = param(
            False, "normalise real-valued observations by the moments of the learner's data"
        )

    def trunk(self) -> Sequence[Layer]:
        """The layers between the features of the observations and the heads."""
        raise NotImplementedError(f"{type(self).__name__} does not define trunk")

    def image_layers(self, obs: ObsColumns) -> Sequence[Layer]:
        """The layers that each image goes through; empty: images are flattened like other observations."""
        return ()

    def ignored_settings(self, obs: ObsColumns) -> Mapping[str, str]:
        """The treatment of bytes where there are none."""
        if any(column.dtype == "uint8" for column in feature_leaves(obs).values()):
            return {}
        return {"scale_bytes": "no observation is made of bytes (uint8)"}

    @property
    def shares_trunk(self) -> bool:
        """Whether all heads share one trunk; if not, each has its own."""
        return bool(getattr(self.config, "shared", True))

    def network(self, obs: ObsColumns, heads: Heads) -> Module:
        from flowrl.nodes.models.torch_modules import LayeredModule

        c = self.config
        return LayeredModule(
            self._encoder(obs), self.trunk(), heads, self.shares_trunk, c.noisy, c.init
        )

    def _encoder(self, obs: ObsColumns) -> Any:
        from flowrl.nodes.models.torch_modules import TorchFeatures, TorchImages

        self.check_obs(obs)
        c, layers = self.config, self.image_layers(obs)
        if layers:
            layout: Layout = getattr(c, "layout", "auto")
            return TorchImages(obs, layers, layout, c.init, c.scale_bytes, c.normalise_obs)
        return TorchFeatures(feature_leaves(obs), c.scale_bytes, c.normalise_obs)

    def inference_model(
        self,
        obs: ObsColumns,
        heads: Heads,
        wanted: Collection[str],
        rng: np.random.Generator | None = None,
        device: str = CPU,
    ) -> InferenceModel:
        if device != CPU or self.acts_in_torch(obs, heads):
            module = self.build(obs, {name: heads[name] for name in wanted}, seed=0)
            return TorchInference(module, heads, wanted, rng, device)
        return self._numpy_model(obs, {name: heads[name] for name in wanted}, rng)

    def parameter_shapes(self, obs: ObsColumns, heads: Heads) -> Mapping[str, Shape]:
        return {} if self.acts_in_torch(obs, heads) else self._numpy_model(obs, heads, None).shapes

    def _numpy_model(
        self, obs: ObsColumns, heads: Heads, rng: np.random.Generator | None
    ) -> NumpyModel:
        c = self.config
        return NumpyModel(
            obs,
            self.trunk(),
            heads,
            shared=self.shares_trunk,
            noisy=c.noisy,
            scale_bytes=c.scale_bytes,
            normalise=c.normalise_obs,
            rng=rng,
        )

    def acting_settings(self) -> dict[str, Any]:
        found = super().acting_settings()
        return {name: value for name, value in found.items() if name != "init"}

    def memory_columns(self) -> Schema:
        size = sum(layer.memory_size for layer in self.trunk())
        return {MEMORY: Column("float32", (size,))} if size else {}

    def keeps_batch_statistics(self, obs: ObsColumns) -> bool:
        layers = (*self.trunk(), *self.image_layers(obs))
        return any(layer.keeps_batch_statistics for layer in layers)

    def acts_in_torch(self, obs: ObsColumns, heads: Heads) -> bool:
        """True where a layer has no step in numpy."""
        if self.image_layers(obs):
            return True
        shape: tuple[int, ...] = (1,)
        for layer in self.trunk():
            if layer.numpy_layer(shape) is None:
                return True
            shape = layer.output_shape(shape)
        return False

    def is_acting_parameter(self, wanted: Sequence[str], name: str) -> bool:
        return is_acting_parameter(wanted, name)


class ModuleModel(Model):
    """A torch module class, which is called with the observation columns, the heads and `args`.

    For nested observations it is called with `NestedColumns`, and `forward` gets a dictionary of tensors
    by leaf.
    """

    class Config(BaseConfig):
        path: str = param(
            ...,
            "import path of the module's class, `package.module:Class`",
            pattern=r"^[\w.]+:\w+$",
        )
        args: dict[str, Any] = param({}, "further keyword arguments of the class")

    def network(self, obs: ObsColumns, heads: Heads) -> Module:
        path = self.config.path
        cls = import_object(path)
        if not (isinstance(cls, type) and issubclass(cls, torch.nn.Module)):
            raise UnsoundError(
                f"'{path}' is not a module class", "name a subclass of torch.nn.Module"
            )
        try:
            inspect.signature(cls).bind(obs, heads, **self.config.args)
        except TypeError as error:
            what = (
                f"'{path}' does not take the column of observations, the heads and `args`: {error}"
            )
            raise UnsoundError(what, "see docs/nodes.md, 'A model'", "model") from None
        module: Module = cls(obs, heads, **self.config.args)
        return module

    def check_obs(self, obs: ObsColumns) -> None:
        """Refuse paths into the standard library. The class itself is imported when the module is made."""
        try:
            refuse_standard_library(self.config.path)
        except StandardLibraryError as refused:
            raise UnsoundError(refused.what, STANDARD_LIBRARY_HINT, "policy.model") from refused


def checked_model(model: Any, param: str) -> Model:
    """A model; anything else that was given by hand for the parameter is an error."""
    if not isinstance(model, Model):
        raise TypeError(
            f"{param} is {shortened_repr(model)}; expected a model, such as Mlp(hidden=[64, 64]), "
            "or ModuleModel(path='package.module:Class') for a module of torch"
        )
    return model
