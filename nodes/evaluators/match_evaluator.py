"""The evaluator of matches: the newest weights against opponents that do not learn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from flowrl.core.batch import Array, Batch
from flowrl.core.config import param
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.node import Role
from flowrl.core.state import State
from flowrl.nodes.collectors.match_collector import MatchCollector, MatchConfig
from flowrl.nodes.collectors.match_players import PlayerPolicies
from flowrl.nodes.collectors.match_results import result_schema
from flowrl.nodes.configured_policies import policy_for
from flowrl.nodes.envs.spec import EnvSpec
from flowrl.nodes.envs.steps import Episode
from flowrl.nodes.league.matches import FIRST_SCRIPTED, Assignment, matches_state


class MatchEvaluator(MatchCollector):
    """Plays `n_episode` matches against each of its `opponents`, from all sides in turn, and reports the mean scores.

    The player acts as in evaluations. Every evaluation plays the same matches.
    """

    role: ClassVar[Role] = ""
    data: Any = None  # nothing is learned from its rows
    matches: Any = None  # its opponents do not change

    class Config(MatchConfig):
        n_episode: int = param(8, "matches against each opponent, over all envs", ge=1)
        counts: Literal[False] = param(False, "its env steps and episodes do not count")
        origin: Literal[False] = param(False, "none: nothing is learned from its rows")
        log_every_steps: Literal[1] = param(1, "every evaluation is reported")
        names: list[str] = param(
            [], "names of the opponents in metrics; by default those of their types"
        )

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        found = super().describe(config, surroundings)
        count = len(config.opponents)
        if not count:
            hint = "list some: `opponents: [{type: random}]`"
            raise UnsoundError("it has no opponents to play against", hint, "opponents")
        if config.names and len(set(config.names)) != count:
            what = f"{len(set(config.names))} different names are given for {count} opponents"
            raise UnsoundError(what, "give one for each, or none", "names")
        return Facts(
            outs={"results": result_schema(config.sides, count)},
            rows={"results": config.n_episode * count},
            env_steps=0,
            acts_on=found.acts_on,
            networks=found.networks,
            acting=found.acting,
            imports=found.imports,
            resolved=found.resolved,
        )

    @classmethod
    def given_policy(cls, config: Any) -> Any:
        return config.policy

    @classmethod
    def own_player(cls, config: Any) -> str | None:
        return None

    @classmethod
    def policies_of_players(cls, config: Any, spec: EnvSpec) -> PlayerPolicies:
        return PlayerPolicies({}, policy_for(config.policy, spec.obs, spec.action))

    def setup(self) -> None:
        super().setup()
        self.reset_policy(self.policy.eval_mode)
        types = [player.name.partition(" ")[0] for player in self._players.scripted]
        self._labels = self.config.names or _numbered(types)

    def fire(self, weights: State) -> Batch:  # type: ignore[override]  # it has fewer inputs
        """Play the matches, and report the mean score and return against each opponent."""
        results = self.evaluate(weights)
        metrics: dict[str, float] = {}
        own = results["returns"][np.arange(len(results)), results["side"]]
        for k, name in enumerate(self._labels):
            of_opponent = results["opponent"] == FIRST_SCRIPTED - k
            metrics[f"{name}/score_mean"] = float(results["score"][of_opponent].mean())
            metrics[f"{name}/return_mean"] = float(own[of_opponent].mean())
        if self._dropped_steps:
            metrics["dropped_steps"], self._dropped_steps = self._dropped_steps, 0
        self.ctx.metrics(metrics)
        return results

    def _report(
        self, env_steps: int, episodes: Sequence[Episode], dropped_steps: int, actions: Array
    ) -> None:
        """Do not report episodes as a collector does: `fire` reports the results of matches."""
        self.envstep += env_steps
        self._dropped_steps += dropped_steps

    def evaluate(self, weights: State) -> Batch:
        """Play the matches with these weights; return their results."""
        c = self.config
        table = [
            Assignment(FIRST_SCRIPTED - opponent, 0, k % c.sides)
            for opponent in range(len(c.opponents))
            for k in range(c.n_episode)
        ]
        self._played = self._first_env = 0
        self.envs.seed(self.ctx.seed_for("matches"), dynamic_seeds=False)
        self._has_begun = False
        state = matches_state({self._name: table}, {})
        return self.play(len(table), weights, state)


def _numbered(names: Iterable[str]) -> list[str]:
    """Names of which those that repeat have a number from the second on."""
    found: list[str] = []
    for name in names:
        times = sum(one.partition("#")[0] == name for one in found)
        found.append(f"{name}#{times + 1}" if times else name)
    return found
