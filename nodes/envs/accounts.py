"""What is known of each env's episode: its seed, its return so far, its length, how many ended."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.batch import Array
from flowrl.nodes.envs.steps import Episode


class Accounts:
    """The episodes of some envs. The seed of env i's episode k follows from `seed`, i and k alone:
    so it is the same however many envs there are, whoever begins it, and whenever."""

    def __init__(self, count: int, seed: int, dynamic: bool) -> None:
        self.count = count
        self.seed, self._dynamic = seed, dynamic
        self._begun = np.zeros(count, np.int64)
        self.restart()

    def restart(self) -> None:
        """All begin anew; with fixed seeds, at the first episode."""
        if not self._dynamic:
            self._begun[:] = 0
        count = self.count
        self.totals, self.lengths = np.zeros(count), np.zeros(count, np.int64)
        self.ended = np.zeros(count, np.int64)
        self.seeds = [0] * count  # of the episodes that are under way

    def seed_of(self, index: int, ahead: int = 0) -> int:
        """The seed of the env's next episode, or of one after that."""
        episode = f"{self.seed}/{index}/{self._begun[index] + ahead}".encode()
        digest = hashlib.blake2b(episode, digest_size=4).digest()
        return int.from_bytes(digest, "little") >> 1  # 31 bits: some envs take no more

    def begin(self, index: int) -> int:
        """The env begins its next episode; its seed."""
        seed = self.seed_of(index)
        self._begun[index] += 1
        self.seeds[index] = seed
        self.totals[index], self.lengths[index] = 0.0, 0
        return seed

    def skip(self, index: int) -> None:
        """The env's next episode cannot be begun: the one after it is the next."""
        self._begun[index] += 1

    def count_steps(self, at: Sequence[int] | Array | None, reward: Array) -> None:
        """Each of these envs (None: all) took a step that was worth so much."""
        if at is None:  # without the index it is twice as fast
            self.totals += reward
            self.lengths += 1
        else:
            self.totals[at] += reward
            self.lengths[at] += 1

    def end(self, index: int, total: float | None = None) -> Episode:
        """The env's episode has ended; an env that rewrites rewards knows the `total` itself."""
        self.ended[index] += 1
        known = float(self.totals[index]) if total is None else total
        return Episode(int(index), known, int(self.lengths[index]))

    def state_dict(self) -> dict[str, Any]:
        """Where every env is."""
        return {
            "seed": self.seed,
            "begun": self._begun.copy(),
            "totals": self.totals.copy(),
            "lengths": self.lengths.copy(),
            "ended": self.ended.copy(),
            "seeds": list(self.seeds),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.seed = int(state["seed"])
        for name in ("totals", "lengths", "ended"):
            setattr(self, name, np.array(state[name]))
        self._begun = np.array(state["begun"], np.int64)
        self.seeds = [int(seed) for seed in state["seeds"]]
