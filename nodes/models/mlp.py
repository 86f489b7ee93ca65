"""The multi-layer perceptron, which learns in torch and acts in numpy, so collectors need no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import PositiveInt

from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.nodes.models.features import feature_leaves, looks_like_image
from flowrl.nodes.models.layers import Activation, BatchNormLayer, DenseLayer, Layer
from flowrl.nodes.models.model import LayeredModel
from flowrl.nodes.observations import ObsColumns


class Mlp(LayeredModel):
    """Dense layers, with one trunk for all heads or one for each head."""

    class Config(LayeredModel.Config):
        hidden: list[PositiveInt] = param([128, 128, 64], "width of each hidden layer")
        activation: Activation = param("relu", "activation function after each hidden layer")
        norm: Literal[False, True, "batch"] = param(
            False,
            "normalise each hidden layer before its activation (layer norm); batch: the features and the outputs "
            "of each hidden layer by batch renormalisation, for crossq",
        )
        shared: bool = param(True, "all heads share one trunk; if false, each has its own")

    def check_obs(self, obs: ObsColumns) -> None:
        """Refuse images, of which a dense layer learns little."""
        images = [n for n, c in feature_leaves(obs).items() if looks_like_image(c)]
        if images and self.config.scale_bytes:
            raise UnsoundError(
                f"the mlp would flatten the image {images[0] or obs}",
                "take `model: cnn` (or `auto`), or write `scale_bytes: false` if the bytes are no brightness",
                "model",
            )

    def trunk(self) -> Sequence[Layer]:
        c = self.config
        dense: list[Layer] = [
            DenseLayer(width=n, activation=c.activation, norm=c.norm is True, noisy=c.noisy)
            for n in c.hidden
        ]
        if c.norm != "batch":
            return dense
        return [BatchNormLayer(), *(x for layer in dense for x in (layer, BatchNormLayer()))]
