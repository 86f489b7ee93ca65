"""A game of open_spiel, as `TurnBasedEnv` plays it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from flowrl.core.batch import Array
from flowrl.core.errors import spelling_hint
from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.entry_points import import_package
from flowrl.nodes.envs.turn_based import Turn
from flowrl.nodes.models.features import ACTION_MASK

OBSERVATION = "observation"


class OpenSpielGame:
    """Its agents are the players `player_0`, `player_1`, …"""

    metadata: Mapping[str, Any] = {}

    def __init__(self, name: str, params: Mapping[str, Any], observe: str) -> None:
        """`observe` is `information_state`, `observation`, or `auto` for the first of these that the game has."""
        pyspiel = import_package("pyspiel", "pip install 'flowrl[open_spiel]'")
        self._game = _load_game(pyspiel, name, params)
        self._sees_all = _observes_information_state(pyspiel, self._game, name, observe)
        self.possible_agents: Sequence[str] = tuple(
            f"player_{k}" for k in range(self._game.num_players())
        )
        self._positions = {agent: k for k, agent in enumerate(self.possible_agents)}
        self._actions = self._game.num_distinct_actions()
        self._shape = tuple(
            self._game.information_state_tensor_shape()
            if self._sees_all
            else self._game.observation_tensor_shape()
        )

    def observation_space(self, agent: str) -> Any:
        return Dict(
            {
                OBSERVATION: Box(-np.inf, np.inf, self._shape, np.float32),
                ACTION_MASK: Box(0, 1, (self._actions,), np.int8),
            }
        )

    def action_space(self, agent: str) -> Any:
        return Discrete(self._actions)

    def reset(self, seed: int | None, options: Any) -> list[Turn]:
        self._rng = np.random.default_rng(seed)
        self._state = self._game.new_initial_state()
        self._paid = [0.0] * len(self.possible_agents)  # to each player by its last turn
        return self._turns()

    def step(self, actions: Mapping[str, Any]) -> list[Turn]:
        state = self._state
        chosen = {self._positions[agent]: int(action) for agent, action in actions.items()}
        for player, action in chosen.items():
            if action not in state.legal_actions(player):
                legal = ", ".join(map(str, state.legal_actions(player)))
                raise ValueError(
                    f"player_{player}: the action {action} is not legal; legal are {legal}"
                )
        if state.is_simultaneous_node():  # one without a choice takes the action 0
            state.apply_actions([chosen.get(k, 0) for k in range(len(self.possible_agents))])
        else:
            (action,) = chosen.values()
            state.apply_action(action)
        return self._turns()

    def cut(self) -> list[Turn]:
        if self._state.is_terminal():
            return []
        return [self._turn(player, truncated=True) for player in self._positions.values()]

    def render(self) -> Any:
        raise UnsoundError("games of open_spiel draw no images", "make no video of it", "env")

    def close(self) -> None:
        """A game holds nothing open."""

    def _turns(self) -> list[Turn]:
        """Draw what chance decides; return the turns of the players that act then, or all last turns."""
        state = self._state
        while state.is_chance_node():
            outcomes, probabilities = zip(*state.chance_outcomes(), strict=True)
            drawn = self._rng.choice(len(outcomes), p=_normalised(probabilities))
            state.apply_action(outcomes[drawn])
        return [self._turn(player) for player in self._players_to_act()]

    def _players_to_act(self) -> list[int]:
        state, players = self._state, [*self._positions.values()]
        if state.is_terminal():
            return players
        if state.is_simultaneous_node():
            return [player for player in players if state.legal_actions(player)]
        return [state.current_player()]

    def _turn(self, player: int, truncated: bool = False) -> Turn:
        state, over = self._state, self._state.is_terminal()
        returns = state.returns()[player]
        reward, self._paid[player] = returns - self._paid[player], returns
        obs = {OBSERVATION: self._tensor(player), ACTION_MASK: self._mask(player)}
        return Turn(self.possible_agents[player], obs, reward, over, truncated, {})

    def _tensor(self, player: int) -> Array:
        state = self._state
        tensor = (
            state.information_state_tensor(player)
            if self._sees_all
            else state.observation_tensor(player)
        )
        return np.array(tensor, np.float32).reshape(self._shape)

    def _mask(self, player: int) -> Array:
        mask = np.zeros(self._actions, np.int8)
        if not self._state.is_terminal():
            mask[self._state.legal_actions(player)] = 1
        return mask


def _load_game(pyspiel: Any, name: str, params: Mapping[str, Any]) -> Any:
    known = pyspiel.registered_names()
    if name not in known:
        what = f"open_spiel has no game '{name}'"
        raise UnsoundError(
            what, spelling_hint(name, known) or "give the name of a game", "env.game"
        )
    try:
        game = pyspiel.load_game(name, dict(params))
    except pyspiel.SpielError as error:
        what = f"the game '{name}' cannot be made: {error}"
        raise UnsoundError(what, "correct its `params`", "env.params") from error
    if game.get_type().dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
        what = f"'{name}' is a mean field game, whose players are not rows"
        raise UnsoundError(what, "give a game of turns, or a simultaneous one", "env.game")
    return game


def _observes_information_state(pyspiel: Any, game: Any, name: str, observe: str) -> bool:
    kind = game.get_type()
    offered = {
        "information_state": kind.provides_information_state_tensor,
        "observation": kind.provides_observation_tensor,
    }
    known = [what for what, is_offered in offered.items() if is_offered]
    if not known or (observe != "auto" and observe not in known):
        what = f"'{name}' has no tensor of its {'states' if observe == 'auto' else observe}"
        hint = f"write `observe: {known[0]}`" if known else "give another game"
        raise UnsoundError(what, hint, "env.observe")
    return (known[0] if observe == "auto" else observe) == "information_state"


def _normalised(probabilities: Sequence[float]) -> Array:
    """The probabilities with the sum 1, which rounding may have changed."""
    array = np.array(probabilities)
    normalised: Array = array / array.sum()
    return normalised
