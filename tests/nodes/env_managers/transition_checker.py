"""Steps an env manager of `FaultyEnv`s, and checks every transition that is kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.nodes.env_managers.failing_envs import length_of, observation_after, reward_of

Transition = tuple[int, int, int, float, bool]  # env, seed, step, reward, end


class TransitionChecker:
    """Chooses actions by what is observed. `kept` are the transitions of finished episodes, by env and in order."""

    def __init__(self, envs: Any) -> None:
        self.envs, self.count = envs, envs.spec().count
        self.obs = envs.reset()
        self.kept: list[list[Transition]] = [[] for _ in range(self.count)]
        self.unfinished: list[list[Transition]] = [[] for _ in range(self.count)]
        self.dropped_trajectories = self.dropped_steps = self.episodes = 0

    def play(self, steps: int) -> None:
        """Step all envs together, this many times."""
        for _ in range(steps):
            actions = self.actions(range(self.count))
            ids = np.arange(self.count)
            self.envs.send(ids, actions)
            self.check(*self.envs.recv(ids))

    def actions(self, ids: Any) -> np.ndarray:
        """The next action of each of these envs."""
        return np.array([int(self.obs[i].sum()) % 2 for i in ids])

    def check(self, ids: Any, steps: Any) -> None:
        """Check the steps of these envs."""
        failed = set(steps.failed)
        episodes = {episode.env_id: episode for episode in steps.episodes}
        for k, env in enumerate(ids.tolist()):
            if k in failed:
                self.dropped_trajectories += 1
                self.dropped_steps += len(self.unfinished[env]) + 1
                self.unfinished[env] = []
                assert env not in episodes
            else:
                self._check_transition(env, k, steps, episodes.get(env))
            self.obs[env] = steps.obs[k]
            assert steps.obs[k][1] == len(self.unfinished[env])

    def _check_transition(self, env: int, k: int, steps: Any, episode: Any) -> None:
        before, after = self.obs[env], steps.next_obs[k]
        t = len(self.unfinished[env]) + 1
        seed = self.seed_of(before, env, t)
        action = int(before.sum()) % 2
        np.testing.assert_array_equal(after, observation_after(seed, t))
        reward = reward_of(seed, t, action)
        assert steps.reward[k] == reward
        end = t == length_of(seed)
        assert (steps.terminated[k], steps.truncated[k]) == (
            end and seed % 2 == 0,
            end and seed % 2 == 1,
        )
        self.unfinished[env].append((env, seed, t, reward, end))
        if end:
            total = sum(transition[3] for transition in self.unfinished[env])
            assert (episode.total, episode.length) == (total, t)
            self.kept[env] += self.unfinished[env]
            self.unfinished[env] = []
            self.episodes += 1
        else:
            assert episode is None
            np.testing.assert_array_equal(steps.obs[k], after)

    def seed_of(self, before: Any, env: int, t: int) -> int:
        """The episode's seed: the only one of those that the env can have which explains the observation."""
        for ahead in range(-40, 1):
            seed: int = self.envs.statistics.next_seed(env, ahead)
            if np.array_equal(before, observation_after(seed, t - 1)):
                return seed
        raise AssertionError(f"no episode of env {env} begins with this observation: {before}")

    def check_counts(self) -> None:
        """Check that the manager counts what was dropped."""
        counts = self.envs.failures
        assert counts.dropped_trajectories == self.dropped_trajectories
        assert counts.dropped_steps == self.dropped_steps
        assert counts.retries == counts.failures
