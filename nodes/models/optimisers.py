"""Optimisers, as parts of a policy: `optimiser: {type: adam, eps: 1.0e-5}`. The steps are in `flat_optimisers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import Part, param

if TYPE_CHECKING:
    from torch import Tensor

    from flowrl.nodes.models.flat_optimisers import FlatOptimiser


class Optimiser(Part):
    """The description of an optimiser. The learning rate is a setting of the policy."""

    kind = "optimiser"

    def attach(self, params: Tensor) -> FlatOptimiser:
        """Make the optimiser of one flat vector of parameters."""
        raise NotImplementedError(f"{type(self).__name__} does not define attach")


class Adam(Optimiser):
    """Adam (Kingma & Ba 2015, algorithm 1)."""

    class Config(BaseConfig):
        beta1: float = param(0.9, "decay of the mean of gradients", ge=0, lt=1)
        beta2: float = param(0.999, "decay of the mean of squared gradients", ge=0, lt=1)
        eps: float = param(1e-8, "added to the root of the squared gradients", gt=0)

    def attach(self, params: Tensor) -> FlatOptimiser:
        from flowrl.nodes.models.flat_optimisers import FlatAdam

        return FlatAdam(params, **self.config.model_dump())


class Adamw(Optimiser):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2)."""

    class Config(Adam.Config):
        weight_decay: float = param(
            0.01, "share of the weights that a step removes, times lr", ge=0
        )

    def attach(self, params: Tensor) -> FlatOptimiser:
        from flowrl.nodes.models.flat_optimisers import FlatAdam

        return FlatAdam(params, **self.config.model_dump())


class Rmsprop(Optimiser):
    """RMSprop (Tieleman & Hinton 2012), with `eps` outside of the root as in torch."""

    class Config(BaseConfig):
        decay: float = param(0.99, "decay of the mean of squared gradients", ge=0, lt=1)
        eps: float = param(1e-8, "added to the root of the squared gradients", gt=0)
        momentum: float = param(0.0, "share of the last step in this one", ge=0, lt=1)

    def attach(self, params: Tensor) -> FlatOptimiser:
        from flowrl.nodes.models.flat_optimisers import FlatRmsprop

        return FlatRmsprop(params, **self.config.model_dump())


class Sgd(Optimiser):
    """Stochastic gradient descent, with momentum as in torch."""

    class Config(BaseConfig):
        momentum: float = param(0.0, "share of the last step in this one", ge=0, lt=1)

    def attach(self, params: Tensor) -> FlatOptimiser:
        from flowrl.nodes.models.flat_optimisers import FlatSgd

        return FlatSgd(params, **self.config.model_dump())
