"""Envs of many agents with gymnasium's interface and tuples, such as level-based foraging and the robotic warehouse."""

from __future__ import annotations

from typing import Any

from flowrl.core.config import param
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.parallel_api import while_no_other_is_made
from flowrl.nodes.envs.pettingzoo import PettingZoo


class TupleAgents(PettingZoo):
    """Agents whose observations, actions and rewards are the entries of tuples, together as `type: pettingzoo`."""

    class Config(PettingZoo.Config):
        id: str = param(
            ...,
            "a registered id, such as `Foraging-8x8-2p-2f-v3` or `rware-tiny-2ag-v2`, or "
            "`package.module:Name` of a class or function",
            min_length=1,
        )

    def _make_env(self, index: int) -> Any:
        from flowrl.nodes.envs.tuple_agents_env import TupleAgentsEnv

        with while_no_other_is_made():
            return TupleAgentsEnv(Gymnasium.make_unwrapped(self, index), self.config.id)
