"""The base of policies of several agents: each acts by what it observes itself, and all learn together.

The observations of the env have an axis of agents (`env: {type: pettingzoo, agents: joint}`). When acting, agents are
further rows: the acting network and every step of acting see one agent in each row. When learning, the axis stays,
and networks are called with what each agent observes (…, N, …).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from flowrl.core.batch import Array, Bound, Column, Schema
from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.core.state import State
from flowrl.nodes.acting import ActingStep, NetworkActMode
from flowrl.nodes.algorithm import Algorithm, Net
from flowrl.nodes.lazy import functional, torch
from flowrl.nodes.models.features import ACTION_MASK, feature_width, is_discrete
from flowrl.nodes.network_learn_mode import LearnBatch, NetworkLearnMode
from flowrl.nodes.observations import NestedColumns, ObsColumns
from flowrl.nodes.policy import AnyActMode, act_by_id

if TYPE_CHECKING:
    from torch import Tensor

    from flowrl.nodes.models.networks import Network

OWN = "agents"  # the leaf with what each agent observes: (N, …)
ALIVE = "alive"  # the leaf (N,) that is 1 for agents that act
STATE = "state"  # the leaf with the env's state, for learning only
NUMBER = "agent_number"  # the feature that tells agents apart
JOINT_HINT = (
    "give an env of several agents, such as `env: {type: pettingzoo, agents: joint, id: …}`"
)


class Agents:
    """The agents of an env: what one of them observes and does, and what is known of all when learning."""

    def __init__(
        self, obs: ObsColumns, action: Column, numbers: bool, owner: str, presence: bool = False
    ) -> None:
        """With `numbers`, each agent observes its number, and with `presence`, whether it is there.

        `owner` is the name of the policy.
        """
        leaves = obs.columns if isinstance(obs, NestedColumns) else {}
        if OWN not in leaves or ALIVE not in leaves:
            what = f"{owner} acts for several agents, and the observations are {obs}, without `{OWN}` and `{ALIVE}`"
            raise UnsoundError(what, JOINT_HINT, "env")
        [self.count] = leaves[ALIVE].shape
        self.action = self._action_of_one(action, owner)
        self.leaves = [leaf for leaf in leaves if leaf not in (ALIVE, STATE, ACTION_MASK)]
        own = {leaf: self._of_one(leaf, leaves[leaf], owner) for leaf in self.leaves}
        if numbers:
            own[NUMBER] = Column("int64", n=self.count)
        if presence:
            own[ALIVE] = replace(leaves[ALIVE], shape=())
        if ACTION_MASK in leaves:
            own[ACTION_MASK] = self._mask_of_one(leaves[ACTION_MASK], owner)
        self.obs = NestedColumns(own)
        self.observes_state = STATE in leaves
        features = sum(feature_width(own[leaf]) for leaf in self.leaves) + 1
        width = feature_width(leaves[STATE]) if self.observes_state else self.count * features
        # What is known of all agents: the env's state, or else what all of them observe and which of them act.
        self.state = Column("float32", (width,))

    def each(self, column: Column) -> Column:
        """The column with a value for each agent."""
        return replace(column, shape=(self.count, *column.shape), low=None, high=None)

    # when acting, with agents as further rows

    def rows_of(self, obs: Array) -> Array:
        """What each agent observes, as one row for each: (B,) to (B N,)."""
        rows = self.obs.empty(len(obs) * self.count)
        for leaf, column in self.obs.columns.items():
            if leaf == NUMBER:
                rows[leaf] = np.tile(np.arange(self.count), len(obs))
            else:
                rows[leaf] = obs[leaf].reshape(-1, *column.shape)
        return rows

    # when learning, with an axis of agents

    def own(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each agent observes, by leaf: (…, N, …)."""
        alive = obs[ALIVE]
        found = {}
        for leaf, column in self.obs.columns.items():
            if leaf == NUMBER:
                found[leaf] = torch.arange(self.count, device=alive.device).expand(alive.shape)
            else:
                found[leaf] = obs[leaf].reshape(*alive.shape, *column.shape)
        return found

    def state_of(self, obs: Mapping[str, Tensor]) -> Tensor:
        """What is known of all agents: (…, S)."""
        alive = obs[ALIVE]
        if self.observes_state:
            return obs[STATE].reshape(*alive.shape[:-1], -1).float()
        parts = [_features(obs[leaf], self.obs.columns[leaf], alive) for leaf in self.leaves]
        return torch.cat([*parts, alive.float()], -1)

    # the columns of one agent

    def _action_of_one(self, action: Column, owner: str) -> Column:
        if not action.shape or action.shape[0] != self.count:
            what = f"{owner} acts for {self.count} agents, and the env takes the action {action}"
            raise UnsoundError(what, "the action must have one choice for each agent", "env")
        return self._of_one("action", action, owner)

    def _of_one(self, name: str, column: Column, owner: str) -> Column:
        if not column.shape or column.shape[0] != self.count or column.frames:
            what = f"{owner}: '{name}' is {column}, and there are {self.count} agents"
            hint = "each leaf of the observations but `state` must begin with the axis of agents"
            raise UnsoundError(what, hint, "env")
        low, high = (self._bound_of_one(name, b) for b in (column.low, column.high))
        shape = column.shape[1:]
        counts_from_0 = column.n is None and np.dtype(column.dtype).kind == "i" and low == 0
        if not shape and counts_from_0 and isinstance(high, float):
            return Column(column.dtype, n=int(high) + 1)
        return replace(column, shape=shape, low=low, high=high)

    def _bound_of_one(self, name: str, bound: Bound) -> Bound:
        if not isinstance(bound, tuple):
            return bound
        of_each = np.reshape(bound, (self.count, -1))
        if (of_each != of_each[0]).any():
            what = f"the bounds of '{name}' differ from agent to agent"
            raise UnsoundError(what, "wrap the env so that its agents are alike", "env")
        values = tuple(float(x) for x in of_each[0])
        return values[0] if len(set(values)) == 1 else values

    def _mask_of_one(self, mask: Column, owner: str) -> Column:
        actions = self.action.n or 0
        if mask.shape != (self.count * actions,):
            what = f"{owner}: '{ACTION_MASK}' is {mask}, and {self.count} agents have {actions} actions each"
            hint = "the mask must have a number for each action of each agent, which is 0 for a forbidden one"
            raise UnsoundError(what, hint, "env")
        return replace(mask, shape=(actions,))


