"""Playing a fixed number of episodes on each env, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.batch import Array
from flowrl.nodes.envs.base_env_manager import BaseEnvManager
from flowrl.nodes.envs.steps import Episode, episode_metrics
from flowrl.nodes.policies.policy import ActMode


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The episodes that were played, sorted by env and then in the order of time."""

    episodes: Sequence[Episode]
    stop: bool = False  # the goal is reached, and was confirmed

    @property
    def return_mean(self) -> float:
        """The mean return."""
        return self.metrics()["return_mean"]

    def metrics(self) -> dict[str, float]:
        """The episodes in numbers."""
        totals = sorted(episode.total for episode in self.episodes)
        return {**episode_metrics(self.episodes), "return_median": float(np.median(totals))}


def quotas(episodes: int, envs: int) -> Array:
    """How many episodes each env plays: as even as possible, the first envs one more."""
    return episodes // envs + (np.arange(envs) < episodes % envs)


def play(
    envs: BaseEnvManager,
    mode: ActMode,
    episodes: int,
    steps: list[dict[str, Array]] | None = None,
    most_steps: int = 100_000,
) -> list[Episode]:
    """Play every env's quota of episodes; `steps`, if given, collects the columns of each step.

    Which episodes count is settled before any is played. To take the first that end, wherever they
    end, would prefer short ones. An env that has played its quota is not stepped any more.
    An episode of more than `most_steps` may have no end, and nothing else would ever end the wait.
    """
    obs = envs.reset()
    left = quotas(episodes, len(obs))
    ids = np.flatnonzero(left)
    obs, played = obs[ids], []
    taken, begun = 0, np.zeros_like(left)  # steps, and how many there were when an episode began
    due = most_steps  # before so many nothing can be too long
    while len(ids):
        if taken == due:
            due = _next_due(ids, begun, taken, most_steps)
        taken += 1
        action = mode.forward(obs)["action"]
        stepped = envs.advance(action, None if len(ids) == len(left) else ids)
        if steps is not None:
            steps.append(_columns(ids, obs, action, stepped))
        obs = stepped.obs
        if stepped.episodes:
            played += stepped.episodes
            ended = [episode.env_id for episode in stepped.episodes]
            left[ended] -= 1
            begun[ended] = taken
            still = left[ids] > 0
            ids, obs = ids[still], obs[still]
    return sorted(played, key=lambda episode: episode.env_id)


def _next_due(ids: Array, begun: Array, taken: int, most_steps: int) -> int:
    """When the oldest of the episodes under way would be too long; it may be already."""
    oldest = ids[begun[ids].argmin()]
    if (due := int(begun[oldest]) + most_steps) == taken:
        raise ValueError(
            f"env {oldest}: an episode goes on after {most_steps:,} steps; give the env "
            "`max_episode_steps`, or the evaluator more `most_steps`"
        )
    return due


def in_order(steps: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """The columns of all steps, env by env and each in the order of time: (1, N, …)."""
    joined = {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}
    order = np.argsort(joined.pop("env_id"), kind="stable")
    return {name: array[order][None] for name, array in joined.items()}


def _columns(ids: Array, obs: Array, action: Array, stepped: Any) -> dict[str, Array]:
    return {
        "env_id": ids,
        "obs": obs,
        "action": action,
        "reward": stepped.reward,
        "next_obs": stepped.next_obs,
        "terminated": stepped.terminated,
        "truncated": stepped.truncated,
    }
