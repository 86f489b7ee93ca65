"""The collector of matches: the player that learns against itself, or against the opponents of a league."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Column
from flowrl.core.config import named_parts, param, parts
from flowrl.core.facts import Facts, OwnName, Surroundings, UnsoundError
from flowrl.core.ports import Out, StateIn
from flowrl.core.state import State
from flowrl.nodes.collectors.actor import CollectedSteps
from flowrl.nodes.collectors.collector import ActingPolicy, Collector, requested_count
from flowrl.nodes.collectors.episode_unrolls import EpisodeUnrolls
from flowrl.nodes.collectors.episodes import episode_offsets, episode_quotas, order_by_env
from flowrl.nodes.collectors.joined_managers import join_specs
from flowrl.nodes.collectors.match_mode import MatchMode, Player
from flowrl.nodes.collectors.match_players import (
    MatchPlayers,
    PlayerPolicies,
    player_policies,
    scripted_policies,
)
from flowrl.nodes.collectors.match_results import match_results, result_schema
from flowrl.nodes.collectors.match_rows import EndedMatch, MatchEnvs
from flowrl.nodes.collectors.row_slicer import RowSlicer, check_rewards_of_unrolls, sliced_schema
from flowrl.nodes.collectors.transitions import row_schema, step_schema, transitions
from flowrl.nodes.devices import shared_device_facts
from flowrl.nodes.envs.spec import EnvSpec, require_one_policy
from flowrl.nodes.envs.steps import Episode
from flowrl.nodes.league.matches import (
    ITSELF,
    PLAYERS_FOLDER,
    Assignment,
    assignments,
    versioned_name,
)
from flowrl.nodes.observations import flatten_columns
from flowrl.nodes.origin import NO_WEIGHTS_VERSION, OFFSET_COLUMN
from flowrl.nodes.policy import Policy, acting_facts

OFFSET = Column("int32")  # a row's index in its match


OPPONENTS = (
    "opponents that do not learn, such as `random`, or `expert` with a checkpoint; the league names them in the same "
    "order (`scripted`)"
)


class MatchConfig(Collector.Config):
    """The parameters of every node that plays matches."""

    n_episode: int = param(8, "matches in each token, over all envs", ge=1)
    most_steps: int = param(
        100_000, "steps of a match; a longer match is an error, it may never end", ge=1
    )
    sides: int = param(
        2, "sides of a match; the agents of an env are dealt out to them evenly, in order", ge=2
    )
    opponents: Any = parts("policy", OPPONENTS)


class MatchCollector(Collector):
    """Each token holds the rows of the player that learns, of `n_episode` whole matches against other players.

    Players are bound to the sides of an env for a whole match. A match is a function of its seed and of the weights of
    its players, so it can be played again from its row in `results`.

    If the policy learns from unrolls, these are cut from the matches of a token one after another, and fewer steps
    than an unroll has wait for the next token.
    """

    matches = StateIn(
        "matches",
        optional=True,
        about="the opponents, from a league; without it, the player plays against itself",
    )
    results = Out("match_results", optional=True, about="a row for each match")

    class Config(MatchConfig):
        opponents: Any = parts("policy", OPPONENTS, only_with="matches")
        player: str | None = param(
            None, "the player that learns, by its name in the league; null: the league has one"
        )
        policies: Any = named_parts(
            "policy",
            "the policies of players that learn with one of their own, by their names in the league, its own player "
            "included; all others have `policy`",
            shared="policy",
            optional=True,
        )
        save_versions: bool = param(
            False,
            "save the weights of each version that plays in league/players, so that all of its matches can be "
            "played again",
        )

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        spec = join_specs(surroundings.links["envs"])
        require_one_policy(spec)
        players = cls.policies_of_players(config, spec)
        own = cls.own_player(config)
        policy, key = players.of_player(own), players.key_of(own)
        _check_config(config, spec, policy, key)
        if policy.estimated_columns():
            what = "a match_collector computes no advantages"
            raise UnsoundError(what, "give the policy `advantages: learner`", f"{key}.advantages")
        scripted = scripted_policies(config, spec)
        opponents = {f"opponents[{k}]": p for k, p in enumerate(scripted.values())}
        extra = cls.extra_columns(config, policy, spec)
        rows = {
            **row_schema(spec.obs, spec.action, extra, policy.gamma),
            OFFSET_COLUMN: OFFSET,
        }
        return Facts(
            outs={
                "data": sliced_schema(rows, policy),
                "results": result_schema(config.sides, len(config.opponents)),
            },
            rows={"results": config.n_episode},
            env_steps=None if config.counts else 0,
            own_names={"matches": OwnName(own, "player", "weights")},
            **players.weights_facts(own),
            **acting_facts(
                players.by_key() | opponents, explores=True, gives_rows=frozenset({key})
            ),
            **shared_device_facts(
                config,
                [policy, *scripted.values(), *players.named.values()],
                False,
                surroundings.runs_here,
            ),
        )

    @classmethod
    def given_policy(cls, config: Any) -> Any:
        return config.policies.get(config.player, config.policy)

    @classmethod
    def own_player(cls, config: Any) -> str | None:
        """The player that learns, by its name; None: the league has one."""
        player: str | None = config.player
        return player

    @classmethod
    def policies_of_players(cls, config: Any, spec: EnvSpec) -> PlayerPolicies:
        """The policies of all players that learn."""
        return player_policies(config, spec)

    def setup(self) -> None:
        self._own_player = self.own_player(self.config)
        self._name = self._own_player or "main"
        self._first_env = 0  # the first of the envs that play one more match, if quotas differ
        self._played = 0  # matches whose results were returned
        self._matches: State | None = None
        self._has_begun = False  # whether the envs are at the beginning of a match
        self.envs = self._match_envs(self.envs)
        super().setup()
        key = self._policies.key_of(self._own_player)
        _check_config(self.config, self.envs.spec(), self.policy, key)

    def _restart(self) -> None:
        super()._restart()
        self._unrolls: EpisodeUnrolls | None = None
        if self.policy.unroll_steps is not None:
            spec = self.envs.spec()
            extra = self.extra_columns(self.config, self.policy, spec)
            columns = {**step_schema(spec.obs, spec.action, extra), OFFSET_COLUMN: OFFSET}
            self._unrolls = EpisodeUnrolls(RowSlicer.for_policy(self.policy), columns)

    def _match_envs(self, managers: Any) -> Any:
        self._envs = MatchEnvs(managers)
        return self._envs.rows

    def reset_env(self, envs: Any = None) -> None:
        """Continue with new matches, in other envs if given."""
        super().reset_env(None if envs is None else self._match_envs(envs))
        self._has_begun = False

    def reset_policy(self, policy: ActingPolicy) -> None:
        """Let another policy act for the player that learns, from now on."""
        super().reset_policy(policy)
        spec = self.envs.spec()
        own = Player(self._name, self.mode, self.policy)
        self._policies = self.policies_of_players(self.config, spec)
        self._players = MatchPlayers(own, self._policies, self.config, spec)
        self._match_mode = MatchMode(self.policy, self._players.memory(), spec.count)
        self._actor.set_mode(self._match_mode, self.policy.collect_columns())

    def fire(self, weights: State | None, matches: State | None = None) -> dict[str, Batch]:
        """Play the next matches with the newest weights."""
        if self.config.save_versions and weights is not None and weights is not self._weights:
            name = versioned_name(self._name, weights.version)
            self.ctx.save_checkpoint(name, replace(weights, whole=None), folder=PLAYERS_FOLDER)
        data, results = self.collect(weights=weights, matches=matches)
        return {"data": data, "results": results}

    def collect(
        self,
        n_episode: int | None = None,
        weights: State | None = None,
        matches: State | None = None,
    ) -> tuple[Batch, Batch]:
        """Play `n_episode` matches (by default as configured); return the rows of the player, and the results."""
        n = requested_count("n_episode", n_episode, self.config.n_episode)
        steps, dropped, episodes, results = self._play_next(n, weights, matches)
        if self._unrolls is None:
            rows = transitions(steps, self.policy.gamma)
            count = len(rows["last"])
        else:
            rows = self._unrolls.cut(steps)
            count = rows["reward"].size
        self._report(count, episodes, dropped, rows["action"])
        return Batch(flatten_columns(rows)), results

    def play(self, n: int, weights: State | None, matches: State) -> Batch:
        """Play `n` matches, from which nothing is learned; return the results."""
        steps, dropped, episodes, results = self._play_next(n, weights, matches)
        self._report(len(steps["reward"]), episodes, dropped, steps["action"])
        return results

    def _play_next(
        self, n: int, weights: State | None, matches: State | None
    ) -> tuple[dict[str, Array], int, list[Episode], Batch]:
        """Play `n` matches; return the steps of the player, how many were dropped, its episodes, and the results."""
        self._load_weights(weights)
        if matches is not None and matches is not self._matches:
            self._matches = matches
            self._players.forget_sent()
        if not self._has_begun:
            self._actor.reset()
            self._has_begun = True
        collected, ended = self._play(self._dealt(n))
        steps = order_by_env(collected, self._actor.count)
        steps[OFFSET_COLUMN] = episode_offsets(steps["terminated"] | steps["truncated"])
        taken = sum(len(one.columns["reward"]) for one in collected)
        episodes = [episode for one in collected for episode in one.episodes]
        self._played += n
        version, scripted = self._weights_version, len(self._players.scripted)
        results = match_results(ended, version, self.config.sides, scripted)
        return steps, taken - len(steps["reward"]), episodes, results

    def _dealt(self, n: int) -> list[list[Assignment]]:
        """The matches of each env, which are fixed before any is played: short ones are not preferred."""
        if self._matches is not None and (table := assignments(self._matches, self._own_player)):
            chosen = [table[k % len(table)] for k in range(n)]
        else:
            version = NO_WEIGHTS_VERSION if self._weights is None else self._weights.version
            sides = [(self._played + k) % self.config.sides for k in range(n)]
            chosen = [Assignment(ITSELF, version, side) for side in sides]
        quotas = episode_quotas(n, self._envs.count, self._first_env).tolist()
        self._first_env = (self._first_env + n) % self._envs.count
        remaining = iter(chosen)
        return [[next(remaining) for _ in range(quota)] for quota in quotas]

    def _play(
        self, dealt: list[list[Assignment]]
    ) -> tuple[list[CollectedSteps], list[tuple[Assignment, EndedMatch]]]:
        """Play the matches of each env; return the steps of the player that learns, and the results.

        A match that fails with its env is played again, with the env's next seed.
        """
        steps, agents, mode = [], self._envs.agents, self._match_mode
        played: list[list[tuple[Assignment, EndedMatch]]] = [[] for _ in dealt]
        sides = np.zeros(len(dealt), np.int64)  # of the player, in the match of each env
        lengths = np.zeros(len(dealt), np.int64)
        seeds = self._envs.seeds
        for env, matches in enumerate(dealt):
            if matches:
                sides[env] = matches[0].side
                self._bind(env, matches[0], int(seeds[env]))
        left = np.array([len(matches) for matches in dealt])
        while left.any():
            playing = np.flatnonzero(left)
            ids = (playing[:, None] * agents + np.arange(agents)).reshape(-1)
            mode.ids = None if len(playing) == len(dealt) else ids
            collected = self._actor.step(mode.ids)
            steps.append(self._rows_of_player(collected, sides))
            lengths[playing] += 1
            for match in self._envs.take_ended():
                env = match.env
                assignment, lengths[env] = dealt[env][len(played[env])], 0
                if not match.failed:
                    played[env].append((assignment, match))
                    left[env] -= 1
                if left[env]:
                    assignment = dealt[env][len(played[env])]
                    sides[env] = assignment.side
                    self._bind(env, assignment, int(self._envs.seeds[env]))
            self._check_lengths(lengths)
        return steps, [one for of_env in played for one in of_env]

    def _bind(self, env: int, assignment: Assignment, seed: int) -> None:
        """Give each agent of an env its player for the match that begins now."""
        agents, sides = self._envs.agents, self.config.sides
        opponent = self._players.opponent(assignment, self._matches)
        for agent in range(agents):
            side = agent * sides // agents
            player = self._players.own if side == assignment.side else opponent
            self._match_mode.seats[env * agents + agent] = player.seat(seed, agent)

    def _rows_of_player(self, collected: CollectedSteps, sides: Array) -> CollectedSteps:
        """Keep the steps of the player that learns, which has one of the sides in each env."""
        agents = self._envs.agents

        def is_own(rows: Array) -> Array:
            own: Array = rows % agents * self.config.sides // agents == sides[rows // agents]
            return own

        ids = np.arange(self._actor.count) if collected.ids is None else collected.ids
        episodes = [e for e in collected.episodes if is_own(np.array(e.env_id))]
        own = collected.select(is_own(ids))
        beside = self._match_mode.memory_beside_rows
        columns = {name: column for name, column in own.columns.items() if name not in beside}
        return own._replace(episodes=episodes, columns=columns)

    def _check_lengths(self, lengths: Array) -> None:
        longest = int(lengths.argmax())
        if lengths[longest] >= self.config.most_steps:
            raise ValueError(
                f"env {longest}: a match has not ended after {self.config.most_steps:,} steps; give the env "
                "`max_episode_steps`, or this node more `most_steps`"
            )

    def state_dict(self) -> dict[str, Any]:
        matches = {"first_env": self._first_env, "played": self._played, "seeds": self._envs.seeds}
        unrolls = None if self._unrolls is None else self._unrolls.state_dict()
        more = {"has_begun": self._has_begun, "unrolls": unrolls}
        return {**super().state_dict(), **matches, **more}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._first_env, self._played = int(state["first_env"]), int(state["played"])
        self._has_begun = bool(state["has_begun"])
        self._envs.restore_seeds(np.array(state["seeds"]))
        if self._unrolls is not None:
            self._unrolls.load_state_dict(state["unrolls"])


def _check_config(config: Any, spec: EnvSpec, policy: Policy, key: str) -> None:
    if spec.agents == 1:
        what = "a match needs an env whose agents act by themselves, and each of these envs is one agent"
        hint = "write `env: {type: pettingzoo, agents: shared, …}`"
        raise UnsoundError(what, hint, "envs")
    if spec.agents % config.sides:
        what = f"{spec.agents} agents of an env are not {config.sides} teams of equal size"
        hint = f"give `sides: {spec.agents}`, or an env with other teams"
        raise UnsoundError(what, hint, "sides")
    check_rewards_of_unrolls(policy)
    if getattr(policy.config, "reset_options", None):
        what = "the options of `reset` change a match, which is played again from its seed alone"
        raise UnsoundError(what, "leave `reset_options` out", f"{key}.reset_options")
