"""What is known of each env's episode: its seed, its return so far, its length."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.envs.steps import Episode


class EpisodeStatistics:
    """The episodes of some envs. The seed of env i's episode k follows from `seed`, i and k alone:
    so it is the same however many envs there are, whoever begins it, and whenever."""

    def __init__(self, count: int, seed: int, dynamic: bool) -> None:
        self.count = count
        self.seed, self._dynamic = seed, dynamic
        self._begun = [0] * count
        self.restart()

    def restart(self) -> None:
        """All begin anew; with fixed seeds, at the first episode."""
        count = self.count
        if not self._dynamic:
            self._begun = [0] * count
        self.totals = np.zeros(count)
        self._turns = 0  # steps that all envs took together: to count these costs next to nothing
        self._since = np.zeros(
            count, np.int64
        )  # the turn before each episode, less its other steps
        self.seeds = [0] * count  # of the episodes that are under way

    @property
    def lengths(self) -> Array:
        """The steps of each episode so far; a new array."""
        return self._turns - self._since

    def length(self, index: int) -> int:
        """The steps of an env's episode so far."""
        return self._turns - int(self._since[index])

    def seed_of(self, index: int, ahead: int = 0) -> int:
        """The seed of the env's next episode, or of one after that."""
        episode = b"%d/%d/%d" % (self.seed, index, self._begun[index] + ahead)
        digest = hashlib.blake2b(episode, digest_size=4).digest()
        return int.from_bytes(digest, "little") >> 1  # 31 bits: some envs take no more

    def begin(self, index: int) -> int:
        """The env begins its next episode; its seed."""
        seed = self.seed_of(index)
        self._begun[index] += 1
        self.seeds[index] = seed
        self.totals[index], self._since[index] = 0.0, self._turns
        return seed

    def forget(self, at: Array) -> None:
        """What these envs did since their episodes began does not count."""
        self.totals[at], self._since[at] = 0.0, self._turns

    def skip(self, index: int) -> None:
        """The env's next episode cannot be begun: the one after it is the next."""
        self._begun[index] += 1

    def count_steps(self, at: Sequence[int] | Array | None, reward: Array) -> None:
        """Each of these envs (None: all) took a step that was worth so much."""
        if at is None:  # without the index it is twice as fast
            self.totals += reward
            self._turns += 1
        else:
            self.totals[at] += reward
            self._since[at] -= 1

    def end(self, index: int, total: float | None = None) -> Episode:
        """The env's episode has ended; an env that rewrites rewards knows the `total` itself."""
        known = float(self.totals[index]) if total is None else total
        return Episode(int(index), known, self.length(index))

    def end_several(self, at: Array) -> list[Episode]:
        """The same for several at once: where many envs step together, some end at every step."""
        total, since, turns = self.totals.item, self._since.item, self._turns
        return [Episode(index, total(index), turns - since(index)) for index in at.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """Where every env is."""
        return {
            "seed": self.seed,
            "begun": np.array(self._begun),
            "totals": self.totals.copy(),
            "lengths": self.lengths,
            "seeds": list(self.seeds),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        saved = len(state["seeds"])
        if saved != self.count:
            raise ValueError(f"{saved} envs were saved, and there are {self.count}; have as many")
        self.seed = int(state["seed"])
        self.totals = np.array(state["totals"])
        self._turns, self._since = 0, -np.array(state["lengths"], np.int64)
        self._begun, self.seeds = (
            [int(number) for number in state[name]] for name in ("begun", "seeds")
        )
