"""An env manager whose episodes and failures are listed, and whose envs become ready in random order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.nodes.envs.spec import EnvSpec
from flowrl.nodes.envs.steps import Episode, Steps


class ScriptedEnvs:
    """Observes [env, episode, t]. Episode k of env e has `lengths[e][k % n]` steps, and terminates.

    With `fails[e, k]` it fails after this number of steps instead, and the next episode begins.
    """

    def __init__(
        self, lengths: list[list[int]], fails: Mapping[tuple[int, int], int] | None = None
    ) -> None:
        self.lengths, self.fails = lengths, fails or {}
        self.rng = np.random.default_rng(0)  # chooses the envs that are ready
        self.sent: list[int] = []
        self.served: list[int] = []  # the number of envs in each call of the policy
        self.steps = 0

    def spec(self) -> EnvSpec:
        return EnvSpec(Column("float32", (3,)), Column("int64", n=3), len(self.lengths))

    def reset(self) -> Array:
        assert not self.sent, "a step is pending"
        count = len(self.lengths)
        self.episode, self.t = getattr(self, "episode", -np.ones(count, int)) + 1, np.zeros(count)
        return self.observe(range(count))

    def advance(self, actions: Array, ids: Any = None) -> Steps:
        at = range(len(self.lengths)) if ids is None else ids
        self.send(at, actions)
        return self.recv(at)[1]

    def send(self, ids: Any, actions: Array) -> None:
        assert len(ids) == len(actions)
        assert not set(ids) & set(self.sent), "sent twice"
        self.served.append(len(ids))
        self.sent += [int(i) for i in ids]

    def recv(self, ids: Any = None, least: int = 1) -> tuple[Array, Steps]:
        if ids is None:
            assert 1 <= least <= len(self.sent), "the wait would never end"
            ready = self.rng.permutation(self.sent)
            ids = ready[: self.rng.integers(least, len(ready) + 1)]
        at = [int(i) for i in ids]
        for i in at:
            self.sent.remove(i)
        return np.array(at), self.step_envs(at)

    def step_envs(self, at: list[int]) -> Steps:
        self.steps += len(at)
        self.t[at] += 1
        reached, episodes, broken, over = self.observe(at), [], [], np.zeros(len(at), bool)
        for k, i in enumerate(at):
            lasts = self.lengths[i][self.episode[i] % len(self.lengths[i])]
            if self.t[i] == self.fails.get((i, int(self.episode[i]))):
                broken.append(k)
            elif self.t[i] == lasts:
                episodes.append(Episode(i, float(lasts), lasts))
                over[k] = True
            else:
                continue
            self.episode[i] += 1
            self.t[i] = 0
        flags = over | np.isin(np.arange(len(at)), broken)  # the flags of invalid rows mean nothing
        rewards = np.ones(len(at), np.float32)
        return Steps(self.observe(at), rewards, flags, flags & ~over, reached, episodes, broken)

    def observe(self, at: Any) -> Array:
        at = list(at)
        return np.stack([at, self.episode[at], self.t[at]], 1).astype(np.float32)
