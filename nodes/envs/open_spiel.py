"""Games of the package open_spiel: players act in turn, or several at once; chance is drawn from the env's seed."""

from __future__ import annotations

from typing import Any, Literal

from flowrl.core.batch import Column
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import Part, param, parts
from flowrl.nodes.envs.agent_columns import AgentColumns
from flowrl.nodes.envs.spec import probe_env
from flowrl.nodes.envs.wrappers.wrapper import for_any_purpose, select_for_purpose
from flowrl.nodes.observations import NestedColumns


class OpenSpiel(Part):
    """A game whose players share a policy: each is a row of its own.

    A player observes its tensor as the leaf `observation`, and its legal actions as the leaf `action_mask`.
    """

    kind = "env"

    class Config(BaseConfig):
        game: str = param(..., "name of the game, such as `kuhn_poker`", min_length=1)
        params: dict[str, Any] = param({}, "parameters of the game, such as `{players: 3}`")
        observe: Literal["auto", "information_state", "observation"] = param(
            "auto",
            "`information_state`: all that the player has seen; `observation`: what it sees now; `auto`: the former if "
            "the game has it",
        )
        max_episode_steps: int | None = param(
            None, "moves after which a game is truncated; those of players at once are one", ge=1
        )
        wrappers: Any = parts("wrapper", "the wrappers of each player, innermost first")

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        super().__init__(config, **params)
        self._agents: AgentColumns | None = None

    def spec(self) -> tuple[NestedColumns, Column]:
        """The columns of the record of all players, and of their actions."""
        agents = self.agent_columns()
        return agents.record, agents.actions

    def agent_columns(self) -> AgentColumns:
        """The players; one env is made to find them."""
        if self._agents is None:
            with probe_env(lambda: self.make(0), self.config.game) as env:
                self._agents = env.agents
        assert self._agents is not None
        return self._agents

    def make(self, index: int) -> Any:
        """Make an env. All envs are equal, whatever their index."""
        from flowrl.nodes.envs.open_spiel_game import OpenSpielGame
        from flowrl.nodes.envs.turn_based import TurnBasedEnv

        c = self.config
        game = OpenSpielGame(c.game, c.params, c.observe)
        return TurnBasedEnv(game, select_for_purpose(c.wrappers, "collect"), c.max_episode_steps)

    def for_evaluation(self) -> OpenSpiel:
        """The same env with its wrappers for evaluation."""
        chosen = select_for_purpose(self.config.wrappers, "evaluate")
        config = self.config.model_copy(update={"wrappers": tuple(map(for_any_purpose, chosen))})
        return OpenSpiel(config)
