"""Checks of envs with PettingZoo's parallel API."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.entry_points import require_interface

# Without `agents`, which some envs have only after their first reset.
INTERFACE = ("possible_agents", "observation_space", "action_space", "reset", "step")


MAKING = threading.Lock()
LONGEST_WAIT_S = 5.0


@contextmanager
def while_no_other_is_made() -> Iterator[None]:
    """Make or close an env while no other thread does, unless that hangs.

    Envs that are drawn with pygame, such as those of mpe2, load its fonts when they are made, and quit it when they are
    closed. In two threads at once, both end the process.
    """
    held = MAKING.acquire(timeout=LONGEST_WAIT_S)
    try:
        yield
    finally:
        if held:
            MAKING.release()


def require_parallel_api(env: Any, id: str) -> None:
    """Raise `UnsoundError` if an env does not have this API."""
    require_interface(env, f"'{id}'", INTERFACE, "give an env with PettingZoo's parallel interface")
    if acts_in_turn(env):
        what = f"the agents of '{id}' act in turn, and with `agents: joint` all act at once"
        hint = "write `agents: shared`, or give its parallel interface, such as `…:parallel_env`"
        raise UnsoundError(what, hint, "env")
    if not env.possible_agents:
        raise UnsoundError("the env has no possible agents", "give an env that has some", "env")


def acts_in_turn(env: Any) -> bool:
    """Whether an env has the turn-based API, which has the same names, but steps one agent."""
    return hasattr(env, "agent_iter")


def common_space(env: Any, what: str, agents: Sequence[str] | None = None) -> Any:
    """The space of observations or actions (`what`), which must be equal for these agents, or for all."""
    space_of = getattr(env, f"{what}_space")
    spaces = {agent: space_of(agent) for agent in agents or env.possible_agents}
    first, *_ = spaces
    for agent, space in spaces.items():
        if space != spaces[first]:
            difference = f"the {what}s of {first} are {spaces[first]}, those of {agent} {space}"
            hint = "put them into groups (`agents: {groups: spaces}`), or wrap the env so that its agents are alike"
            raise UnsoundError(difference, hint, "env")
    return spaces[first]
