"""The columns of agents that act by themselves: what the record of an env's agents and its actions consist of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.nodes.envs.info import PREFIX, info_columns
from flowrl.nodes.envs.spec import EnvSpec, env_columns, env_part
from flowrl.nodes.observations import SEPARATOR, NestedColumns, ObsColumns, columns_under

OBS = "obs"  # of each agent: its first observation, or what its action led to
ACTIVE = "active"  # whether it acts in the next step
ACTED = "acted"  # whether it did in this one
# Whether a step of it is complete: the reward and the flags are those since its last action. If agents act in turn,
# this may have been in an earlier step. Otherwise it was in this one, and records do not have this flag.
COMPLETED = "completed"
REWARD, TERMINATED, TRUNCATED = "reward", "terminated", "truncated"
INFO = PREFIX  # before the names of the listed entries of its `info`
RETURN, LENGTH = "return", "length"  # of its episode so far, in the env's own rewards
SEED = "seed"  # of the env's episode; NO_SEED if it was reset without one
NO_SEED = -1


@dataclass(frozen=True, slots=True)
class AgentColumns:
    """The number of agents in an env, and the columns of one agent's observations and actions."""

    count: int
    obs: ObsColumns
    action: Column
    info: Schema = field(default_factory=dict)  # the listed entries of `info`
    turns: bool = False  # whether an agent's step may be complete in a later step of the env

    @property
    def record(self) -> NestedColumns:
        """The observation of the env: a record of all agents."""
        obs = {name: self._of_all(column) for name, column in columns_under(OBS, self.obs).items()}
        flags = {name: Column("bool", (self.count,)) for name in self._step_flags}
        ends = {name: Column("bool", (self.count,)) for name in (TERMINATED, TRUNCATED)}
        numbers = {REWARD: "float64", RETURN: "float64", LENGTH: "int64"}
        scalars = {name: Column(dtype, (self.count,)) for name, dtype in numbers.items()}
        info = {
            INFO + name: Column(as_bits(column), (self.count, *column.shape))
            for name, column in self.info.items()
        }
        return NestedColumns({**obs, **flags, **ends, **scalars, **info, SEED: Column("int64")})

    @property
    def actions(self) -> Column:
        """The action of the env: one for each agent, in the order of its possible agents."""
        return self._of_all(self.action)

    @property
    def _step_flags(self) -> tuple[str, ...]:
        return (ACTIVE, ACTED, COMPLETED) if self.turns else (ACTIVE, ACTED)

    def _of_all(self, column: Column) -> Column:
        return Column(column.dtype, (self.count, *column.shape))


@dataclass(frozen=True, slots=True)
class GroupColumns:
    """The agents of an env in groups, by the names of these. Each group has a part of the record and of the action."""

    groups: Mapping[str, AgentColumns]

    @property
    def record(self) -> NestedColumns:
        """The observation of the env: the records of all groups."""
        parts = {group: agents.record for group, agents in self.groups.items()}
        return NestedColumns(
            {n: c for group, part in parts.items() for n, c in columns_under(group, part).items()}
        )

    @property
    def actions(self) -> Column:
        """The action of the env: those of all agents one after another, of a type that holds each without a change."""
        each = [agents.actions for agents in self.groups.values()]
        dtype = np.result_type(*(column.dtype for column in each))
        return Column(str(dtype), (sum(math.prod(column.shape) for column in each),))

    def split_action(self, action: Array) -> dict[str, Array]:
        """The actions (N, …) of each group's agents."""
        found, first = {}, 0
        for group, agents in self.groups.items():
            column = agents.actions
            end = first + math.prod(column.shape)
            found[group] = action[first:end].reshape(column.shape).astype(column.dtype)
            first = end
        return found


def part_dtype(record: np.dtype[Any], group: str) -> np.dtype[Any]:
    """The dtype with which records of all groups are viewed as those of one."""
    prefix = f"{group}{SEPARATOR}"
    fields: Mapping[str, Any] = record.fields or {}
    own = {name.removeprefix(prefix): f for name, f in fields.items() if name.startswith(prefix)}
    return np.dtype(
        {
            "names": [*own],
            "formats": [one[0] for one in own.values()],
            "offsets": [one[1] for one in own.values()],
            "itemsize": record.itemsize,
        }
    )


def as_bits(column: Column) -> str:
    """The dtype of an entry of `info` in records. Floats are unsigned integers there, as records hold no NaN."""
    dtype = np.dtype(column.dtype)
    return f"uint{8 * dtype.itemsize}" if dtype.kind == "f" else column.dtype


def agent_columns(env: Any) -> AgentColumns | None:
    """The agents of an env part, if each is a row of its own."""
    part = env_part(env)
    return part.agent_columns() if hasattr(part, "agent_columns") else None


def group_columns(env: Any) -> GroupColumns | None:
    """The groups of agents of an env part, if it has any."""
    part = env_part(env)
    return part.group_columns() if hasattr(part, "group_columns") else None


def env_spec(env: Any, count: int) -> EnvSpec:
    """The spec of `count` such envs."""
    part = env_part(env)
    obs, action = env_columns(part)  # raises if the env cannot be made
    if (groups := group_columns(part)) is not None:
        specs = {name: _agents_spec(agents, count) for name, agents in groups.groups.items()}
        return EnvSpec(obs, action, count, groups=specs)
    agents = agent_columns(part)
    if agents is None:
        return EnvSpec(obs, action, count, info=info_columns(part))
    return _agents_spec(agents, count)


def _agents_spec(agents: AgentColumns, count: int) -> EnvSpec:
    n = agents.count
    return EnvSpec(agents.obs, agents.action, count * n, n, True, together=n, info=agents.info)
