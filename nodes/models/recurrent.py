"""Recurrent models, which learn from unrolls in torch and act in numpy (with images: in torch)."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import PositiveInt

from flowrl.core.config import param
from flowrl.nodes.models.cnn import Cnn
from flowrl.nodes.models.features import feature_leaves, looks_like_image
from flowrl.nodes.models.layers import (
    Activation,
    DenseLayer,
    GruLayer,
    Initialisation,
    Layer,
    LstmLayer,
)
from flowrl.nodes.models.model import LayeredModel
from flowrl.nodes.observations import ObsColumns


class RecurrentModel(LayeredModel):
    """Dense layers and a layer with memory, from whose outputs all heads are computed.

    Images go through the convolutions of the model `cnn` first.
    """

    class Config(LayeredModel.Config):
        hidden: list[PositiveInt] = param([], "width of each dense layer before the unit")
        size: int = param(64, "width of the unit's input and of its outputs", ge=1)
        activation: Activation = param("tanh", "activation function after each dense layer")
        init: Initialisation = param(
            "orthogonal",
            "initial weights of the dense layers: uniform within 1/sqrt(inputs), or orthogonal with zero biases",
        )

    def unit(self) -> Layer:
        """The layer with memory."""
        raise NotImplementedError(f"{type(self).__name__} does not define unit")

    def trunk(self) -> Sequence[Layer]:
        c = self.config
        widths = [*c.hidden, c.size]
        return [
            *(DenseLayer(width=n, activation=c.activation, noisy=c.noisy) for n in widths),
            self.unit(),
        ]

    def image_layers(self, obs: ObsColumns) -> Sequence[Layer]:
        leaves = feature_leaves(obs).values()
        if not (self.config.scale_bytes and any(map(looks_like_image, leaves))):
            return ()
        return Cnn().image_layers(obs)


class Gru(RecurrentModel):
    """A gated recurrent unit (Cho et al. 2014) after dense layers."""

    def unit(self) -> Layer:
        return GruLayer(size=self.config.size)


class Lstm(RecurrentModel):
    """A long short-term memory (Hochreiter & Schmidhuber 1997) after dense layers."""

    def unit(self) -> Layer:
        return LstmLayer(size=self.config.size)