def _features(values: Tensor, column: Column, alive: Tensor) -> Tensor:
    """What all agents observe in one leaf, as numbers (…, N F)."""
    lead = alive.shape[:-1]
    if is_discrete(column):
        values = functional.one_hot(values.long(), column.n or 0)
    return values.reshape(*lead, -1).float()


class AgentsActMode:
    """Acts for all agents of each env, by a mode that acts for one."""

    def __init__(self, mode: NetworkActMode, agents: Agents, outputs: Schema) -> None:
        """`outputs` are the columns that it gives, with a value for each agent."""
        self.mode, self.agents = mode, agents
        self.memory = {name: agents.each(column) for name, column in mode.memory.items()}
        columns = {**self.memory, **outputs}
        self._outputs = [(name, (-1, *column.shape)) for name, column in columns.items()]

    def use_device(self, device: str) -> None:
        """Act on another device than the CPU; weights are loaded afterwards."""
        self.mode.use_device(device)

    def load(self, state: State) -> None:
        """Act with these weights, and the command that came with them, from now on."""
        self.mode.load(state)

    def forward(
        self, obs: Array | dict[int, Array], memory: Mapping[str, Array] | None = None
    ) -> dict[Any, Array]:
        """Map observations (B,), and the memory (B, N, …) if there is any, to the outputs (B, N, …)."""
        if isinstance(obs, dict):
            return act_by_id(self, obs)
        rows = self.agents.rows_of(obs)
        of_rows = {n: x.reshape(-1, *x.shape[2:]) for n, x in (memory or {}).items()}
        found = self.mode.forward(rows, of_rows or None)
        return {name: found[name].reshape(shape) for name, shape in self._outputs}

    def state_dict(self) -> dict[str, Any]:
        return self.mode.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mode.load_state_dict(state)


