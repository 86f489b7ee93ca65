"""The torch modules of the built-in models, which learn; of these only the `cnn` also acts in torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flowrl.core.batch import Column
from flowrl.nodes.lazy import tensor
from flowrl.nodes.models.cnn import Cnn, channels_last, images
from flowrl.nodes.models.features import (
    BYTE_SCALE,
    FEATURE_LIMIT,
    MOMENTS,
    feature_leaves,
    feature_width,
    is_discrete,
    measured_features,
)
from flowrl.nodes.models.gru import ENCODING, MEMORY
from flowrl.nodes.models.mlp import Mlp, trunk_of
from flowrl.nodes.models.model import DuelingHead, FreeHead, Head, Heads
from flowrl.nodes.moments import MIN_VARIANCE, Moments
from flowrl.nodes.observations import ObsColumns

ROOT_2 = math.sqrt(2)  # the gain that keeps the variance through relu (He et al. 2015)
ACTIVATIONS = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "elu": F.elu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
}

Obs = Tensor | Mapping[str, Tensor]
Affine = tuple[Tensor, Tensor]  # weight and bias


# Features of observations


class Encoder(Protocol):
    """A module that turns observations into features."""

    width: int  # the number of features

    def __call__(self, obs: Obs) -> Tensor:
        """Observations (B, …) to features (B, F)."""

    def observe(self, obs: Obs) -> None:
        """Update the running moments, if features are normalised."""


class TorchFeatures(nn.Module):
    """An encoder of flattened observations."""

    def __init__(self, columns: Mapping[str, Column], scale_bytes: bool, normalise: bool) -> None:
        super().__init__()
        self.columns, self.scale_bytes = columns, scale_bytes
        self.width = sum(feature_width(column) for column in columns.values())
        self.moments = FeatureNormaliser(columns) if normalise else None

    def forward(self, obs: Obs) -> Tensor:
        features = self._raw_features(obs)
        return features if self.moments is None else self.moments(features)

    def observe(self, obs: Obs) -> None:
        if self.moments is not None:
            self.moments.update(self._raw_features(obs))

    def _raw_features(self, obs: Obs) -> Tensor:
        parts = [self._encode(_leaf(obs, name), c) for name, c in self.columns.items()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _encode(self, obs: Tensor, column: Column) -> Tensor:
        if is_discrete(column):
            return F.one_hot(obs, column.n or 0).float()
        x = obs.reshape(len(obs), -1)
        if self.scale_bytes and x.dtype == torch.uint8:
            return x * float(BYTE_SCALE)
        return x.float()


def _leaf(obs: Obs, name: str) -> Tensor:
    return obs if isinstance(obs, Tensor) else obs[name]


class FeatureNormaliser(nn.Module):
    """Normalises features to mean 0 and standard deviation 1, by running moments of the learner's data.

    The moments are buffers of the module: they are sent and saved with the weights, so each version of
    the weights acts with its own moments.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, columns: Mapping[str, Column]) -> None:
        super().__init__()
        self.measured = tensor(measured_features(columns))
        sizes = {"count": 1, "mean": len(self.measured), "squares": len(self.measured)}
        for name in MOMENTS:
            self.register_buffer(name, torch.zeros(sizes[name], dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        variance = self.squares / self.count.clamp(min=1)
        std = torch.where(variance > MIN_VARIANCE, variance.sqrt(), 1.0)
        shift = torch.where(self.measured, self.mean, 0.0).float()
        scale = torch.where(self.measured, 1 / std, 1.0).float()
        return ((features - shift) * scale).clamp(-float(FEATURE_LIMIT), float(FEATURE_LIMIT))

    def update(self, features: Tensor) -> None:
        """Update the moments with features (B, F)."""
        moments = Moments()
        moments.load_state_dict({name: getattr(self, name).numpy() for name in MOMENTS})
        moments.update(features.numpy())
        for name, value in moments.state_dict().items():
            getattr(self, name).copy_(torch.as_tensor(value))


class TorchImages(nn.Module):
    """An encoder with convolutions for images; the features of other leaves are appended."""

    def __init__(self, config: Cnn.Config, obs: ObsColumns) -> None:
        super().__init__()
        self.config, self.images = config, images(obs, config.layout)
        columns = feature_leaves(obs)
        rest = {name: column for name, column in columns.items() if name not in self.images}
        self.rest = TorchFeatures(rest, config.scale_bytes, config.normalise_obs) if rest else None
        self.convolutions = nn.ModuleList(self._layers(c) for c, _, _ in self.images.values())
        self.width = self.rest.width if self.rest is not None else 0
        with torch.no_grad():
            for layers, (c, h, w) in zip(self.convolutions, self.images.values(), strict=True):
                self.width += layers(torch.zeros(1, c, h, w)).numel()

    def forward(self, obs: Obs) -> Tensor:
        pairs = zip(self.convolutions, self.images, strict=True)
        parts = [
            layers(self._channels_first(_leaf(obs, name))).flatten(1) for layers, name in pairs
        ]
        if self.rest is not None:
            parts.append(self.rest(obs))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def observe(self, obs: Obs) -> None:
        """Update the running moments of the leaves that are not images."""
        if self.rest is not None:
            self.rest.observe(obs)

    def _channels_first(self, image: Tensor) -> Tensor:
        """Convert images (B, …) to float (B, C, H, W), with stacked frames and colours as channels."""
        if image.dim() >= 4 and channels_last(tuple(image.shape[-3:]), self.config.layout):
            image = image.movedim(-1, -3)
        planes = image.reshape(len(image), -1, *image.shape[-2:])
        if self.config.scale_bytes and planes.dtype == torch.uint8:
            return planes * float(BYTE_SCALE)
        return planes.float()

    def _layers(self, channels: int) -> nn.Sequential:
        c, layers = self.config, nn.Sequential()
        for n, kernel, stride in zip(c.channels, c.kernels, c.strides, strict=True):
            layer = nn.Conv2d(channels, n, kernel, stride)
            if c.init == "orthogonal":
                nn.init.orthogonal_(layer.weight, ROOT_2)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
            layers.append(layer).append(ActivationLayer(c.activation))
            channels = n
        return layers


class ActivationLayer(nn.Module):
    """Applies the activation function of this name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.name](x)


# Networks


class TorchMlp(nn.Module):
    """Dense layers on an encoder's features.

    Parameters are named `trunk.0.weight`, `q.out.bias` and so on, or `q.0.weight` if head q has its own trunk.
    """

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
            self._add_head(name, head, trunk_of(name, config))

    def forward(self, obs: Obs) -> dict[str, Tensor]:
        """Observations (B, …) to heads (B, n)."""
        x = self.features(obs)
        outputs = {trunk: self._dense(x, layers) for trunk, layers in self.trunks.items()}
        heads = {
            n: _head_output(outputs[trunk], layers) for n, (trunk, layers) in self.last.items()
        }
        for name, free in self.free.items():
            heads[name] = free.expand(len(x), -1)
        return heads

    def observe(self, obs: Obs) -> None:
        self.features.observe(obs)

    def _dense(self, x: Tensor, layers: list[Affine]) -> Tensor:
        for weight, bias in layers:
            x = self.activate(F.linear(x, weight, bias))
        return x

    def _add_head(self, name: str, head: Head, trunk: str) -> None:
        if isinstance(head, FreeHead):
            self.free[name] = nn.Parameter(torch.full((head.n,), head.value))
            self._submodule(name).register_parameter("free", self.free[name])
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
        self._submodule(owner).add_module(name, layer)
        return layer.weight, layer.bias

    def _submodule(self, name: str) -> nn.Module:
        if name not in self._modules:
            self.add_module(name, nn.Module())
        return self.get_submodule(name)


def _head_output(x: Tensor, layers: list[Affine]) -> Tensor:
    """The head's output; two layers are the value and the advantage of a dueling head."""
    if len(layers) == 1:
        return F.linear(x, *layers[0])
    value, advantage = (F.linear(x, *layer) for layer in layers)
    return value + advantage - advantage.mean(1, keepdim=True)


class TorchGru(nn.Module):
    """A gated recurrent unit between an encoder and heads.

    Parameters are named `encoder.…`, `cell.…` and `heads.…`.
    """

    def __init__(self, encoder: nn.Module, heads: nn.Module, size: int, activation: str) -> None:
        super().__init__()
        self.encoder, self.heads = encoder, heads
        self.cell = nn.GRUCell(size, size)
        self.activate = ACTIVATIONS[activation]

    def forward(self, obs: Obs, memory: Tensor, begins: Tensor) -> dict[str, Tensor]:
        """Run through N unrolls of T steps.

        `obs` is (N T, …), `memory` before the first step (N, H), and `begins` (N, T) marks the first
        steps of episodes, before which the memory is cleared. Returns heads (N T, n), and under
        `memory` the memory after each step (N T, H).
        """
        n, steps = begins.shape
        x_t = self.activate(self.encoder(obs)[ENCODING]).view(n, steps, -1)
        keep_t = (~begins).unsqueeze(2).to(x_t.dtype)
        memories = []
        for t in range(steps):
            memory = self.cell(x_t[:, t], memory * keep_t[:, t])
            memories.append(memory)
        memory_t = torch.stack(memories, 1).flatten(0, 1)
        return {**self.heads(memory_t), MEMORY: memory_t}

    def observe(self, obs: Obs) -> None:
        self.encoder.observe(obs)  # type: ignore[operator]
