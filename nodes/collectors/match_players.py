"""The players of a collector's matches: its own, scripted opponents, and those whose weights a league sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowrl.core.batch import Schema
from flowrl.core.facts import UnsoundError
from flowrl.core.state import State
from flowrl.nodes.collectors.match_mode import Player
from flowrl.nodes.configured_policies import named_policy, policy_for
from flowrl.nodes.devices import available_device
from flowrl.nodes.envs.spec import EnvSpec
from flowrl.nodes.league.matches import (
    FIRST_SCRIPTED,
    ITSELF,
    PLAYER_SETTING,
    Assignment,
    Version,
    opponent_weights,
    player_names,
    versioned_name,
)
from flowrl.nodes.policy import Policy, use_device, weights_facts


@dataclass(frozen=True, slots=True)
class PlayerPolicies:
    """The policies of the players of a league that learn, as a collector has them."""

    named: Mapping[str, Policy]
    others: Policy  # of all players that are not named

    def of_player(self, name: str | None) -> Policy:
        """The policy of a player."""
        return self.others if name is None else self.named.get(name, self.others)

    def key_of(self, name: str | None) -> str:
        """The parameter that gives the policy of a player."""
        return f"policies.{name}" if name in self.named else "policy"

    def weights_facts(self, own: str | None) -> dict[str, Any]:
        """What a collector states of the weights of its own player, and of those that come with its matches.

        The matches must know each player that a parameter names.
        """
        ports = {
            "weights": (self.of_player(own), self.key_of(own)),
            **{f"matches/{n}": (policy, self.key_of(n)) for n, policy in self.named.items()},
            "matches/*": (self.others, self.key_of(None)),
        }
        known = {PLAYER_SETTING + name: self.key_of(name) for name in self.named}
        if own is not None:
            known[PLAYER_SETTING + own] = "player"
        settings = {port: _collect_settings(*at) for port, at in ports.items()}
        return {**weights_facts(ports), "needs_settings": {**settings, "matches": known}}

    def by_key(self) -> dict[str, Policy]:
        """The policies by the parameters that give them."""
        return {"policy": self.others, **{self.key_of(n): p for n, p in self.named.items()}}


def _collect_settings(policy: Policy, key: str) -> dict[str, str]:
    """What acting needs to come with the weights, each with the parameter that depends on it."""
    found = policy.collect_settings().items()
    return {name: key + where.removeprefix("policy") for name, where in found}


def player_policies(config: Any, spec: EnvSpec) -> PlayerPolicies:
    """The policies of all players. One by name must be that of a player that learns."""
    named = {
        name: named_policy(config.policies, name, "the player", spec.obs, spec.action)
        for name in config.policies
    }
    if named and config.player is None:
        what = "`policies` are those of players by name, and the collector does not say for which player it plays"
        raise UnsoundError(what, f"give it `player: {next(iter(named))}`", "policies")
    for name, policy in named.items():
        if policy.acts_without_weights:
            kind = type(policy).__name__.lower()
            what = f"the player {name}: {kind} takes no weights, and the player learns"
            hint = "give it the policy of its learner; players that do not learn are `opponents`"
            raise UnsoundError(what, hint, f"policies.{name}")
    return PlayerPolicies(named, policy_for(config.policy, spec.obs, spec.action))


def scripted_policies(config: Any, spec: EnvSpec) -> dict[str, Policy]:
    """The scripted opponents, by names for messages."""
    found = {}
    for k, part in enumerate(config.opponents):
        key = f"opponents[{k}]"
        policy = policy_for(part, spec.obs, spec.action, key)
        name = type(policy).__name__.lower()
        if not policy.acts_without_weights:
            what = f"the opponent {name} needs weights, which nothing gives it"
            hint = "take `{type: expert, checkpoint: FILE}`, or let the league play against earlier versions"
            raise UnsoundError(what, hint, key)
        found[f"{name} (opponent {k + 1})"] = policy
    return found


class MatchPlayers:
    """The players of a collector's matches. Each acts with its own policy; the rows are those of the collector's."""

    def __init__(self, own: Player, policies: PlayerPolicies, config: Any, spec: EnvSpec) -> None:
        self.own = own
        self._policies, self._device = policies, available_device(config.device)
        scripted = scripted_policies(config, spec).items()
        self.scripted = [
            self._player(name, policy, f"opponents[{k}]")
            for k, (name, policy) in enumerate(scripted)
        ]
        self._sent: dict[Version, Player] = {}  # with weights that came with the matches

    def memory(self) -> Schema:
        """The memory columns of all players, those that are sent included."""
        found = [self.own, *self.scripted]
        names = (None, *self._policies.named)
        found += [
            self._player("", self._policies.of_player(n), self._policies.key_of(n)) for n in names
        ]
        return {name: column for player in found for name, column in player.memory.items()}

    def forget_sent(self) -> None:
        """Expect other weights, because other matches have come."""
        self._sent = {}

    def opponent(self, assignment: Assignment, matches: State | None) -> Player:
        """Who plays against the own player."""
        number, version, _ = assignment
        if number == ITSELF:
            return self.own
        if number <= FIRST_SCRIPTED:
            return self.scripted[FIRST_SCRIPTED - number]
        if (number, version) not in self._sent:
            assert matches is not None  # it names the opponent
            name = player_names(matches)[number]
            policy, key = self._policies.of_player(name), self._policies.key_of(name)
            player = self._player(versioned_name(name, version), policy, key)
            player.mode.load(opponent_weights(matches, number, version))
            self._sent[number, version] = player
        return self._sent[number, version]

    def _player(self, name: str, policy: Policy, key: str) -> Player:
        mode = policy.collect_mode(0)  # each match replaces its random numbers
        use_device(mode, self._device)
        return Player(name, mode, self.own.policy, memory_of=key)
