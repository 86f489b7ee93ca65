"""One group of agents as a `group_collector` has it: the policy that acts, and the rows that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Batch, Schema
from flowrl.core.context import Context
from flowrl.core.state import State
from flowrl.nodes.collectors.actor import Actor
from flowrl.nodes.collectors.row_slicer import PendingSteps, RowSlicer, sliced_schema
from flowrl.nodes.collectors.transitions import row_schema, step_schema
from flowrl.nodes.devices import available_device
from flowrl.nodes.envs.agent_rows import AgentRows
from flowrl.nodes.envs.info import info_schema
from flowrl.nodes.envs.spec import EnvSpec
from flowrl.nodes.envs.steps import Episode
from flowrl.nodes.nstep import nstep_of
from flowrl.nodes.origin import (
    LINK_COLUMNS,
    NO_WEIGHTS_VERSION,
    OriginTracker,
    collector_number,
    origin_schema,
)
from flowrl.nodes.policy import Policy, act_mode_state, load_act_mode_state, use_device


def stream_schema(spec: EnvSpec, policy: Policy, origin: bool) -> Schema:
    """The columns of a group's rows."""
    return sliced_schema(
        row_schema(spec.obs, spec.action, _extra_columns(spec, policy, origin), policy.gamma),
        policy,
    )


def _extra_columns(spec: EnvSpec, policy: Policy, origin: bool) -> Schema:
    columns = {**policy.collect_columns(), **policy.memory_columns()}
    return {**columns, **_origin_columns(spec, policy, origin), **info_schema(spec)}


def _origin_columns(spec: EnvSpec, policy: Policy, origin: bool) -> Schema:
    """The origin columns of rows; those that link them, where a buffer is to sum their rewards."""
    columns = origin_schema(spec.count)
    if origin:
        return columns
    return {name: columns[name] for name in LINK_COLUMNS if nstep_of(policy) != 1}


class GroupStream:
    """Lets a group's policy act, step by step, and cuts rows from the steps that are complete."""

    def __init__(
        self, name: str, rows: AgentRows, policy: Policy, config: Any, context: Context
    ) -> None:
        """`rows` are those of the group; `config` is that of the collector."""
        self._rows, self._policy, self._origin_wanted = rows, policy, config.origin
        self._ctx = context
        self._weights: State | None = None
        self._mode: Any = policy.collect_mode(context.seed_for(f"collect/{name}"))
        use_device(self._mode, available_device(config.device))
        self._slicer = RowSlicer.for_policy(policy)
        self._ids = np.arange(rows.spec().count)
        # since the last report:
        self.episodes: list[Episode] = []
        self.dropped_steps = 0  # of failed episodes
        self.restart()

    def restart(self) -> None:
        """Discard all steps that are in no row yet, and collect from new episodes, which have begun."""
        spec = self._rows.spec()
        columns = _extra_columns(spec, self._policy, self._origin_wanted)
        self._origin: OriginTracker | None = None
        if _origin_columns(spec, self._policy, self._origin_wanted):
            number = collector_number(self._ctx)
            self._origin = OriginTracker(number, spec.count, self._weights_version)
        self._actor = Actor(self._rows, self._policy.memory_columns(), self._origin, self._ctx)
        self._actor.set_mode(self._mode, self._policy.collect_columns())
        self._pending = PendingSteps(step_schema(spec.obs, spec.action, columns), spec.count)

    def begin_episodes(self) -> None:
        """Take the first observations of the episodes that have begun in all envs."""
        self._actor.reset()

    def load(self, weights: State) -> None:
        """Act with these weights from now on."""
        if weights is not self._weights:
            self._mode.load(weights)
            self._weights = weights
            if self._origin is not None:
                self._origin.weights = weights.version

    def begin_step(self) -> None:
        """Choose the group's next actions."""
        self._actor.send(self._ids)

    def end_step(self) -> int:
        """Take what the actions led to; return the number of episodes that ended."""
        collected = self._actor.receive(self._ids)
        self.dropped_steps += self._pending.add(collected)
        self.episodes += collected.episodes
        return len(collected.episodes)

    @property
    def complete_steps(self) -> int:
        """The steps in rows that are complete."""
        return self._slicer.slice_count(self._pending.counts) * self._slicer.stride

    def take_rows(self) -> Batch:
        """Remove all rows that are complete, and return them, sorted by agent and then by time."""
        return self._pending.take(self._slicer, self._slicer.slice_count(self._pending.counts))

    @property
    def _weights_version(self) -> int:
        return NO_WEIGHTS_VERSION if self._weights is None else self._weights.version

    def state_dict(self) -> dict[str, Any]:
        """The state that the next rows depend on, without the weights and the envs."""
        return {
            "origin": None if self._origin is None else self._origin.state_dict(),
            "actor": self._actor.state_dict(),
            "mode": act_mode_state(self._mode),
            "pending_steps": self._pending.state_dict(),
            "episodes": [tuple(episode) for episode in self.episodes],
            "dropped_steps": self.dropped_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._actor.load_state_dict(state["actor"])
        if self._origin is not None:
            self._origin.load_state_dict(state["origin"])
        load_act_mode_state(self._mode, state["mode"])
        self._pending.load_state_dict(state["pending_steps"])
        self.episodes = [Episode(*episode) for episode in state["episodes"]]
        self.dropped_steps = int(state["dropped_steps"])