class AgentNetworksActMode:
    """Acts for all agents of each env, each by a mode with weights of its own."""

    def __init__(
        self, modes: Mapping[str, NetworkActMode], agents: Agents, outputs: Schema
    ) -> None:
        """`modes` are those of the agents by the names of their networks, before which weights have a dot."""
        self.modes, self.agents = dict(modes), agents
        self.memory: Schema = {}
        self._outputs = list(outputs)

    def use_device(self, device: str) -> None:
        """Act on another device than the CPU; weights are loaded afterwards."""
        for mode in self.modes.values():
            mode.use_device(device)

    def load(self, state: State) -> None:
        """Act with these weights, and the command that came with them, from now on."""
        for name, mode in self.modes.items():
            prefix = f"{name}."
            own = state.arrays.items()
            arrays = {n.removeprefix(prefix): x for n, x in own if n.startswith(prefix)}
            mode.load(State(arrays, state.command, state.version, state.clock))

    def forward(self, obs: Array | dict[int, Array]) -> dict[Any, Array]:
        """Map observations (B,) to the outputs (B, N, …)."""
        if isinstance(obs, dict):
            return act_by_id(self, obs)
        rows = self.agents.rows_of(obs).reshape(len(obs), self.agents.count)
        found = [
            mode.forward(np.ascontiguousarray(rows[:, k]))
            for k, mode in enumerate(self.modes.values())
        ]
        return {name: np.stack([each[name] for each in found], 1) for name in self._outputs}

    def state_dict(self) -> dict[str, Any]:
        return {name: mode.state_dict() for name, mode in self.modes.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, mode in self.modes.items():
            mode.load_state_dict(state[name])


class MultiAgent(Algorithm):
    """A policy of several agents that share networks. Its columns are those of the env, with an axis of agents."""

    observes_presence: ClassVar[bool] = False  # whether acting needs to know which agents are there
    for_several_choices = "mappo"

    class Config(Algorithm.Config):
        agent_numbers: bool = param(
            True, "each agent observes its number, so that agents can act differently"
        )

    @classmethod
    def declared_needs(cls) -> Mapping[str, str]:
        return {"env": "of several agents, with `agents: joint`", **super().declared_needs()}

    @cached_property
    def agents(self) -> Agents:
        """The agents of the env."""
        numbers = self.config.agent_numbers
        return Agents(self.obs, self.action, numbers, self.name, self.observes_presence)

    def entries_of_own(self, ranges: Sequence[Sequence[int]], setting: str, instead: str) -> Array:
        """1 for each entry of an agent's observation in the ranges [begin, end), and 0 for the rest (F,).

        `setting` is the parameter that has the ranges, and `instead` what to do if an observation is no row of numbers.
        """
        column = self.own_obs.columns[OWN]
        if len(column.shape) != 1 or np.dtype(column.dtype).kind != "f":
            what = f"`{setting}` names entries of a row of real numbers, and each agent observes {column}"
            raise UnsoundError(what, instead, setting)
        [width] = column.shape
        found = np.zeros(width, np.float32)
        for entries in ranges:
            if len(entries) != 2 or not 0 <= entries[0] < entries[1] <= width:
                what = f"{[*entries]} is no range of entries of an observation of {width} numbers"
                hint = f"give ranges such as [0, {width - 1}], where the end is excluded"
                raise UnsoundError(what, hint, setting)
            found[slice(*entries)] = 1
        return found

    @property
    def own_obs(self) -> NestedColumns:
        return self.agents.obs

    @property
    def own_action(self) -> Column:
        return self.agents.action

    def acting_parts(self) -> Sequence[Any]:
        return [self.agents.count]

    def memory_columns(self) -> Schema:
        return {n: self.agents.each(c) for n, c in super().memory_columns().items()}

    def _act_mode(
        self, steps: Sequence[ActingStep], outputs: Schema, seed: int, explores: bool
    ) -> AnyActMode:
        own = {n: replace(c, shape=c.shape[1:]) for n, c in outputs.items()}
        mode = self.network_act_mode(steps, own, seed, explores)
        return AgentsActMode(mode, self.agents, outputs)


class MultiAgentLearnMode(NetworkLearnMode):
    """Calls networks with what each agent observes, in rows or unrolls: (…, N, …)."""

    policy: MultiAgent

    def own(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        """What each agent observes, by leaf: (…, N, …)."""
        return self.policy.agents.own(obs)

    def state_of(self, obs: Mapping[str, Any]) -> Any:
        """What is known of all agents: (…, S)."""
        return self.policy.agents.state_of(obs)

    def alive(self, obs: Mapping[str, Any]) -> Any:
        """1 for each agent that acts, and 0 for the others: (…, N) float32."""
        return obs[ALIVE].float()

    def unroll(
        self, network: Network, obs: Mapping[str, Any], memory: Any, begins: Any
    ) -> dict[str, Any]:
        """Run a network through unrolls (B, T, …) of each agent, from its memory (B, N, M); return heads (B, T, N, …).

        `begins` (B, T) marks the first steps of episodes.
        """
        count = self.policy.agents.count
        flat = {leaf: x.transpose(1, 2).flatten(0, 1) for leaf, x in self.own(obs).items()}
        of_rows = None if memory is None else memory.flatten(0, 1)
        heads = network.unroll(flat, of_rows, begins.repeat_interleave(count, 0))
        found = {n: x.reshape(-1, count, *x.shape[1:]).transpose(1, 2) for n, x in heads.items()}
        return found

    def observed_inputs(self, net: Net, b: LearnBatch) -> dict[str, Any]:
        """Statistics are updated with what agents observe that act."""
        found: dict[str, Any] = {}
        for name in net.inputs:
            if name == "obs":
                acts = b.obs[ALIVE] != 0
                found[name] = {leaf: x[acts] for leaf, x in self.own(b.obs).items()}
            elif name == STATE:
                found[name] = self.state_of(b.obs)
            else:
                found |= super().observed_inputs(replace(net, inputs={name: net.inputs[name]}), b)
        return found
