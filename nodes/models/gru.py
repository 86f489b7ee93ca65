"""Dense layers, then a gated recurrent unit: torch to learn from unrolls, numpy to act."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.nodes.models.mlp import ACTIVATIONS, Activation, Mlp, MlpInference
from flowrl.nodes.models.model import Heads, LinearHead, Model, Shape, check_shapes
from flowrl.nodes.observations import ObsColumns

if TYPE_CHECKING:
    from torch.nn import Module

MEMORY = "memory"
INPUT = "x"  # the encoder's one head: what the unit takes


class Gru(Model):
    """All heads stand on what the unit remembers (Cho et al. 2014)."""

    class Config(BaseConfig):
        """The parameters of a recurrent model."""

        hidden: list[int] = param([], "width of each layer before those that the unit takes")
        size: int = param(64, "numbers that the unit takes, and that it remembers", ge=1)
        activation: Activation = param("tanh", "what follows each dense layer")
        init: Literal["uniform", "orthogonal"] = param(
            "orthogonal", "first weights of the dense layers, as those of an mlp"
        )
        scale_bytes: bool = param(True, "uint8 observations are divided by 255")
        normalise_obs: bool = param(
            False, "real-valued observations get mean 0 and deviation 1, by what was learned from"
        )

    def memory_columns(self) -> Schema:
        return {MEMORY: Column("float32", (self.config.size,))}

    def encoder(self) -> Mlp:
        """What turns observations into what the unit takes."""
        own = self.config.model_dump(exclude={"size"})
        return Mlp(**own)

    def on_memory(self) -> Mlp:
        """What turns memory into heads."""
        return Mlp(hidden=[], init=self.config.init)

    def inputs(self) -> Heads:
        """The head of the encoder."""
        return {INPUT: LinearHead(self.config.size, 2**0.5)}

    def network(self, obs: ObsColumns, heads: Heads) -> Module:
        from flowrl.nodes.models.torch_gru import TorchGru

        encoder = self.encoder().network(obs, self.inputs())
        on_memory = self.on_memory().network(self.memory_columns()[MEMORY], heads)
        return TorchGru(encoder, on_memory, self.config.size, self.config.activation)

    def inference_model(
        self, obs: ObsColumns, heads: Heads, wanted: Collection[str]
    ) -> GruInference:
        return GruInference(self, obs, {name: heads[name] for name in wanted})

    def imported_modules(self, learn: bool) -> tuple[str, ...]:
        return ("torch",) if learn else ()

    def is_acting_parameter(self, wanted: Collection[str], name: str) -> bool:
        part, _, inner = name.partition(".")
        return part != "heads" or self.on_memory().is_acting_parameter(wanted, inner)


class GruInference:
    """Acts in numpy."""

    def __init__(self, model: Gru, obs: ObsColumns, heads: Heads) -> None:
        self.activate = ACTIVATIONS[model.config.activation]
        self.encoder: MlpInference = model.encoder().inference_model(obs, model.inputs(), (INPUT,))
        n = model.config.size
        weights: dict[str, Shape] = {f"weight_{of}": (3 * n, n) for of in ("ih", "hh")}
        self.shapes = {**weights, **{f"bias_{of}": (3 * n,) for of in ("ih", "hh")}}
        memory = model.memory_columns()[MEMORY]
        self.heads: MlpInference = model.on_memory().inference_model(memory, heads, tuple(heads))

    def load(self, arrays: Mapping[str, Array]) -> None:
        self.encoder.load(_below("encoder", arrays))
        self.heads.load(_below("heads", arrays))
        cell = _below("cell", arrays)
        check_shapes("gru", cell, self.shapes)
        self.of_input = cell["weight_ih"].T.copy(), cell["bias_ih"].copy()
        self.of_memory = cell["weight_hh"].T.copy(), cell["bias_hh"].copy()

    def __call__(self, obs: Array, memory: Mapping[str, Array]) -> dict[str, Array]:
        before = memory[MEMORY]
        after = self._cell(self.activate(self.encoder(obs)[INPUT]), before)
        return {**self.heads(after), MEMORY: after}

    def _cell(self, x: Array, h: Array) -> Array:
        """h' = (1 - z) n + z h, with n = tanh(W x + b + r (U h + c)): as torch's GRUCell."""
        xs = np.split(x @ self.of_input[0] + self.of_input[1], 3, axis=1)
        hs = np.split(h @ self.of_memory[0] + self.of_memory[1], 3, axis=1)
        r, z = (ACTIVATIONS["sigmoid"](a + b) for a, b in zip(xs[:2], hs[:2], strict=True))
        n = np.tanh(xs[2] + r * hs[2])
        after: Array = n + z * (h - n)
        return after


def _below(part: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    prefix = part + "."
    return {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
