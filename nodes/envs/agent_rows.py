"""Agents that share a policy: each is a row of its own, a *lane*, to whoever acts.

To its manager such an env is one env, stepped, failed, saved and begun anew as a whole: in one record
it observes what all its agents saw and got. `lanes` makes rows of agents out of the rows of envs:
agent k of env i is lane i * N + k. What is needed for that is all in the records, so lanes have no
state, and managers know nothing of agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.nodes.envs.spec import EnvSpec, env_columns, env_part
from flowrl.nodes.envs.steps import Episode, Steps
from flowrl.nodes.models.features import ACTION_MASK
from flowrl.nodes.observations import NestedColumns, ObsColumns, columns_under

SEEN = "seen"  # by each agent: its first observation, or what its action led to
PLAYS = "plays"  # whether it acts in the next step
ACTED = "acted"  # whether it did in this one; if not, its reward and flags are void
REWARD, TERMINATED, TRUNCATED = "reward", "terminated", "truncated"
TOTAL, LENGTH = "total", "length"  # of its episode so far, in the env's own rewards


@dataclass(frozen=True, slots=True)
class AgentColumns:
    """How many agents an env has, and what one of them sees and does."""

    count: int
    obs: ObsColumns
    action: Column

    @property
    def record(self) -> NestedColumns:
        """What the env observes: of all agents at once."""
        seen = {
            name: self._of_all(column) for name, column in columns_under(SEEN, self.obs).items()
        }
        flags = {name: Column("bool", (self.count,)) for name in (PLAYS, ACTED)}
        ends = {name: Column("bool", (self.count,)) for name in (TERMINATED, TRUNCATED)}
        numbers = {REWARD: "float64", TOTAL: "float64", LENGTH: "int64"}
        told = {name: Column(dtype, (self.count,)) for name, dtype in numbers.items()}
        return NestedColumns({**seen, **flags, **ends, **told})

    @property
    def actions(self) -> Column:
        """What the env takes: an action for each agent, in the order of its possible agents."""
        return self._of_all(self.action)

    def _of_all(self, column: Column) -> Column:
        return Column(column.dtype, (self.count, *column.shape))


def agent_columns(env: Any) -> AgentColumns | None:
    """The agents of an env part, where each is a row of its own."""
    part = env_part(env)
    return part.each_agent() if hasattr(part, "each_agent") else None


def env_spec(env: Any, count: int) -> EnvSpec:
    """What is told of so many such envs."""
    part = env_part(env)
    obs, action = env_columns(part)  # says what is wrong with it
    agents = agent_columns(part)
    if agents is None:
        return EnvSpec(obs, action, count)
    return EnvSpec(agents.obs, agents.action, count * agents.count, agents.count)


def as_agent_rows(envs: Any) -> Any:
    """A manager, or whatever stands for one, as a policy sees it: a row is what acts for itself."""
    return envs if isinstance(envs, AgentRows) or envs.spec().agents == 1 else AgentRows(envs)


class AgentRows:
    """The agents of a manager's envs. Those of one env are stepped together, side by side in order."""

    def __init__(self, envs: Any) -> None:
        self.envs = envs
        self._spec: EnvSpec = envs.spec()
        self._dtype = np.dtype(self._spec.obs.dtype)
        blank = np.zeros(self._spec.obs.shape, self._dtype)
        if blank.dtype.names is not None and ACTION_MASK in blank.dtype.names:
            blank[ACTION_MASK] = 1  # a policy must find something to do
        self._blank = blank

    def spec(self) -> EnvSpec:
        """One agent's columns, how many agents there are in all, and in each env."""
        return self._spec

    def reset(self) -> Array:
        """Begin a new episode in each env; gives what each agent sees first (B, …)."""
        return self.to_act_on(self.envs.reset())

    def advance(self, actions: Array, ids: Sequence[int] | Array | None = None) -> Steps:
        """Step all envs, or those whose lanes these are."""
        at = np.arange(self._spec.count) if ids is None else np.asarray(ids)
        own = self._own(at)
        steps = self.envs.advance(self._of_envs(actions, len(at)), None if ids is None else own)
        return self._of_lanes(at, steps)

    def send(self, ids: Array, actions: Array) -> None:
        """Begin to step these lanes; of an env, all or none."""
        at = np.asarray(ids)
        self.envs.send(self._own(at), self._of_envs(actions, len(at)))

    def recv(self, ids: Array | None = None, least: int = 1) -> tuple[Array, Steps]:
        """The steps of these lanes; without `ids`, of at least `least` that are ready."""
        return self.received(self.envs.recv(*self.asked(ids, least)))

    def asked(self, ids: Array | None, least: int) -> tuple[Array | None, int]:
        """What of the envs is to be received for that."""
        own = None if ids is None else self._own(np.asarray(ids))
        return own, -(-least // self._spec.agents)

    def received(self, given: tuple[Array, Steps]) -> tuple[Array, Steps]:
        """The lanes that this is of, and their steps."""
        own, steps = given
        at = (own[:, None] * self._spec.agents + np.arange(self._spec.agents)).reshape(-1)
        return at, self._of_lanes(at, steps)

    def _own(self, at: Array) -> Array:
        """The envs that these lanes are of."""
        n = self._spec.agents
        own: Array = at[::n] // n
        if len(at) % n or (at != (own[:, None] * n + np.arange(n)).reshape(-1)).any():
            raise ValueError(
                f"lanes {at.tolist()} were named; the {n} agents of an env step together: name "
                "all of them, side by side and in order"
            )
        return own

    def _of_envs(self, actions: Array, count: int) -> Array:
        array = np.asarray(actions)
        if len(array) != count:
            raise ValueError(f"{len(array)} actions for {count} agents; give each agent one")
        n = self._spec.agents
        return array.reshape(count // n, n, *array.shape[1:])

    def _of_lanes(self, at: Array, steps: Steps) -> Steps:
        """The agents' rows of the envs' steps."""
        told, n = steps.next_obs, self._spec.agents
        acted, final, cut = (told[name].reshape(-1) for name in (ACTED, TERMINATED, TRUNCATED))
        total, length = told[TOTAL].reshape(-1), told[LENGTH].reshape(-1)
        ended = np.flatnonzero(final | cut).tolist()
        broken = [row for k in steps.failed for row in range(k * n, k * n + n)]
        return Steps(
            self.to_act_on(steps.obs),
            told[REWARD].reshape(-1).astype(np.float32),
            final,
            cut,
            self._seen(told),
            [Episode(int(at[row]), float(total[row]), int(length[row])) for row in ended],
            broken,
            np.setdiff1d(np.flatnonzero(~acted), broken),
        )

    def to_act_on(self, told: Array) -> Array:
        """What each agent sees; nobody is there where none plays."""
        obs = self._seen(told)
        obs[~told[PLAYS].reshape(-1)] = self._blank
        return obs

    def _seen(self, told: Array) -> Array:
        rows = told.size * self._spec.agents
        if self._dtype.names is None:
            return np.array(told[SEEN]).reshape(rows, *self._spec.obs.shape)
        found = np.empty(rows, self._dtype)
        for name, leaf in zip(self._dtype.names, columns_under(SEEN, self._spec.obs), strict=True):
            found[name] = told[leaf].reshape(found[name].shape)
        return found
