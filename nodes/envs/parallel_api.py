"""PettingZoo's parallel interface: what is asked of an env that has it."""

from __future__ import annotations

from typing import Any

from flowrl.core.node import UnsoundError
from flowrl.nodes.envs.entry_points import require_interface

PARALLEL = ("possible_agents", "observation_space", "action_space", "reset", "step")
# ^ `agents`, too: but some have that from their first reset on only


def require_parallel_api(env: Any, id: str) -> None:
    """Raises `Unsound` where an env does not have that interface."""
    require_interface(env, f"'{id}'", PARALLEL, "give an env with PettingZoo's parallel interface")
    if hasattr(env, "agent_iter"):  # the same names, but a step is of one agent
        what = f"the agents of '{id}' act in turn"
        raise UnsoundError(what, "give its parallel interface, such as `…:parallel_env`", "env.id")
    if not env.possible_agents:
        raise UnsoundError("the env has no possible agents", "take another", "env")


def common_space(env: Any, what: str) -> Any:
    """The space of observations or actions (`what`), which must be the same for all agents."""
    space_of = getattr(env, f"{what}_space")
    spaces = {agent: space_of(agent) for agent in env.possible_agents}
    first, *_ = spaces
    for agent, space in spaces.items():
        if space != spaces[first]:
            said = f"the {what}s of {first} are {spaces[first]}, those of {agent} {space}"
            raise UnsoundError(said, "wrap the env so that its agents are alike", "env")
    return spaces[first]
