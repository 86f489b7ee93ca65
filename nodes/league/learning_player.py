"""A player of a league that learns: its weights, its versions, and how often its learner has begun again."""

from __future__ import annotations

from dataclasses import dataclass

from flowrl.core.state import State
from flowrl.nodes.league.matchmaking import Kind


@dataclass(slots=True)
class LearningPlayer:
    """What a league knows of a player that learns."""

    name: str
    kind: Kind
    weights: State | None = None  # the newest ones; None: before the first firing
    parent: str = ""  # the newest version that was kept
    first: str = ""  # the first version that was kept
    # The version of the newest one that was kept, or with which its learner has begun again.
    kept_at: int = 0
    resets: int = 0  # how often its learner has to begin again
    # The version with which its learner has begun; None: it has to begin again, and has not yet.
    begun_at: int | None = 0

    @property
    def newest(self) -> State:
        """The newest weights, which every firing brings."""
        assert self.weights is not None
        return self.weights

    def update(self, weights: State) -> None:
        """Take in the newest weights, which say how often its learner has begun again."""
        self.weights = weights
        if self.begun_at is None and weights.command.get("resets", 0) == self.resets:
            self.begun_at = self.kept_at = weights.version

    def begin_again(self) -> None:
        """Let its learner begin again with its first weights."""
        self.resets += 1
        self.parent, self.begun_at = self.first, None


# The keys of a league's state, with the attributes of players that they have a list of.
SAVED_ATTRIBUTES = {
    "parents": "parent",
    "firsts": "first",
    "kept_at": "kept_at",
    "begun_at": "begun_at",
    "resets": "resets",
}
