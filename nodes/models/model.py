"""What a model is: a described network, of which a policy asks named heads.

One description, two executions: `build` gives the torch module that learns, `infer` what acts. Both
know the parameters by the same names, so the weights of one are loaded into the other.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from flowrl.core.batch import Array, Batch, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import Part, PartSpec, param
from flowrl.nodes.lazy import tensor, torch
from flowrl.nodes.observations import ObsColumns, select_rows

if TYPE_CHECKING:
    from torch.nn import Module


@dataclass(frozen=True, slots=True)
class LinearHead:
    """A head: `n` numbers, affine in the features; `scale` is the gain of its first weights."""

    n: int
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class DuelingHead:
    """A head: Q(s, a) = V(s) + A(s, a) - mean_a A(s, a) (Wang et al. 2016, equation 9)."""

    n: int


@dataclass(frozen=True, slots=True)
class FreeHead:
    """A head: `n` learned numbers that do not depend on the observation, `value` at first."""

    n: int
    value: float = 0.0


Head = LinearHead | DuelingHead | FreeHead
Shape = tuple[int, ...]
Heads = Mapping[str, Head]

# Modules draw their first weights from torch's one global generator: one module at a time.
_BUILD_LOCK = threading.Lock()


def check_names(what: str, given: Collection[str], wanted: Collection[str]) -> None:
    """A saved state must hold what is loaded, no less and no more."""
    names = {"lacks": set(wanted) - set(given), "has unknown": set(given) - set(wanted)}
    wrong = [f"{verb} {sorted(found)}" for verb, found in names.items() if found]
    if wrong:
        raise ValueError(f"{what}: the state {' and '.join(wrong)}; was it of another model?")


def check_shapes(what: str, given: Mapping[str, Array], wanted: Mapping[str, Shape]) -> None:
    """The same of weights: those of a wider or deeper network would act, too, and as nobody has learned."""
    check_names(what, given, wanted)
    for name, shape in wanted.items():
        if given[name].shape != shape:
            raise ValueError(
                f"{what}: '{name}' has the shape {given[name].shape}, and this model's has {shape}; "
                "was it of another model?"
            )


def check_no_nan(weights: Mapping[str, Array]) -> None:
    """What is no number never becomes one again; a policy acts with it all the same: in one way, for ever."""
    lost = [name for name, a in weights.items() if a.dtype.kind == "f" and np.isnan(a).any()]
    if lost:
        raise ValueError(
            f"learning has diverged: {len(lost)} of {len(weights)} weights hold nan (the first: "
            f"'{lost[0]}'); take a lower `lr`, or look for rewards or observations that are too large"
        )


def load_parameters(module: Module, arrays: Mapping[str, Array]) -> None:
    """Copies arrays into the parameters and buffers of these names."""
    places = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    check_shapes(type(module).__name__, arrays, {n: tuple(p.shape) for n, p in places.items()})
    with torch.no_grad():
        for name, place in places.items():
            place.copy_(tensor(arrays[name]))


def observation_tensors(batch: Batch, name: str, rows: Any = slice(None)) -> Any:
    """Some rows of a batch's observations as a module takes them: a tensor, or tensors by leaf."""
    found = select_rows(batch, name, rows)
    if isinstance(found, Mapping):
        return {leaf: tensor(array) for leaf, array in found.items()}
    return tensor(found)


class InferenceModel(Protocol):
    """What acts: weights in, and the asked heads (B, n) of observations (B, …) out.

    One that remembers is given the columns of its memory, too, and gives those of the next step.
    """

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Use these weights from now on."""

    def __call__(self, obs: Array, *memory: Any) -> dict[str, Array]:
        """The heads, by name."""


class Model(Part):
    """The description of a network. A user's own defines `network`; that module acts, too.

    If the module defines `observe(obs)`, each train iteration ends with what it learned from.
    """

    kind = "model"

    def network(self, obs: ObsColumns, heads: Heads) -> Module:
        """A module of observations (B, …) to a dict of heads (B, n)."""
        raise NotImplementedError(f"{type(self).__name__} does not define network")

    def build(self, obs: ObsColumns, heads: Heads, seed: int) -> Module:
        """The module, its first weights drawn from `seed` alone."""
        with _BUILD_LOCK, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.network(obs, heads)

    def inference_model(
        self, obs: ObsColumns, heads: Heads, wanted: Collection[str]
    ) -> InferenceModel:
        """What acts with the wanted heads."""
        return TorchInference(
            self.build(obs, heads, 0), wanted
        )  # the seed: weights are loaded before it acts

    def check_obs(self, obs: ObsColumns) -> None:
        """Raises `Unsound` where it can make nothing of these observations."""

    def memory_columns(self) -> Schema:
        """What it remembers from step to step, if it does; it is then built and called as `gru` is."""
        return {}

    def imported_modules(self, learn: bool) -> tuple[str, ...]:
        """The modules that learning imports, or acting does."""
        return ("torch",)

    def is_acting_parameter(self, wanted: Collection[str], name: str) -> bool:
        """Whether the parameter `name` is needed to act with the wanted heads."""
        return True


class TorchInference:
    """Acts by running the module itself."""

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
    """Any torch module: its class is called with the observations' column, the heads and `args`.

    Nested observations are a `Nested` of columns; `forward` gets a dictionary of tensors by leaf.
    """

    class Config(BaseConfig):
        """The parameters of a module that is named by its import path."""

        path: str = param(
            ...,
            "import path of the module's class, `package.module:Class`",
            pattern=r"^[\w.]+:\w+$",
        )
        args: dict[str, Any] = param({}, "further keyword arguments of the class")

    def network(self, obs: ObsColumns, heads: Heads) -> Module:
        module, name = self.config.path.split(":")
        return getattr(importlib.import_module(module), name)(obs, heads, **self.config.args)


def resolve_model(given: PartSpec | Model | None, default: Model) -> Model:
    """The model of a policy's parameters: as the graph describes it, or as made by hand."""
    if given is None:
        return default
    return given if isinstance(given, Model) else given.make()
