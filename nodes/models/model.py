"""The interface of a model: the description of a network with named heads.

`build` makes the torch module that learns, and `inference_model` makes the function that acts. Both use
the same parameter names, so the weights of the first can be loaded into the second.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from flowrl.core.batch import Array, Batch, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import Part, PartSpec, param
from flowrl.core.errors import shortened_repr
from flowrl.core.import_paths import (
    STANDARD_LIBRARY_HINT,
    StandardLibraryError,
    import_object,
    refuse_standard_library,
)
from flowrl.core.node import UnsoundError
from flowrl.nodes.lazy import tensor, torch
from flowrl.nodes.observations import ObsColumns, select_rows

if TYPE_CHECKING:
    from torch.nn import Module


@dataclass(frozen=True, slots=True)
class LinearHead:
    """`n` outputs, affine in the features; `scale` is the gain of the initial weights."""

    n: int
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class DuelingHead:
    """Q(s, a) = V(s) + A(s, a) - mean_a A(s, a) (Wang et al. 2016, equation 9)."""

    n: int


@dataclass(frozen=True, slots=True)
class FreeHead:
    """`n` learned numbers, initially `value`, that do not depend on the observation."""

    n: int
    value: float = 0.0


Head = LinearHead | DuelingHead | FreeHead
Shape = tuple[int, ...]
Heads = Mapping[str, Head]

# Modules draw initial weights from torch's global generator, so only one is built at a time.
_BUILD_LOCK = threading.Lock()


def check_names(owner: str, names: Collection[str], expected: Collection[str]) -> None:
    """Raise unless a saved state has exactly the expected names."""
    differences = {
        "lacks": set(expected) - set(names),
        "has unknown": set(names) - set(expected),
    }
    wrong = [f"{verb} {sorted(found)}" for verb, found in differences.items() if found]
    if wrong:
        raise ValueError(f"{owner}: the state {' and '.join(wrong)}; is it that of another model?")


def check_shapes(owner: str, arrays: Mapping[str, Array], expected: Mapping[str, Shape]) -> None:
    """Raise unless weights have exactly the expected names and shapes.

    Without this check, weights of a wider or deeper network might load, and act arbitrarily.
    """
    check_names(owner, arrays, expected)
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise ValueError(
                f"{owner}: '{name}' has the shape {arrays[name].shape}, and this model's has {shape}; "
                "is it that of another model?"
            )


def check_no_nan(weights: Mapping[str, Array]) -> None:
    """Raise if learning has diverged: NaN weights never recover, although the policy still acts."""
    diverged = [name for name, a in weights.items() if a.dtype.kind == "f" and np.isnan(a).any()]
    if diverged:
        raise ValueError(
            f"learning has diverged: {len(diverged)} of {len(weights)} weights hold nan (the first: "
            f"'{diverged[0]}'); take a lower `lr`, or check for rewards or observations that are too large"
        )


def load_parameters(module: Module, arrays: Mapping[str, Array]) -> None:
    """Copy arrays into a module's parameters and buffers of the same names."""
    targets = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    check_shapes(type(module).__name__, arrays, {n: tuple(t.shape) for n, t in targets.items()})
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(tensor(arrays[name]))


def observation_tensors(batch: Batch, name: str, rows: Any = slice(None)) -> Any:
    """Rows of a batch's observations for a module: a tensor, or tensors by leaf."""
    selected = select_rows(batch, name, rows)
    if isinstance(selected, Mapping):
        return {leaf: tensor(array) for leaf, array in selected.items()}
    return tensor(selected)


class InferenceModel(Protocol):
    """Maps observations (B, …) to the wanted heads (B, n), in order to act.

    A recurrent model also takes its memory columns, and returns those of the next step.
    """

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Use these weights from now on."""

    def __call__(self, obs: Array, *memory: Any) -> dict[str, Array]:
        """Return the heads by name."""


class Model(Part):
    """The description of a network. A model of your own defines `network`; its module also acts.

    If the module defines `observe(obs)`, each train iteration ends by calling it with the
    observations that were learned from.
    """

    kind = "model"

    def network(self, obs: ObsColumns, heads: Heads) -> Module:
        """Make a module from observations (B, …) to a dict of heads (B, n)."""
        raise NotImplementedError(f"{type(self).__name__} does not define network")

    def build(self, obs: ObsColumns, heads: Heads, seed: int) -> Module:
        """Make the module, with initial weights drawn from `seed` alone."""
        with _BUILD_LOCK, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.network(obs, heads)

    def inference_model(
        self, obs: ObsColumns, heads: Heads, wanted: Collection[str]
    ) -> InferenceModel:
        """Make the function that acts with the wanted heads; it needs weights before it acts."""
        return TorchInference(self.build(obs, heads, seed=0), wanted)

    def check_obs(self, obs: ObsColumns) -> None:
        """Raise `UnsoundError` if the model cannot take these observations."""

    def memory_columns(self) -> Schema:
        """The memory columns of a recurrent model, which must be built and called like `gru`."""
        return {}

    def imported_modules(self, learn: bool) -> tuple[str, ...]:
        """The modules that learning imports; if `learn` is false, those that acting imports."""
        return ("torch",)

    def is_acting_parameter(self, wanted: Collection[str], name: str) -> bool:
        """Whether the parameter `name` is needed to act with the wanted heads."""
        return True


class TorchInference:
    """Acts with the torch module that learns."""

    def __init__(self, module: Module, wanted: Collection[str]) -> None:
        self.module, self.wanted = module.eval(), tuple(wanted)

    def load(self, arrays: Mapping[str, Array]) -> None:
        load_parameters(self.module, arrays)

    def __call__(self, obs: Array) -> dict[str, Array]:
        with torch.inference_mode():
            heads = self.module(_tensors(obs))
        return {name: heads[name].numpy() for name in self.wanted}


def _tensors(obs: Array) -> Any:
    if obs.dtype.names is None:
        return tensor(obs)
    return {leaf: tensor(np.ascontiguousarray(obs[leaf])) for leaf in obs.dtype.names}


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
        module: Module = cls(obs, heads, **self.config.args)
        return module

    def check_obs(self, obs: ObsColumns) -> None:
        """Refuse paths into the standard library. The class itself is imported when the module is made."""
        try:
            refuse_standard_library(self.config.path)
        except StandardLibraryError as refused:
            raise UnsoundError(refused.what, STANDARD_LIBRARY_HINT, "policy.model") from refused


def resolve_model(model: PartSpec | Model | None, default: Model) -> Model:
    """Make the model from a graph's spec; return a model made by hand as it is."""
    if model is None:
        return default
    if isinstance(model, PartSpec):
        made: Model = model.make()
        return made
    if not isinstance(model, Model):
        raise TypeError(
            f"model is {shortened_repr(model)}; expected a model, such as Mlp(hidden=[64, 64]), "
            "or ModuleModel(path='package.module:Class') for a module of torch"
        )
    return model
