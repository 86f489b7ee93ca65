"""The built-in hooks of learners: checkpoints, a guard against NaN, averaged weights, and statistics of gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.core.batch import Array, Batch
from flowrl.core.config import param
from flowrl.core.saved_state import SavedState
from flowrl.nodes.learners.hook import Hook
from flowrl.nodes.models.saved_weights import check_no_nan

if TYPE_CHECKING:
    from flowrl.nodes.learners.learner import Learner
    from flowrl.nodes.policy import LearnResult


class Save(Hook):
    """Saves checkpoints `iter-N` during the run, from which it can be continued.

    A learner that is not the run's first one by name adds its own name: `iter-N-NODE`.
    """

    class Config(Hook.Config):
        every_iters: int = param(10_000, "train iterations between two checkpoints", ge=1)
        keep: int | None = param(None, "keep this many of them, the newest; null: all", ge=1)
        name: str = param(
            "iter",
            "the checkpoints are called NAME-N; letters, digits and `_`",
            pattern=r"^[A-Za-z0-9_]+$",
        )

    @classmethod
    def claims(cls, config: Any) -> str:
        return f"checkpoints called {config.name}-N (`name`)"

    def after_iter(self, learner: Learner, batch: Batch, result: LearnResult) -> None:
        every, keep, name = self.config.every_iters, self.config.keep, self.config.name
        if learner.train_iter % every == 0:
            outdated = "" if keep is None else f"{name}-{learner.train_iter - keep * every}"
            learner.save_as(f"{name}-{learner.train_iter}", replaces=outdated)


class NanGuard(Hook):
    """Ends the run as soon as a metric, a weight, or anything else that the learner has learned is NaN."""

    class Config(Hook.Config):
        every_iters: int = param(1, "train iterations between two checks", ge=1)

    def after_iter(self, learner: Learner, batch: Batch, result: LearnResult) -> None:
        if learner.train_iter % self.config.every_iters:
            return
        wrong = [name for name, value in result.metrics.items() if math.isnan(float(value))]
        if wrong:
            raise ValueError(
                f"the metric '{wrong[0]}' is nan in train iteration {learner.train_iter}; take a lower `lr`, or check "
                "for rewards or observations that are too large"
            )
        check_no_nan(SavedState.of(learner.mode.state_dict()).arrays)


class AveragedWeights(Hook):
    """Averages the weights that act, over train iterations, for the learner's output `averaged`.

    average = decay * average + (1 - decay) * weights
    """

    class Config(Hook.Config):
        decay: float = param(0.999, "share of the average that each iteration keeps", gt=0, lt=1)

    @classmethod
    def claims(cls, config: Any) -> str:
        return "the output `averaged`"

    def __init__(self, *args: Any, **params: Any) -> None:
        super().__init__(*args, **params)
        self._weights: dict[str, Array] = {}

    def before_run(self, learner: Learner) -> None:
        self.averaged(learner)

    def after_iter(self, learner: Learner, batch: Batch, result: LearnResult) -> None:
        decay = self.config.decay
        for name, new in learner.mode.weights().items():
            old = self._weights[name]
            if new.dtype.kind == "f":
                new = (decay * old + (1 - decay) * new).astype(new.dtype)
            self._weights[name] = new

    def averaged(self, learner: Learner) -> dict[str, Array]:
        """A copy of the averaged weights; before the first iteration, they are the learner's."""
        if not self._weights:
            self._weights = learner.mode.weights()
        return {name: array.copy() for name, array in self._weights.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"weights": {name: array.copy() for name, array in self._weights.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._weights = {name: np.array(array) for name, array in state["weights"].items()}


class GradientStatistics(Hook):
    """Adds metrics of each network that an iteration changes.

    These are the norm of its last gradient (after clipping), that of its weights, and the share of the weights by which
    they changed.
    """

    unsaved = ("_before",)  # it is empty between two iterations

    class Config(Hook.Config):
        every_iters: int = param(100, "train iterations between two measurements", ge=1)

    @classmethod
    def claims(cls, config: Any) -> str:
        return "metrics of gradients"

    def __init__(self, *args: Any, **params: Any) -> None:
        super().__init__(*args, **params)
        self._before: dict[str, Any] = {}  # the weights before this iteration

    def before_iter(self, learner: Learner, batch: Batch) -> None:
        if (learner.train_iter + 1) % self.config.every_iters == 0:
            from flowrl.nodes.models.networks import trainable_networks

            networks = trainable_networks(learner.mode).items()
            self._before = {name: network.params.clone() for name, network in networks}

    def after_iter(self, learner: Learner, batch: Batch, result: LearnResult) -> None:
        found: dict[str, float] = {}
        for name, before in self._before.items():
            network = getattr(learner.mode, name)
            change, weights = float((network.params - before).norm()), float(before.norm())
            if change:
                found[f"{name}_grad_norm"] = float(network.grads.norm())
                found[f"{name}_weight_norm"] = weights
                found[f"{name}_change_share"] = change / max(weights, 1e-12)
        self._before = {}
        learner.add_metrics(found)
