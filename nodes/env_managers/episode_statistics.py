"""The episodes of a manager's envs: their seeds, and the returns and lengths so far."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.envs.steps import Episode


class EpisodeStatistics:
    """The seed of env i's episode k follows from `seed`, i and k alone.

    So it does not depend on the number of envs, or on when and where the episode begins. The index i counts from
    `first_env` on, so that several managers can have different envs of one sequence.
    """

    def __init__(self, count: int, seed: int, dynamic_seeds: bool, first_env: int = 0) -> None:
        self.count = count
        self.seed, self.dynamic_seeds, self.first_env = seed, dynamic_seeds, first_env
        self._started = [0] * count  # episodes of each env
        self.restart()

    def restart(self) -> None:
        """Forget the current episodes. Without dynamic seeds, the first episodes come next."""
        count = self.count
        if not self.dynamic_seeds:
            self._started = [0] * count
        self.returns = np.zeros(count)
        # An episode's length is the number of steps of all envs together, minus the env's offset. So a step of all
        # envs is counted in constant time.
        self._common_steps = 0
        self._offsets = np.zeros(count, np.int64)
        self.seeds = [0] * count  # of the current episodes

    @property
    def lengths(self) -> Array:
        """The lengths of the current episodes, as a new array."""
        return self._common_steps - self._offsets

    def length(self, index: int) -> int:
        """The length of one env's current episode."""
        return self._common_steps - int(self._offsets[index])

    def next_seed(self, index: int, ahead: int = 0) -> int:
        """The seed of the env's next episode, or of the one `ahead` episodes later."""
        numbers = self.seed, self.first_env + index, self._started[index] + ahead
        episode = b"%d/%d/%d" % numbers
        digest = hashlib.blake2b(episode, digest_size=4).digest()
        return int.from_bytes(digest, "little") >> 1  # 31 bits: some envs accept no more

    def start_episode(self, index: int) -> int:
        """Start the env's next episode, and return its seed."""
        seed = self.next_seed(index)
        self._started[index] += 1
        self.seeds[index] = seed
        self.returns[index], self._offsets[index] = 0.0, self._common_steps
        return seed

    def skip_episode(self, index: int) -> None:
        """Skip the env's next episode, because its reset failed."""
        self._started[index] += 1

    def discard_steps(self, at: Array) -> None:
        """Set the returns and lengths of these envs' episodes back to 0."""
        self.returns[at], self._offsets[at] = 0.0, self._common_steps

    def count_steps(self, at: Sequence[int] | Array | None, reward: Array) -> None:
        """Count one step of each of these envs (None: of all), with its reward."""
        if at is None:  # twice as fast without an index
            self.returns += reward
            self._common_steps += 1
        else:
            self.returns[at] += reward
            self._offsets[at] -= 1

    def finished_episode(self, index: int, own_return: float | None = None) -> Episode:
        """The env's episode, which has ended. An env whose wrappers change rewards gives its return itself."""
        total = float(self.returns[index]) if own_return is None else own_return
        return Episode(int(index), total, self.length(index))

    def finished_episodes(self, at: Array) -> list[Episode]:
        """The episodes of several envs. This is faster than one by one, and a large pool ends some in every step."""
        total, offset, steps = self.returns.item, self._offsets.item, self._common_steps
        return [Episode(index, total(index), steps - offset(index)) for index in at.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """The state of all envs' episodes."""
        return {
            "seed": self.seed,
            "first_env": self.first_env,
            "begun": np.array(self._started),
            "totals": self.returns.copy(),
            "lengths": self.lengths,
            "seeds": list(self.seeds),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        saved = len(state["seeds"])
        if saved != self.count:
            raise ValueError(
                f"env manager: the state is that of {saved} envs, and this manager has {self.count}; "
                "load it into one with the same count"
            )
        self.seed, self.first_env = int(state["seed"]), int(state["first_env"])
        self.returns = np.array(state["totals"])
        self._common_steps, self._offsets = 0, -np.array(state["lengths"], np.int64)
        self._started = [int(number) for number in state["begun"]]
        self.seeds = [int(seed) for seed in state["seeds"]]
