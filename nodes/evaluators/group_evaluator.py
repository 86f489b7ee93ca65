"""The evaluator of groups of agents: it plays all of them greedily, and reports the returns of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowrl.core.config import named_parts, param
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.state import State
from flowrl.nodes.collectors.collector import requested_count
from flowrl.nodes.collectors.grouped_envs import GroupedEnvs
from flowrl.nodes.collectors.joined_managers import join_specs
from flowrl.nodes.envs.agent_columns import env_spec
from flowrl.nodes.envs.spec import EnvSpec
from flowrl.nodes.evaluators.base_evaluator import BaseEvaluator, check_goal, own_env
from flowrl.nodes.evaluators.evaluation import Evaluation
from flowrl.nodes.evaluators.group_evaluation import GroupEpisodes, play_groups
from flowrl.nodes.evaluators.video import EpisodeRecorder
from flowrl.nodes.group_policies import (
    WEIGHTS,
    GroupModes,
    acts_without_weights,
    group_facts,
    group_policies,
    weights_by_group,
    weights_ports,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class GroupEvaluator(BaseEvaluator):
    """Plays `episodes` episodes of the envs, the same ones in every evaluation, with a policy for each group of agents.

    Each group NAME whose policy needs weights has the state NAME_weights. The metrics NAME/return_mean and so on are
    over the episodes of the group's agents, and NAME/team_return_mean is the mean sum of their returns in an episode.
    Those without a name before them are the ones of `group`.
    """

    # It begins each evaluation with a reset.
    unsaved = ("_grouped",)

    class Config(BaseEvaluator.Config):
        policies: Any = named_parts(
            "policy", "the policy that acts for each group, by its name", shared="policy"
        )
        group: str | None = param(
            None,
            "the group that the goal and the best checkpoint are about; null: the first of `policies` that learns",
        )

    @classmethod
    def configured(cls, config: Any) -> type[Self]:
        return cls.with_ports(weights_ports(config.policies))

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        linked = surroundings.links.get("envs")
        spec = join_specs(linked) if linked else env_spec(own_env(config), 1)
        policies = group_policies(config, spec)
        _check_config(config, spec)
        return Facts(**group_facts(config, policies, surroundings.runs_here, explores=False))

    def setup(self) -> None:
        super().setup()
        self._grouped = GroupedEnvs(self._managers)
        self.envs = self._grouped.envs
        spec: EnvSpec = self.envs.spec()
        policies = group_policies(self.config, spec)
        _check_config(self.config, spec)
        self._group = _group_of_goal(self.config)
        self._modes = GroupModes(policies, self.config, self.ctx)

    def fire(self, *weights: State) -> None:
        """Evaluate the weights, save the best, and emit the verdict if the goal is reached."""
        self._evaluate(weights_by_group(self.config.policies, weights), self.config.episodes)

    def eval(
        self, weights: Mapping[str, State] | None = None, n_episode: int | None = None
    ) -> dict[str, Evaluation]:
        """By hand: evaluate these weights, by group, over `n_episode` episodes (by default as configured)."""
        n = requested_count("n_episode", n_episode, self.config.episodes)
        return self._evaluate(weights or {}, n)

    def record_videos(self, *weights: State, path: Path) -> list[Path]:
        """Evaluate, and make videos of the worst, the median and the best episode; return the files.

        A path with the suffix .mp4 or .gif is one video of all three; any other path is a folder with a file for each.
        """
        states = weights_by_group(self.config.policies, weights)
        return self._record(
            lambda recorder: self._evaluate(states, self.config.episodes, recorder), path
        )

    def _evaluate(
        self, weights: Mapping[str, State], n: int, recorder: EpisodeRecorder | None = None
    ) -> dict[str, Evaluation]:
        self._evaluations += 1
        self._modes.load(weights)
        envs = self._grouped if recorder is None else GroupedEnvs(recorder)
        played = self._play(envs, "episodes", n)
        found = {name: self._evaluation(name, one) for name, one in played.items() if one.episodes}
        goal = self._require_episodes(found)
        states = {name + WEIGHTS: state for name, state in weights.items()}
        metrics = {**goal.metrics(self.ctx.rng("bootstrap")), **_metrics_of_groups(found, played)}
        found[self._group] = self._judge(goal, metrics, states, lambda: self._confirm(n))
        return found

    def _confirm(self, n: int) -> Evaluation:
        played = self._play(self._grouped, f"confirm/{self._evaluations}", n)
        return self._evaluation(self._group, played[self._group])

    def _play(self, envs: GroupedEnvs, seeds: str, n: int) -> dict[str, GroupEpisodes]:
        envs.seed(self.ctx.seed_for(seeds), dynamic_seeds=False)
        try:
            return play_groups(envs, self._modes.by_group, n, self.config.most_steps)
        finally:
            self._take_failures()

    def _evaluation(self, name: str, played: GroupEpisodes) -> Evaluation:
        is_goal = name == self._group
        measured = {"metric": self.config.metric} if is_goal else {}
        return Evaluation(
            played.episodes, win_above=self.config.win_above if is_goal else None, **measured
        )

    def _require_episodes(self, found: Mapping[str, Evaluation]) -> Evaluation:
        if self._group not in found:
            raise ValueError(
                f"no agent of the group {self._group} had an episode; choose another `group`, or play more `episodes`"
            )
        return found[self._group]


def _metrics_of_groups(
    found: Mapping[str, Evaluation], played: Mapping[str, GroupEpisodes]
) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, evaluation in found.items():
        returns = played[name].team_returns
        metrics |= {f"{name}/{key}": value for key, value in evaluation.metrics().items()}
        metrics[f"{name}/team_return_mean"] = sum(returns) / len(returns)
    return metrics


def _group_of_goal(config: Any) -> str:
    if config.group is not None:
        return str(config.group)
    learning = [n for n, policy in config.policies.items() if not acts_without_weights(policy)]
    return next(iter(learning or config.policies))


def _check_config(config: Any, spec: EnvSpec) -> None:
    if config.group is not None and config.group not in spec.groups:
        what = f"there is no group '{config.group}'"
        raise UnsoundError(what, f"choose one of {', '.join(spec.groups)}", "group")
    if config.stop_value is not None and config.group is None and len(spec.groups) > 1:
        what = f"the goal does not say of which group {config.stop_value:g} is the return"
        raise UnsoundError(what, f"give `group`: {', '.join(spec.groups)}", "stop_value")
    check_goal(config, spec.groups[_group_of_goal(config)])
