"""The torch side of the multi-layer perceptron."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flowrl.nodes.models.mlp import Mlp, trunk_of
from flowrl.nodes.models.model import DuelingHead, FreeHead, Head, Heads
from flowrl.nodes.models.torch_features import Encoder, Obs

ROOT_2 = math.sqrt(2)  # the gain that keeps the variance through relu (He et al. 2015)
ACTIVATIONS = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "elu": F.elu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
}


Affine = tuple[Tensor, Tensor]


class TorchMlp(nn.Module):
    """Parameters are named `trunk.0.weight`, `q.out.bias`, …; `q.0.weight` in q's own trunk."""

    def __init__(self, config: Mlp.Config, features: Encoder, heads: Heads) -> None:
        super().__init__()
        self.features = features
        self.orthogonal = config.init == "orthogonal"
        self.activate = ACTIVATIONS[config.activation]
        self.widths = [features.width, *config.hidden]
        self.trunks: dict[str, list[Affine]] = {}
        self.last: dict[str, tuple[str, list[Affine]]] = {}  # each head's trunk and last layers
        self.free: dict[str, nn.Parameter] = {}
        for name, head in heads.items():
            self._head(name, head, trunk_of(name, config))

    def forward(self, obs: Obs) -> dict[str, Tensor]:
        """Observations (B, …) to heads (B, n)."""
        x = self.features(obs)
        found = {trunk: self._dense(x, layers) for trunk, layers in self.trunks.items()}
        heads = {name: _last(found[trunk], layers) for name, (trunk, layers) in self.last.items()}
        for name, free in self.free.items():
            heads[name] = free.expand(len(x), -1)
        return heads

    def observe(self, obs: Obs) -> None:
        """Takes what was learned from into the running moments."""
        self.features.observe(obs)

    def _dense(self, x: Tensor, layers: list[Affine]) -> Tensor:
        for weight, bias in layers:
            x = self.activate(F.linear(x, weight, bias))
        return x

    def _head(self, name: str, head: Head, trunk: str) -> None:
        if isinstance(head, FreeHead):
            self.free[name] = nn.Parameter(torch.full((head.n,), head.value))
            self._owner(name).register_parameter("free", self.free[name])
            return
        if trunk not in self.trunks:
            pairs = enumerate(zip(self.widths, self.widths[1:], strict=False))
            self.trunks[trunk] = [self._affine(f"{trunk}.{i}", *pair, ROOT_2) for i, pair in pairs]
        if isinstance(head, DuelingHead):
            parts = {"value": (1, 1.0), "advantage": (head.n, 1.0)}
        else:
            parts = {"out": (head.n, head.scale)}
        layers = [self._affine(f"{name}.{k}", self.widths[-1], *v) for k, v in parts.items()]
        self.last[name] = trunk, layers

    def _affine(self, path: str, inputs: int, outputs: int, gain: float) -> Affine:
        layer = nn.Linear(inputs, outputs)
        if self.orthogonal:
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
        owner, name = path.split(".")
        self._owner(owner).add_module(name, layer)
        return layer.weight, layer.bias

    def _owner(self, name: str) -> nn.Module:
        if name not in self._modules:
            self.add_module(name, nn.Module())
        return self.get_submodule(name)


def _last(x: Tensor, layers: list[Affine]) -> Tensor:
    """The head itself; two layers are a dueling head's value and advantage."""
    if len(layers) == 1:
        return F.linear(x, *layers[0])
    value, advantage = (F.linear(x, *layer) for layer in layers)
    return value + advantage - advantage.mean(1, keepdim=True)
