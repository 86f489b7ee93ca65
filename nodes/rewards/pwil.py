"""Primal Wasserstein imitation learning (Dadashi et al. 2021): a reward for steps near those of the expert."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Column
from flowrl.core.config import param
from flowrl.nodes.imitation import ExpertRewardModel
from flowrl.nodes.origin import COLLECTOR_COLUMN, ENV_COLUMN, STEP_COLUMN
from flowrl.nodes.reward_model import as_floats
from flowrl.nodes.reward_steps import StepColumns

LEAST_STD = 1e-6  # a dimension in which the expert varies less is not scaled
NO_STEP = -1


class Pwil(ExpertRewardModel):
    """Rewards each step by how far it is from the expert's steps that earlier steps of its episode have not used up.

    An episode is coupled with the expert's steps greedily: each of its steps takes the nearest of them, until they have
    as much weight as the step. This bounds the Wasserstein distance of both from above. Steps with origin columns are
    followed from token to token; other steps are episodes of their own from one `last` to the next.
    """

    reads = ("obs", "action")
    unsaved = ("steps", "_expert_points")

    class Config(ExpertRewardModel.Config):
        horizon_steps: int = param(
            1000, "steps of a full episode; each has this share of the weight of all", ge=1
        )
        scale: float = param(5.0, "the largest reward (alpha)", gt=0)
        sharpness: float = param(5.0, "how fast the reward falls with the distance (beta)", gt=0)

    @classmethod
    def check(cls, config: Any, steps: StepColumns) -> None:
        steps.under("last")

    def begin(self) -> None:
        self.keys = np.empty((0, 2), np.int64)  # collector and env of each episode
        self.next_step = np.empty(0, np.int64)  # of its env; NO_STEP after the end of an episode
        self.length = np.empty(0, np.int64)  # its steps so far
        self.unused = np.empty((0, 0), np.int64)  # weight of each of the expert's steps, by episode
        self._expert_points: tuple[Array, Array] | None = None

    def keep_expert(self, expert: Batch) -> None:
        """Add steps of the expert. With them, all episodes begin anew."""
        super().keep_expert(expert)
        if len(expert):
            self.begin()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._expert_points = None

    def estimate_and_learn(self, data: Batch) -> Array:
        columns = self.step_arrays(data)
        count = len(columns["action"])
        if not len(self.expert_steps):  # as in a warm-up
            return np.zeros(count, np.float32)
        mean_distance = np.empty(count)
        atoms, scale = self.expert_points()
        agent = self.points(columns) / scale
        for row, (key, step, ends) in enumerate(_ways(data, count)):
            place = self._place_of_episode(key, step)
            distance = np.sqrt(np.square(atoms - agent[row]).sum(1))
            mean_distance[row] = coupled_distance(distance, self.unused[place], len(atoms))
            self.length[place] += 1
            self.next_step[place] = NO_STEP if ends else step + 1
        c, size = self.config, np.sqrt(agent.shape[1])
        return as_floats(c.scale * np.exp(-c.sharpness / size * mean_distance))  # equation 7

    def expert_points(self) -> tuple[Array, Array]:
        """The expert's steps as points (D, n) in units of their deviations, and these units (n,)."""
        if self._expert_points is None:
            points = self.points(self.expert_steps.all())
            std = points.std(0)
            scale = np.where(std < LEAST_STD, 1.0, std)
            self._expert_points = points / scale, scale
        return self._expert_points

    def points(self, columns: Mapping[str, Array]) -> Array:
        """Steps as points (N, n): all numbers of their observation and action; a choice of n is n numbers."""
        assert self.steps is not None
        known = self.steps.columns
        flat = [_numbers(columns[name], known[name]) for name in sorted(columns)]
        return np.concatenate(flat, 1)

    def _place_of_episode(self, key: tuple[int, int], step: int) -> int:
        """The place of the episode to which a step belongs; it begins anew if the step does not continue it."""
        found = np.flatnonzero((self.keys == key).all(1))
        horizon = self.config.horizon_steps
        if not len(found):
            self.keys = np.append(self.keys, [key], 0)
            self.next_step = np.append(self.next_step, NO_STEP)
            self.length = np.append(self.length, 0)
            new = np.full((1, len(self.expert_steps)), horizon)
            self.unused = np.concatenate([self.unused.reshape(-1, new.shape[1]), new])
            return len(self.keys) - 1
        place = int(found[0])
        if self.next_step[place] != step or self.length[place] == horizon:
            self.unused[place], self.length[place] = horizon, 0
        return place


def coupled_distance(distance: Array, unused: Array, weight: int) -> float:
    """Couple a step of this weight with the nearest steps of the expert; return its mean distance from them.

    `distance` (D,) is that from each of the expert's steps, and `unused` (D,) their weights, from which what the step
    takes is subtracted (algorithm 1).
    """
    distance = np.where(unused > 0, distance, np.inf)
    total, left = 0.0, weight
    while left:
        nearest = distance.argmin()
        taken = min(left, int(unused[nearest]))
        total += taken * distance[nearest]
        unused[nearest] -= taken
        distance[nearest] = np.inf
        left -= taken
    return float(total / weight)


def _ways(data: Batch, count: int) -> Iterator[tuple[tuple[int, int], int, bool]]:
    """Yield of each step the collector and env that it is from, its number there, and whether its episode ends."""
    ends = data["last"].reshape(-1)
    if STEP_COLUMN not in data:
        unknown = (NO_STEP, NO_STEP)
        yield from zip([unknown] * count, range(count), ends.tolist(), strict=True)
        return
    ends = (data["terminated"] | data["truncated"]).reshape(-1)
    columns = (
        data[name].reshape(-1).tolist() for name in (COLLECTOR_COLUMN, ENV_COLUMN, STEP_COLUMN)
    )
    for collector, env, step, has_ended in zip(*columns, ends.tolist(), strict=True):
        yield (collector, env), step, has_ended


def _numbers(values: Array, column: Column) -> Array:
    """The values of a column as numbers (N, n)."""
    if column.n is not None:
        values = np.eye(column.n)[values]
    return values.reshape(len(values), -1).astype(np.float64)
