"""A convolutional network for images (Mnih et al. 2015), followed by dense layers; it acts with torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal

from flowrl.core.batch import Column
from flowrl.core.config import param
from flowrl.core.node import UnsoundError
from flowrl.nodes.models.features import feature_leaves
from flowrl.nodes.models.mlp import Activation, Mlp, is_acting_parameter
from flowrl.nodes.models.model import Heads, Model, TorchInference
from flowrl.nodes.observations import ObsColumns

if TYPE_CHECKING:
    from torch.nn import Module

Layout = Literal["auto", "first", "last"]
MAX_COLOURS = 4  # the last axis of an image is its channels if it is not larger than this


class Cnn(Model):
    """Convolutions on each observed image; the features of other observations are appended."""

    class Config(Mlp.Config):
        hidden: list[int] = param([512], "width of each dense layer after the convolutions")
        activation: Activation = param("relu", "activation function after each hidden layer")
        init: Literal["uniform", "orthogonal"] = param(
            "orthogonal",
            "initial weights: uniform within 1/sqrt(inputs), or orthogonal with zero biases",
        )
        channels: list[int] = param(
            [32, 64, 64], "output channels of each convolution", min_length=1
        )
        kernels: list[int] = param(
            [8, 4, 3], "width and height of each kernel, in pixels", min_length=1
        )
        strides: list[int] = param([4, 2, 1], "stride of each convolution, in pixels", min_length=1)
        layout: Layout = param(
            "auto",
            f"whether channels are the first or last axis; auto: last if its size is {MAX_COLOURS} at most",
        )

    def check_obs(self, obs: ObsColumns) -> None:
        """Raise unless every image is large enough for all layers."""
        c = self.config
        leaves = images(obs, c.layout)
        if not leaves:
            what = f"cnn: the observations have no image: {obs}"
            raise UnsoundError(what, "take the mlp", "model")
        if not len(c.channels) == len(c.kernels) == len(c.strides):
            what = "cnn: channels, kernels and strides have different lengths"
            raise UnsoundError(what, "give each one number per layer", "model")
        for leaf, (_, height, width) in leaves.items():
            size = min(height, width)
            for kernel, stride in zip(c.kernels, c.strides, strict=True):
                size = (size - kernel) // stride + 1 if size >= kernel else 0
            if size < 1:
                what = f"cnn: {leaf or 'the image'} of {height}x{width} pixels is too small"
                raise UnsoundError(what, "give smaller `kernels` and `strides`", "model")

    def network(self, obs: ObsColumns, heads: Heads) -> Module:
        from flowrl.nodes.models.torch_modules import TorchImages, TorchMlp

        self.check_obs(obs)
        return TorchMlp(self.config, TorchImages(self.config, obs), heads)

    def inference_model(
        self, obs: ObsColumns, heads: Heads, wanted: Collection[str]
    ) -> TorchInference:
        return TorchInference(self.build(obs, {name: heads[name] for name in wanted}, 0), wanted)

    def is_acting_parameter(self, wanted: Collection[str], name: str) -> bool:
        return is_acting_parameter(wanted, name)


def images(obs: ObsColumns, layout: Layout) -> dict[str, tuple[int, int, int]]:
    """The channels, height and width of each observed image, by leaf."""
    columns: Mapping[str, Column] = feature_leaves(obs)
    return {
        leaf: _image_size(column.shape, layout)
        for leaf, column in columns.items()
        if 2 <= len(column.shape) <= 4
    }


def _image_size(shape: tuple[int, ...], layout: Layout) -> tuple[int, int, int]:
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    frames = shape[0] if len(shape) == 4 else 1
    image = shape[-3:]
    if channels_last(image, layout):
        return frames * image[2], image[0], image[1]
    return frames * image[0], image[1], image[2]


def channels_last(image: tuple[int, ...], layout: Layout) -> bool:
    """Whether the last of an image's three axes is the channels."""
    return layout == "last" or (layout == "auto" and image[-1] <= MAX_COLOURS)
