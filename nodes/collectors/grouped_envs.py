"""Envs whose agents are in groups: each group has rows as if it had envs of its own, and all of them step together."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.collectors.joined_managers import join_managers
from flowrl.nodes.envs.actions import convert_actions
from flowrl.nodes.envs.agent_columns import part_dtype
from flowrl.nodes.envs.agent_rows import AgentRows
from flowrl.nodes.envs.spec import EnvSpec
from flowrl.nodes.envs.steps import Steps


class GroupedEnvs:
    """The rows of each group of one manager's envs, or of several managers'.

    Every group gives its actions, and takes its part of the step that they lead to. The envs step when the first group
    asks for its part.
    """

    def __init__(self, managers: Any) -> None:
        self.envs = join_managers(managers)
        self._spec: EnvSpec = self.envs.spec()
        self.count = self._spec.count  # of the envs
        self.rows = {name: AgentRows(GroupManager(self, name)) for name in self._spec.groups}
        self.steps: Steps | None = None  # the last step of the envs
        self._first_records: Array | None = None
        self._actions: dict[
            str, Array
        ] = {}  # of the groups that have given theirs for the next step
        self._waiting: set[str] = set()  # the groups that have not taken the last step

    def spec(self) -> EnvSpec:
        """The record of all groups, the action of an env, and the number of envs."""
        return self._spec

    def seed(self, seed: int, dynamic_seeds: bool = True) -> None:
        """Seed the episodes from the next reset on, as `EnvManager.seed` does."""
        self.envs.seed(seed, dynamic_seeds)

    def reset(self) -> None:
        """Begin a new episode in each env. The groups read their first observations by their own `reset`."""
        self._actions, self._waiting = {}, set()
        self._first_records = self.envs.reset()

    def first_records(self) -> Array:
        """The records of the last reset."""
        if self._first_records is None:
            self.reset()
        records: Any = self._first_records
        return records

    def give_actions(self, group: str, ids: Array, actions: Array) -> None:
        """Take the actions (B, N, …) of a group in these envs for the next step."""
        column = self._spec.groups[group].action
        flat = actions.reshape(len(ids) * actions.shape[1], *actions.shape[2:])
        converted = convert_actions(flat, len(flat), column)
        self._actions[group] = converted.reshape(len(ids), -1)

    def take_steps(self, group: str, ids: Array) -> Steps:
        """The steps of these envs, for one of the groups."""
        if not self._waiting:
            each = [self._actions.pop(name).astype(self._spec.action.dtype) for name in self.rows]
            all_step = len(ids) == self.count
            self.steps = self.envs.advance(np.concatenate(each, 1), None if all_step else ids)
            self._waiting = {*self.rows}
        self._waiting.remove(group)
        assert self.steps is not None
        return self.steps


class GroupManager:
    """What a manager would be whose envs observe the record of one group alone; `AgentRows` makes rows of it."""

    def __init__(self, envs: GroupedEnvs, group: str) -> None:
        self._envs, self._group = envs, group
        self._dtype = part_dtype(np.dtype(envs.spec().obs.dtype), group)

    def spec(self) -> EnvSpec:
        return self._envs.spec().groups[self._group]

    def reset(self) -> Array:
        """The group's part of what all groups observe after `GroupedEnvs.reset`."""
        return self._part(self._envs.first_records())

    def send(self, ids: Array, actions: Array) -> None:
        self._envs.give_actions(self._group, ids, actions)

    def recv(self, ids: Array, least: int = 1) -> tuple[Array, Steps]:
        steps = self._envs.take_steps(self._group, ids)
        part = steps._replace(obs=self._part(steps.obs), next_obs=self._part(steps.next_obs))
        return ids, part

    def _part(self, records: Array) -> Array:
        part: Array = records.view(self._dtype)
        return part
