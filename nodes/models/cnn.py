"""The convolutional network for images (Mnih et al. 2015), and dense layers behind it. torch acts, too."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal

from flowrl.core.batch import Column
from flowrl.core.config import param
from flowrl.core.node import UnsoundError
from flowrl.nodes.models.features import feature_leaves
from flowrl.nodes.models.mlp import Activation, Mlp
from flowrl.nodes.models.model import Heads, Model, TorchInference
from flowrl.nodes.observations import ObsColumns

if TYPE_CHECKING:
    from torch.nn import Module

Layout = Literal["auto", "first", "last"]
MOST_COLOURS = 4  # of an image whose last axis is taken for its channels


class Cnn(Model):
    """Convolutions on every image that is observed; what else is observed joins behind them."""

    class Config(Mlp.Config):
        """The parameters of a convolutional network."""

        hidden: list[int] = param([512], "width of each dense layer behind the convolutions")
        activation: Activation = param("relu", "what follows each hidden layer")
        init: Literal["uniform", "orthogonal"] = param(
            "orthogonal", "first weights: uniform within 1/sqrt(inputs), or orthogonal, biases 0"
        )
        channels: list[int] = param([32, 64, 64], "outputs of each convolution", min_length=1)
        kernels: list[int] = param([8, 4, 3], "width and height of each, in pixels", min_length=1)
        strides: list[int] = param([4, 2, 1], "pixels from one place to the next", min_length=1)
        layout: Layout = param(
            "auto", f"which axis is the channels; auto: the last, if it has {MOST_COLOURS} at most"
        )

    def check_obs(self, obs: ObsColumns) -> None:
        """Every image must be large enough for all the layers."""
        c = self.config
        found = images(obs, c.layout)
        if not found:
            raise UnsoundError(f"cnn: no image is observed, but {obs}", "take the mlp", "model")
        if not len(c.channels) == len(c.kernels) == len(c.strides):
            what = "cnn: channels, kernels and strides are of different lengths"
            raise UnsoundError(what, "give a number for each layer", "model")
        for leaf, (_, height, width) in found.items():
            size = min(height, width)
            for kernel, stride in zip(c.kernels, c.strides, strict=True):
                size = (size - kernel) // stride + 1 if size >= kernel else 0
            if size < 1:
                what = f"cnn: {leaf or 'the image'} of {height}x{width} pixels is too small"
                raise UnsoundError(what, "give smaller `kernels` and `strides`", "model")

    def network(self, obs: ObsColumns, heads: Heads) -> Module:
        from flowrl.nodes.models.torch_cnn import TorchImages
        from flowrl.nodes.models.torch_mlp import TorchMlp

        self.check_obs(obs)
        return TorchMlp(self.config, TorchImages(self.config, obs), heads)

    def inference_model(
        self, obs: ObsColumns, heads: Heads, wanted: Collection[str]
    ) -> TorchInference:
        """What acts holds the wanted heads and nothing else."""
        return TorchInference(self.build(obs, {name: heads[name] for name in wanted}, 0), wanted)

    def is_acting_parameter(self, wanted: Collection[str], name: str) -> bool:
        owner = name.split(".")[0]
        return owner in wanted or owner in ("trunk", "features")


def images(obs: ObsColumns, layout: Layout) -> dict[str, tuple[int, int, int]]:
    """The images that are observed, by leaf: channels, height and width."""
    columns: Mapping[str, Column] = feature_leaves(obs)
    return {
        leaf: _planes(column.shape, layout)
        for leaf, column in columns.items()
        if 2 <= len(column.shape) <= 4
    }


def _planes(shape: tuple[int, ...], layout: Layout) -> tuple[int, int, int]:
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    frames = shape[0] if len(shape) == 4 else 1
    image = shape[-3:]
    if channels_last(image, layout):
        return frames * image[2], image[0], image[1]
    return frames * image[0], image[1], image[2]


def channels_last(image: tuple[int, ...], layout: Layout) -> bool:
    """Whether the last of an image's three axes is the channels."""
    return layout == "last" or (layout == "auto" and image[-1] <= MOST_COLOURS)
