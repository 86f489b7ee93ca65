"""The torch modules of models: encoders of observations, and the network of an encoder, a trunk and heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flowrl.core.batch import Column
from flowrl.nodes.devices import to_numpy
from flowrl.nodes.lazy import tensor
from flowrl.nodes.models.features import (
    BYTE_SCALE,
    FEATURE_LIMIT,
    MOMENTS,
    Layout,
    channels_last,
    feature_leaves,
    feature_width,
    image_shapes,
    is_discrete,
    measured_features,
)
from flowrl.nodes.models.heads import FreeHead, Heads, ImplicitHead, midpoints
from flowrl.nodes.models.layers import Initialisation, Layer, Shape
from flowrl.nodes.models.torch_layers import TorchHead
from flowrl.nodes.moments import MIN_VARIANCE, Moments
from flowrl.nodes.observations import ObsColumns

# Python's numbers, because a numpy scalar within a module splits a compiled pass.
BYTE_FACTOR, LIMIT = float(BYTE_SCALE), float(FEATURE_LIMIT)

MEMORY = "memory"  # the name of the memory among the heads of a recurrent network

Obs = Tensor | Mapping[str, Tensor]


# Encoders: from observations to features


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
        x = obs.reshape(obs.shape[0], -1)
        if self.scale_bytes and x.dtype == torch.uint8:
            return scaled_bytes(x)
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
    measured: Tensor

    def __init__(self, columns: Mapping[str, Column]) -> None:
        super().__init__()
        measured = tensor(measured_features(columns))
        self.register_buffer("measured", measured, persistent=False)
        sizes = {"count": 1, "mean": len(measured), "squares": len(measured)}
        for name in MOMENTS:
            self.register_buffer(name, torch.zeros(sizes[name], dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        variance = self.squares / self.count.clamp(min=1)
        std = torch.where(variance > MIN_VARIANCE, variance.sqrt(), 1.0)
        shift = torch.where(self.measured, self.mean, 0.0).float()
        scale = torch.where(self.measured, 1 / std, 1.0).float()
        return ((features - shift) * scale).clamp(-LIMIT, LIMIT)

    def update(self, features: Tensor) -> None:
        """Update the moments with features (B, F)."""
        moments = Moments()
        moments.load_state_dict({name: to_numpy(getattr(self, name)) for name in MOMENTS})
        moments.update(to_numpy(features))
        for name, value in moments.state_dict().items():
            getattr(self, name).copy_(torch.as_tensor(value))


class TorchImages(nn.Module):
    """An encoder with layers for images, such as convolutions; the features of other leaves are appended."""

    def __init__(
        self,
        obs: ObsColumns,
        layers: Sequence[Layer],
        layout: Layout,
        init: Initialisation,
        scale_bytes: bool,
        normalise: bool,
    ) -> None:
        super().__init__()
        self.images, self.layout = image_shapes(obs, layout), layout
        self.scale_bytes = scale_bytes
        columns = feature_leaves(obs)
        rest = {name: column for name, column in columns.items() if name not in self.images}
        self.rest = TorchFeatures(rest, scale_bytes, normalise) if rest else None
        self.width = self.rest.width if self.rest is not None else 0
        self.convolutions = nn.ModuleList()
        for image in self.images.values():
            stack, outputs = make_layers(layers, image, init)
            self.convolutions.append(nn.Sequential(*stack))
            self.width += torch.Size(outputs).numel()

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
        """Images (B, …) as float (B, C, H, W), with stacked frames and colours as channels."""
        if image.dim() >= 4 and channels_last(tuple(image.shape[-3:]), self.layout):
            image = image.movedim(image.dim() - 1, image.dim() - 3)  # ONNX takes no negative axes
        planes = image.reshape(image.shape[0], -1, *image.shape[-2:])
        planes = with_channels_as_neighbours(planes)
        if self.scale_bytes and planes.dtype == torch.uint8:
            return scaled_bytes(planes)
        return planes.float()


def with_channels_as_neighbours(planes: Tensor) -> Tensor:
    """Planes (B, C, H, W) whose channels of a pixel are neighbours in memory, with which convolutions are faster."""
    if planes.is_contiguous(memory_format=torch.channels_last):
        return planes
    return torch.stack(planes.unbind(1), 3).movedim(3, 1)  # `contiguous` takes twice as long


def scaled_bytes(values: Tensor) -> Tensor:
    """Bytes as numbers from 0 to 1. The product of a byte and a float would be computed without vector instructions."""
    return values.to(_pass_dtype(values)).mul_(BYTE_FACTOR)


def _pass_dtype(values: Tensor) -> torch.dtype:
    """The type in which a pass computes: of mixed precision, the short one, which has all bytes."""
    device = values.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return torch.float32


def make_layers(
    layers: Sequence[Layer], inputs: Shape, init: Initialisation
) -> tuple[list[nn.Module], Shape]:
    """Make the modules of layers; return them, and the shape of a row of their outputs."""
    modules = []
    for layer in layers:
        modules.append(layer.module(inputs, init))
        inputs = layer.output_shape(inputs)
    return modules, inputs


# Networks


class LayeredModule(nn.Module):
    """An encoder, a trunk of layers, and heads.

    Parameters are named `trunk.0.weight`, `q.out.bias` and so on, or `q.0.weight` if head q has its own trunk.
    """

    def __init__(
        self,
        features: TorchFeatures | TorchImages,
        layers: Sequence[Layer],
        heads: Heads,
        shared: bool,
        noisy: bool,
        init: Initialisation,
    ) -> None:
        super().__init__()
        self.features = features
        self.memory_sizes = [layer.memory_size for layer in layers]
        self.heads: dict[str, TorchHead] = {}
        self.layers: list[nn.Module] = []  # of the trunk that all heads share
        width: Shape = (features.width,)
        if shared:
            self.layers, width = make_layers(layers, width, init)
            self.trunk = nn.ModuleList(self.layers)
        for name, head in heads.items():
            if hasattr(self, name):
                raise ValueError(
                    f"a head cannot be named '{name}'; networks have another attribute of that name"
                )
            below: list[nn.Module] = []
            outputs = width
            if not shared and not isinstance(head, FreeHead):
                below, outputs = make_layers(layers, width, init)
            made = TorchHead(head, outputs[0], noisy, init, below)
            self.add_module(name, made)
            self.heads[name] = made

    def forward(
        self,
        obs: Obs,
        memory: Tensor | None = None,
        begins: Tensor | None = None,
        tau: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Map observations (B, …) to heads (B, …).

        A recurrent network runs through N unrolls of T steps, with B = N T: `memory` is that before the first step
        (N, M), and `begins` (N, T) marks the first steps of episodes, before which the memory is cleared. Under
        `memory` it returns the memory after each step (B, M). `tau` are the fractions of an implicit head.
        """
        x, after = self._run_trunk(self.features.forward(obs), memory, begins)
        found: dict[str, Tensor] = {}
        for name, made in self.heads.items():
            fractions, head = tau, made.head
            if fractions is None and isinstance(head, ImplicitHead) and head.shares:
                fractions = midpoints(found[head.shares].detach())
            found[name] = made.forward(x, fractions)
        return {**found, **after}

    def _run_trunk(
        self, x: Tensor, memory: Tensor | None, begins: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        after, first = [], 0
        for layer, size in zip(self.layers, self.memory_sizes if self.layers else (), strict=True):
            if not size:
                x = layer.forward(x)
                continue
            if memory is None or begins is None:
                raise TypeError("a recurrent network needs its memory and the begins of episodes")
            unrolls = x.view(*begins.shape, *x.shape[1:])
            outputs, memory_t = layer.forward(unrolls, memory[:, first : first + size], begins)
            x, first = outputs.flatten(0, 1), first + size
            after.append(memory_t.flatten(0, 1))
        if not after:
            return x, {}
        return x, {MEMORY: after[0] if len(after) == 1 else torch.cat(after, 1)}

    def observe(self, obs: Obs) -> None:
        self.features.observe(obs)


class Copies(nn.Module):
    """Several networks of the same form but with other weights. Their heads are joined along an axis after the rows."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.copies = nn.ModuleList(modules)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The heads (B, copies, …)."""
        outputs = [copy.forward(*args, **kwargs) for copy in self.copies]
        return {name: torch.stack([out[name] for out in outputs], 1) for name in outputs[0]}

    def observe(self, obs: Obs) -> None:
        for copy in self.copies:
            if (observe := getattr(copy, "observe", None)) is not None:
                observe(obs)
