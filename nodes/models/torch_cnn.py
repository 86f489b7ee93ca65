"""The torch side of the convolutional network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flowrl.nodes.models.cnn import Cnn, channels_last, images
from flowrl.nodes.models.features import BYTE, feature_leaves
from flowrl.nodes.models.torch_features import Obs, TorchFeatures, leaf
from flowrl.nodes.models.torch_mlp import ACTIVATIONS, ROOT_2
from flowrl.nodes.observations import ObsColumns


class TorchImages(nn.Module):
    """Features of observations: those of each image's convolutions, then everything else's."""

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
        parts = [layers(self._planes(leaf(obs, name))).flatten(1) for layers, name in pairs]
        if self.rest is not None:
            parts.append(self.rest(obs))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def observe(self, obs: Obs) -> None:
        """Takes what is not an image into the running moments."""
        if self.rest is not None:
            self.rest.observe(obs)

    def _planes(self, image: Tensor) -> Tensor:
        """Images (B, …) as (B, C, H, W): frames and colours are channels."""
        if image.dim() >= 4 and channels_last(tuple(image.shape[-3:]), self.config.layout):
            image = image.movedim(-1, -3)
        planes = image.reshape(len(image), -1, *image.shape[-2:])
        if self.config.scale_bytes and planes.dtype == torch.uint8:
            return planes * float(BYTE)
        return planes.float()

    def _layers(self, channels: int) -> nn.Sequential:
        c, layers = self.config, nn.Sequential()
        for n, kernel, stride in zip(c.channels, c.kernels, c.strides, strict=True):
            layer = nn.Conv2d(channels, n, kernel, stride)
            if c.init == "orthogonal":
                nn.init.orthogonal_(layer.weight, ROOT_2)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
            layers.append(layer).append(Activated(c.activation))
            channels = n
        return layers


class Activated(nn.Module):
    """An activation by name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.name](x)
