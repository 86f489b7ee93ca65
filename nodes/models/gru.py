"""Dense layers and a gated recurrent unit, which learns from unrolls in torch and acts in numpy."""

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
ENCODING = "x"  # the encoder's only head, which is the unit's input


class Gru(Model):
    """A gated recurrent unit (Cho et al. 2014); all heads are computed from its memory."""

    class Config(BaseConfig):
        hidden: list[int] = param([], "width of each dense layer before the unit")
        size: int = param(64, "width of the unit's input and of its memory", ge=1)
        activation: Activation = param("tanh", "activation function after each dense layer")
        init: Literal["uniform", "orthogonal"] = param(
            "orthogonal", "initial weights of the dense layers, as in an mlp"
        )
        scale_bytes: bool = param(True, "uint8 observations are divided by 255")
        normalise_obs: bool = param(
            False, "normalise real-valued observations by the moments of the learner's data"
        )

    def memory_columns(self) -> Schema:
        return {MEMORY: Column("float32", (self.config.size,))}

    def encoder(self) -> Mlp:
        """The model from observations to the unit's input."""
        return Mlp(**self.config.model_dump(exclude={"size"}))

    def head_model(self) -> Mlp:
        """The model from memory to heads."""
        return Mlp(hidden=[], init=self.config.init)

    def encoder_heads(self) -> Heads:
        return {ENCODING: LinearHead(self.config.size, 2**0.5)}

    def network(self, obs: ObsColumns, heads: Heads) -> Module:
        from flowrl.nodes.models.torch_modules import TorchGru

        encoder = self.encoder().network(obs, self.encoder_heads())
        heads_on_memory = self.head_model().network(self.memory_columns()[MEMORY], heads)
        return TorchGru(encoder, heads_on_memory, self.config.size, self.config.activation)

    def inference_model(
        self, obs: ObsColumns, heads: Heads, wanted: Collection[str]
    ) -> GruInference:
        return GruInference(self, obs, {name: heads[name] for name in wanted})

    def imported_modules(self, learn: bool) -> tuple[str, ...]:
        return ("torch",) if learn else ()

    def is_acting_parameter(self, wanted: Collection[str], name: str) -> bool:
        part, _, inner = name.partition(".")
        return part != "heads" or self.head_model().is_acting_parameter(wanted, inner)


class GruInference:
    def __init__(self, model: Gru, obs: ObsColumns, heads: Heads) -> None:
        self.activate = ACTIVATIONS[model.config.activation]
        self.encoder: MlpInference = model.encoder().inference_model(
            obs, model.encoder_heads(), (ENCODING,)
        )
        n = model.config.size
        weights: dict[str, Shape] = {f"weight_{of}": (3 * n, n) for of in ("ih", "hh")}
        self.shapes = {**weights, **{f"bias_{of}": (3 * n,) for of in ("ih", "hh")}}
        memory = model.memory_columns()[MEMORY]
        self.heads: MlpInference = model.head_model().inference_model(memory, heads, tuple(heads))

    def load(self, arrays: Mapping[str, Array]) -> None:
        self.encoder.load(_parameters_below("encoder", arrays))
        self.heads.load(_parameters_below("heads", arrays))
        cell = _parameters_below("cell", arrays)
        check_shapes("gru", cell, self.shapes)
        self.input_weights = cell["weight_ih"].T.copy(), cell["bias_ih"].copy()
        self.memory_weights = cell["weight_hh"].T.copy(), cell["bias_hh"].copy()

    def __call__(self, obs: Array, memory: Mapping[str, Array]) -> dict[str, Array]:
        x_t = self.activate(self.encoder(obs)[ENCODING])
        memory_t = self._cell(x_t, memory[MEMORY])
        return {**self.heads(memory_t), MEMORY: memory_t}

    def _cell(self, x: Array, h: Array) -> Array:
        """h' = (1 - z) n + z h, with n = tanh(W x + b + r (U h + c)), as in torch's GRUCell."""
        xs = np.split(x @ self.input_weights[0] + self.input_weights[1], 3, axis=1)
        hs = np.split(h @ self.memory_weights[0] + self.memory_weights[1], 3, axis=1)
        r, z = (ACTIVATIONS["sigmoid"](a + b) for a, b in zip(xs[:2], hs[:2], strict=True))
        n = np.tanh(xs[2] + r * hs[2])
        new_memory: Array = n + z * (h - n)
        return new_memory


def _parameters_below(part: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    prefix = part + "."
    return {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
