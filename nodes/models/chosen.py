"""Models whose layers the graph chooses: by the observations, or one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowrl.core.config import param, parts
from flowrl.core.facts import UnsoundError
from flowrl.nodes.configured_parts import configured_parts
from flowrl.nodes.models.cnn import Cnn
from flowrl.nodes.models.features import (
    MAX_COLOURS,
    Layout,
    feature_leaves,
    image_shapes,
    looks_like_image,
)
from flowrl.nodes.models.layers import Layer
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.model import LayeredModel, Model
from flowrl.nodes.observations import ObsColumns

OF_CNN = ("normalise_obs", "noisy")  # the settings of `auto` that its cnn has, too


class Auto(Mlp):
    """An mlp with these settings; where an observation is an image, a cnn with the cnn's own defaults."""

    def for_obs(self, obs: ObsColumns) -> Model:
        if self.config.scale_bytes and any(map(looks_like_image, feature_leaves(obs).values())):
            return Cnn(**{name: getattr(self.config, name) for name in OF_CNN})
        return Mlp(**self.config.model_dump())

    def ignored_settings(self, obs: ObsColumns) -> Mapping[str, str]:
        """Those of an mlp where an observation is an image."""
        if not isinstance(self.for_obs(obs), Cnn):
            return super().ignored_settings(obs)
        why = "observations are images, for which `auto` is a cnn with its own settings; take `type: cnn`"
        return {name: why for name in type(self.config).model_fields if name not in OF_CNN}


class Layers(LayeredModel):
    """Layers that the graph lists: those of each image, and those of the trunk below all heads."""

    class Config(LayeredModel.Config):
        images: Any = parts("layer", "the layers that each image goes through")
        layers: Any = parts(
            "layer", "the layers between the features of the observations and the heads"
        )
        shared: bool = param(True, "all heads share one trunk; if false, each has its own")
        layout: Layout = param(
            "auto",
            f"whether channels are the first or last axis; auto: last if its size is {MAX_COLOURS} at most",
        )

    def check_obs(self, obs: ObsColumns) -> None:
        """Raise unless the layers fit each other and the observations."""
        c = self.config
        if not c.shared and any(layer.memory_size for layer in self.trunk()):
            what = "layers with memory must be in a trunk that all heads share"
            raise UnsoundError(what, "leave out `shared: false`", "model")
        images = image_shapes(obs, c.layout)
        if c.images and not images:
            raise UnsoundError(
                f"the observations have no image: {obs}", "leave out `images`", "model"
            )
        for inner in images.values() if c.images else ():
            shape: tuple[int, ...] = inner
            for layer in self.image_layers(obs):
                shape = layer.output_shape(shape)
        shape = (1,)
        for layer in self.trunk():
            shape = layer.output_shape(shape)

    def trunk(self) -> Sequence[Layer]:
        return configured_parts(self.config, "layers", Layer)

    def image_layers(self, obs: ObsColumns) -> Sequence[Layer]:
        return configured_parts(self.config, "images", Layer)
