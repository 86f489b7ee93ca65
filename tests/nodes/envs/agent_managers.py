"""Env managers of `ScriptedAgents`, whose agents are rows of their own."""

from __future__ import annotations

from typing import Any

from flowrl.core.context import Context
from flowrl.nodes.envs.pettingzoo import PettingZoo
from tests.nodes.env_managers.manager_kinds import KINDS

SCRIPTED_AGENTS = "tests.nodes.envs.agent_envs:ScriptedAgents"


def scripted_agents(
    *wrappers: Any, limit: int | None = None, each: Any = (), **kwargs: Any
) -> PettingZoo:
    """An env part; `kwargs` are those of `ScriptedAgents`."""
    return PettingZoo(
        id=SCRIPTED_AGENTS,
        agents="shared",
        kwargs=kwargs,
        wrappers=wrappers,
        max_episode_steps=limit,
        each=list(each),
    )


def make_manager(env: PettingZoo, kind: str = "serial", count: int = 2, **params: Any) -> Any:
    """A manager of this kind, seeded as in a graph."""
    manager_class, defaults = KINDS[kind]
    config = manager_class.Config(env=env, count=count, **{**defaults, **params})
    return manager_class(config=config, context=Context("envs", seed=1))
