"""A convolutional network for images (Mnih et al. 2015), followed by dense layers; it acts with torch."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import PositiveInt

from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.nodes.models.features import MAX_COLOURS, Layout, image_shapes
from flowrl.nodes.models.layers import Activation, ConvLayer, Initialisation, Layer
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.observations import ObsColumns


class Cnn(Mlp):
    """Convolutions on each observed image; the features of other observations are appended."""

    class Config(Mlp.Config):
        hidden: list[PositiveInt] = param([512], "width of each dense layer after the convolutions")
        activation: Activation = param("relu", "activation function after each hidden layer")
        init: Initialisation = param(
            "orthogonal",
            "initial weights: uniform within 1/sqrt(inputs), or orthogonal with zero biases",
        )
        channels: list[PositiveInt] = param(
            [32, 64, 64], "output channels of each convolution", min_length=1
        )
        kernels: list[PositiveInt] = param(
            [8, 4, 3], "width and height of each kernel, in pixels", min_length=1
        )
        strides: list[PositiveInt] = param(
            [4, 2, 1], "stride of each convolution, in pixels", min_length=1
        )
        layout: Layout = param(
            "auto",
            f"whether channels are the first or last axis; auto: last if its size is {MAX_COLOURS} at most",
        )

    def check_obs(self, obs: ObsColumns) -> None:
        """Raise unless every image is large enough for all layers."""
        c = self.config
        shapes = image_shapes(obs, c.layout)
        if not shapes:
            what = f"cnn: the observations have no image: {obs}"
            raise UnsoundError(what, "take the mlp", "model")
        if not len(c.channels) == len(c.kernels) == len(c.strides):
            what = "cnn: channels, kernels and strides have different lengths"
            raise UnsoundError(what, "give each one number per layer", "model")
        for leaf, shape in shapes.items():
            _, height, width = inner = shape
            try:
                for layer in self.image_layers(obs):
                    inner = layer.output_shape(inner)  # type: ignore[assignment]
            except UnsoundError as error:
                what = f"cnn: {leaf or 'the image'} of {height}x{width} pixels is too small"
                raise UnsoundError(what, "give smaller `kernels` and `strides`", "model") from error

    def image_layers(self, obs: ObsColumns) -> Sequence[Layer]:
        c = self.config
        sizes = zip(c.channels, c.kernels, c.strides, strict=True)
        return [
            ConvLayer(channels=n, kernel=kernel, stride=stride, activation=c.activation)
            for n, kernel, stride in sizes
        ]
