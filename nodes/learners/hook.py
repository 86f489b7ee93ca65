"""Hooks: parts of a learner that act before and after its run and each of its train iterations.

A hook of your own is a subclass of `Hook`, named by its import path: `hooks: [{type: "mine:Watch", priority: 30}]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from flowrl.core.attribute_state import (
    attribute_kinds,
    load_attributes,
    refuse_other_attributes,
    state_of_attributes,
)
from flowrl.core.batch import Batch
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import Part, param
from flowrl.core.errors import spelling_hint
from flowrl.core.facts import UnsoundError
from flowrl.core.saved_state import SavedState, UnsavableStateError

if TYPE_CHECKING:
    from flowrl.nodes.learners.learner import Learner
    from flowrl.nodes.policy import LearnResult

METHODS = ("before_run", "before_iter", "after_iter", "after_run")


class Hook(Part):
    """The base of hooks. A subclass defines those of the four methods that it needs.

    Its attributes are state, which is saved with the learner's: numbers, arrays and generators.
    """

    kind = "hook"
    # The names of attributes that are no state, such as open files.
    unsaved: ClassVar[tuple[str, ...]] = ()
    _kinds_when_made: Mapping[str, str] | None = None

    class Config(BaseConfig):
        priority: int = param(
            100,
            "hooks of a lower number come first, and those of equal numbers in the list's order",
        )

    @classmethod
    def claims(cls, config: Any) -> str:
        """What only one hook of a learner can have, such as the names of its files; empty: nothing.

        Hooks that would share it are refused.
        """
        return ""

    def before_run(self, learner: Learner) -> None:
        """Called once, before the learner's first train iteration of this run."""

    def before_iter(self, learner: Learner, batch: Batch) -> None:
        """Called before each train iteration."""

    def after_iter(self, learner: Learner, batch: Batch, result: LearnResult) -> None:
        """Called after each train iteration; `learner.train_iter` counts it already."""

    def after_run(self, learner: Learner) -> None:
        """Called once, when the learner is closed, also if the run has failed."""

    @classmethod
    def check_methods(cls) -> None:
        """Refuse a class whose methods are never called, such as one with a misspelt name."""
        named = [n for n in dir(cls) if n.startswith(("before_", "after_"))]
        unknown = [n for n in named if n not in METHODS and callable(getattr(cls, n))]
        if unknown:
            what = f"{cls.__name__}.{unknown[0]} is never called"
            raise UnsoundError(what, spelling_hint(unknown[0], METHODS), "hooks")
        if all(getattr(cls, name) is getattr(Hook, name) for name in METHODS):
            hint = f"define some of {', '.join(METHODS)}"
            raise UnsoundError(f"{cls.__name__} has no method that is called", hint, "hooks")

    def check_state(self) -> None:
        """Refuse attributes that cannot be saved, before the run. Its learner calls this when the hook is made."""
        self._kinds_when_made = attribute_kinds(self, self._not_state())
        SavedState.of(self.state_dict()).parts()

    def state_dict(self) -> dict[str, Any]:
        without = self._not_state()
        try:
            found = state_of_attributes(self, without)
            if self._kinds_when_made is not None:
                refuse_other_attributes(self, self._kinds_when_made, without, "__init__")
            return found
        except UnsavableStateError as error:
            hint = "name the attribute in `unsaved` of the class if it is no state"
            raise UnsavableStateError(f"{error}; {hint}") from None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_attributes(self, state, self._not_state())

    def _not_state(self) -> set[str]:
        return {"config", "_kinds_when_made", *self.unsaved}
