"""Follows an env manager step by step, and checks every transition that it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.nodes.failing_envs import length_of, observed, reward_of

Transition = tuple[int, int, int, float, bool]  # env, seed, step, reward, end


class Follower:
    """Plays with actions that follow from what is seen. `kept` are transitions by env, in order."""

    def __init__(self, envs: Any) -> None:
        self.envs, self.count = envs, envs.spec().count
        self.obs = envs.reset()
        self.kept: list[list[Transition]] = [[] for _ in range(self.count)]
        self.unfinished: list[list[Transition]] = [[] for _ in range(self.count)]
        self.dropped_trajectories = self.dropped_steps = self.episodes = 0
        self.waiting = list(range(self.count))

    def play(self, steps: int) -> None:
        """Step all envs so often."""
        for _ in range(steps):
            actions = self.actions(range(self.count))
            ids = np.arange(self.count)
            self.envs.send(ids, actions)
            self.take(*self.envs.recv(ids))

    def actions(self, ids: Any) -> np.ndarray:
        """What each does next."""
        return np.array([int(self.obs[i].sum()) % 2 for i in ids])

    def take(self, ids: Any, steps: Any) -> None:
        """Check what came of these envs' steps."""
        broken = set(steps.failed)
        episodes = {episode.env_id: episode for episode in steps.episodes}
        for k, env in enumerate(ids.tolist()):
            if k in broken:
                self.dropped_trajectories += 1
                self.dropped_steps += len(self.unfinished[env]) + 1
                self.unfinished[env] = []
                assert env not in episodes
            else:
                self._check(env, k, steps, episodes.get(env))
            self.obs[env] = steps.obs[k]
            assert steps.obs[k][1] == self._next_t(env)

    def _next_t(self, env: int) -> int:
        return len(self.unfinished[env])

    def _check(self, env: int, k: int, steps: Any, episode: Any) -> None:
        before, after = self.obs[env], steps.next_obs[k]
        t = len(self.unfinished[env]) + 1
        seed = self.seed_of(before, env, t)
        action = int(before.sum()) % 2
        np.testing.assert_array_equal(after, observed(seed, t))
        reward = reward_of(seed, t, action)
        assert steps.reward[k] == reward
        end = t == length_of(seed)
        assert (steps.terminated[k], steps.truncated[k]) == (
            end and seed % 2 == 0,
            end and seed % 2 == 1,
        )
        self.unfinished[env].append((env, seed, t, reward, end))
        if end:
            total = sum(one[3] for one in self.unfinished[env])
            assert (episode.total, episode.length) == (total, t)
            self.kept[env] += self.unfinished[env]
            self.unfinished[env] = []
            self.episodes += 1
        else:
            assert episode is None
            np.testing.assert_array_equal(steps.obs[k], after)

    def seed_of(self, before: Any, env: int, t: int) -> int:
        """The episode's seed, found by what is seen of it among those that the env can have."""
        for ahead in range(-40, 1):
            seed: int = self.envs._accounts.seed_of(env, ahead)
            if np.array_equal(before, observed(seed, t - 1)):
                return seed
        raise AssertionError(f"env {env} sees no seed of its own: {before}")

    def check_counts(self) -> None:
        """What the manager says was dropped is what was."""
        counts = self.envs.failures
        assert counts.dropped_trajectories == self.dropped_trajectories
        assert counts.dropped_steps == self.dropped_steps
        assert counts.retries == counts.failures
