"""Many agents as one env: their observations and actions are concatenated, in the order of `possible_agents`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from flowrl.core.batch import Array
from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.output_checks import check_ends
from flowrl.nodes.envs.parallel_api import common_space, while_no_other_is_made
from flowrl.nodes.models.features import ACTION_MASK

STATE = "state"  # the leaf with the env's own state
OBSERVATION = "observation"  # PettingZoo's name for the observation beside a mask


REWARDS = "rewards"  # the entry of `info` with the reward of each agent


class JointAgents:
    """Some agents of an env as one: what they observe and do has an axis of agents."""

    def __init__(self, env: Any, agents: Sequence[str], mean: bool, state: bool) -> None:
        """Their reward is the sum of their rewards, or their mean. With `state`, the env's own state is a leaf."""
        self._env, self.names, self._mean, self._state = env, list(agents), mean, state
        space = common_space(env, "observation", agents)
        self._masks = isinstance(space, Dict) and set(space.spaces) == {OBSERVATION, ACTION_MASK}
        self._agent_space = space[OBSERVATION] if self._masks else space
        self._action_space = common_space(env, "action", agents)
        n = len(self.names)
        leaves: dict[str, Any] = {
            "agents": _joint_observation_space(self._agent_space, n),
            "alive": MultiBinary(n),
        }
        if self._masks:
            leaves[ACTION_MASK] = MultiBinary(n * int(self._action_space.n))
        if state:
            leaves[STATE] = _state_space(env)
        self.observation_space = Dict(leaves)
        self.action_space = _joint_action_space(self._action_space, n)

    def actions(self, action: Any) -> dict[str, Any]:
        """The actions of those that are active; what was chosen for the others has no effect."""
        return {agent: action[k] for k, agent in enumerate(self.names) if agent in self._env.agents}

    def results(self, active: Collection[str], stepped: Any) -> tuple[Any, float, bool, bool, Any]:
        """What the step of an env with one agent returns, by a step of the env in which these agents were active.

        The episode ends when none is active any more: truncated, if any one's last step was. `info` has the reward of
        each agent.
        """
        obs, rewards, terminated, truncated, infos = stepped
        acted = [agent for agent in self.names if agent in active]
        for agent in acted:
            check_ends(terminated.get(agent, True), truncated.get(agent, False), agent)
        over = all(terminated.get(a, True) or truncated.get(a, False) for a in acted)
        going_on = [a for a in acted if truncated.get(a, False) and not terminated.get(a)]
        cut = over and bool(going_on)
        own = np.array([rewards.get(agent, 0.0) for agent in self.names], np.float32)
        total = float(sum(rewards[agent] for agent in rewards if agent in self.names))
        reward = total / len(self.names) if self._mean else total
        own_infos = {agent: info for agent, info in infos.items() if agent in self.names}
        observed = self.observe(obs, going_on if cut else ())
        return observed, reward, over and not cut, cut, {REWARDS: own, **own_infos}

    def observe(self, obs: Mapping[str, Any], cut: Collection[str] = ()) -> dict[str, Array]:
        """What each agent observes; zeros in the rows of those that are not active.

        Agents that are `cut` off count as alive in their last observation, which has a value.
        """
        space = self.observation_space
        alive = np.array([a in self._env.agents or a in cut for a in self.names], np.int8)
        each: Any = space["agents"]
        rows = np.zeros(each.shape, each.dtype)
        masks = np.ones((len(rows), int(self._action_space.n)), np.int8) if self._masks else None
        for row, agent in enumerate(self.names):
            if agent in obs:
                own = obs[agent]
                rows[row] = own[OBSERVATION] if self._masks else own
                if masks is not None and alive[row]:
                    masks[row] = own[ACTION_MASK]
        joint: dict[str, Array] = {"agents": rows, "alive": alive}
        if self._state:
            joint[STATE] = np.asarray(self._env.state(), space[STATE].dtype)
        return joint if masks is None else {**joint, ACTION_MASK: masks.reshape(-1)}


class JointAgentsEnv(gymnasium.Env):
    """All agents of an env as one."""

    def __init__(self, env: Any, mean: bool, state: bool = False) -> None:
        self._env = env
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)
        self._joint = JointAgents(env, env.possible_agents, mean, state)
        self.observation_space = self._joint.observation_space
        self.action_space = self._joint.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        obs, _ = self._env.reset(seed=seed, options=options)
        return self._joint.observe(obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the active agents; actions chosen for the others have no effect."""
        active = list(self._env.agents)
        return self._joint.results(active, self._env.step(self._joint.actions(action)))

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        with while_no_other_is_made():
            self._env.close()


def _joint_observation_space(space: Any, n: int) -> Any:
    if isinstance(space, Box):
        low, high = (np.repeat(bound[None], n, 0) for bound in (space.low, space.high))
        # rows of inactive agents are zeros, which may be out of bounds
        return Box(np.minimum(low, 0), np.maximum(high, 0), dtype=space.dtype.type)
    if isinstance(space, Discrete) and space.start == 0:
        return MultiDiscrete([space.n] * n)
    raise UnsoundError(
        f"agents observe {space}", "wrap the env: a Box, or a Discrete from 0", "env"
    )


def _state_space(env: Any) -> Any:
    space = getattr(env, "state_space", None)
    if isinstance(space, Box):
        return space
    found = "no `state_space`" if space is None else f"the state space {space}"
    raise UnsoundError(
        f"`state: true`, and the env has {found}",
        "leave it out (what all agents observe is the state then), or give the env a `state_space` that is a Box, "
        "and `state()`",
        "env.state",
    )


def _joint_action_space(space: Any, n: int) -> Any:
    if isinstance(space, Discrete) and space.start == 0:
        return MultiDiscrete([space.n] * n)
    if isinstance(space, Box):
        low, high = (np.repeat(bound[None], n, 0) for bound in (space.low, space.high))
        return Box(low, high, dtype=space.dtype.type)
    raise UnsoundError(
        f"agents' actions are {space}", "wrap the env: a Box, or a Discrete from 0", "env"
    )
