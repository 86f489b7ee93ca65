"""What evaluators have in common: their envs, how often they evaluate, the goal, and the best weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.facts import UnsoundError
from flowrl.core.node import Load, Node
from flowrl.core.ports import Link, StateOut
from flowrl.core.state import State
from flowrl.nodes.devices import device_param
from flowrl.nodes.env_managers.env_manager import EnvManager
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.agent_columns import env_spec
from flowrl.nodes.envs.spec import EnvSpec, evaluation_part
from flowrl.nodes.evaluators.evaluation import RETURN, Average, Evaluation
from flowrl.nodes.evaluators.own_envs import forward_records, make_own_manager
from flowrl.nodes.evaluators.video import EpisodeRecorder, RenderingEnvPart, render_episodes

DEFAULT_MOST_ENVS = 10
BEST = "best"  # among what was found: the best average so far, about which the goal is


class BaseEvaluator(Node):
    """A subclass plays episodes with the weights that it gets, and lets `_judge` decide what follows from them."""

    role = "evaluator"
    envs: Any = Link(
        "env_manager",
        optional=True,
        many=True,
        about="the envs to play in; without a link the evaluator makes its own",
    )
    found = StateOut(
        "results",
        optional=True,
        about="the newest evaluation: its metrics, for a learner's command",
    )

    class Config(BaseConfig):
        env: Any = part(
            "env",
            "the env to play in, without a link",
            shared="env",
            default=None,
            usual_type="gymnasium",
            replaced_by="envs",
        )
        device: str = device_param("where its networks act")
        episodes: int = param(20, "episodes in each evaluation", ge=1)
        env_count: int | None = param(
            None,
            "envs side by side, without a link; null: one for each episode, at most "
            f"{DEFAULT_MOST_ENVS}",
            ge=1,
            replaced_by="envs",
        )
        most_steps: int = param(
            100_000, "steps of an episode; a longer episode is an error, it may never end", ge=1
        )
        stop_value: float | None = param(
            None, "the run ends when the average reaches this; null: never"
        )
        metric: str = param(
            RETURN,
            "what the goal and the best checkpoint are about: an episode's `return`, or an entry of "
            "its last `info`, which `env: {info: …}` lists",
        )
        average: Average = param(
            "mean",
            "the average of that: `mean`, the share of won episodes, or per step (of returns)",
        )
        win_above: float | None = param(
            None, "an episode with more than this is won; null: no win rate is reported"
        )

    @classmethod
    def remedy(cls, config: Any, load: Load) -> str:
        """Fewer evaluations, or evaluations at the same time as everything else."""
        return "evaluate less often (`every`) or fewer `episodes`, or give it a process of its own (`--placement`)"

    def setup(self) -> None:
        self._own_manager = self._make_own_manager() if self.envs is None else None
        self._managers = self._own_manager or self.envs
        # Of the own envs in the last episodes, if any failed.
        self._failure_metrics: dict[str, float] = {}
        self._best: float | None = None
        self._found: dict[str, float] = {}  # the metrics of the newest evaluation
        self._evaluations = 0
        self._last_eval_iter: int | None = None

    def _make_own_manager(self) -> EnvManager:
        c = self.config
        env = own_env(c)
        agents = env_spec(env, 1).agents
        count = min(-(-c.episodes // agents), c.env_count or DEFAULT_MOST_ENVS)
        return make_own_manager(env, count, self.ctx)

    def state(self, port: str) -> State:
        """The newest evaluation, as settings; before the first one there are none."""
        return State({}, dict(self._found))

    def should_eval(self, train_iter: int, every_iters: int = 100) -> bool:
        """By hand: return true at first, and again whenever `every_iters` train iterations have passed."""
        last = self._last_eval_iter
        if last is not None and train_iter - last < every_iters:
            return False
        self._last_eval_iter = train_iter
        return True

    def _record(self, evaluate: Callable[[EpisodeRecorder], object], path: Path) -> list[Path]:
        """Evaluate in other envs, and make videos of three episodes."""
        managers = self._managers
        env = (managers[0] if isinstance(managers, Sequence) else managers).part
        rendering = RenderingEnvPart(env)  # an env that cannot be rendered is refused at once
        spec: EnvSpec = self.envs.spec()
        manager = SerialEnvManager(env=env, count=spec.count // spec.agents)
        recorder = EpisodeRecorder(manager)
        try:
            evaluate(recorder)
        finally:
            manager.close()
        seed = self.ctx.seed_for("episodes")
        return render_episodes(rendering, recorder.count, seed, recorder.select_episodes(), path)

    def close(self) -> None:
        if self._own_manager is not None:
            self._own_manager.close()

    def _judge(
        self,
        evaluation: Evaluation,
        found: dict[str, float],
        weights: State | Mapping[str, State],
        play_again: Callable[[], Evaluation],
    ) -> Evaluation:
        """Save the weights if they are the best, emit the verdict if the goal is reached, and report what was found.

        `play_again` plays as many episodes with new seeds.
        """
        metrics = {**found, **self._failure_metrics}
        self._save_best(weights, evaluation, metrics)
        self._found = found if self._best is None else {**found, BEST: self._best}
        if self._reaches_goal(evaluation):
            confirmation = play_again()
            metrics.update(self._failure_metrics, confirm_return_mean=confirmation.return_mean)
            if evaluation.metric != RETURN:
                metrics[f"confirm_{evaluation.metric}"] = confirmation.average("mean")
            if self._reaches_goal(confirmation):
                evaluation = replace(evaluation, stop=True)
                self.ctx.verdict(self._verdict(evaluation, confirmation))
        self.ctx.histograms({"return": evaluation.returns})
        self.ctx.metrics(metrics)
        return evaluation

    def _take_failures(self) -> None:
        """Take what the own envs recorded since the last episodes."""
        if self._own_manager is not None:
            self._failure_metrics = forward_records(self._own_manager, self.ctx)

    def _save_best(
        self,
        weights: State | Mapping[str, State],
        evaluation: Evaluation,
        metrics: dict[str, float],
    ) -> None:
        value = evaluation.average(self.config.average)
        if math.isnan(value):  # an entry of `info` was missing
            value = -math.inf
        if self._best is None or value > self._best:
            self._best = value
            self.ctx.save_checkpoint(
                "best",
                weights,
                eval_return=metrics["return_mean"],
                eval_return_std=metrics["return_std"],
                eval_episodes=len(evaluation.episodes),
            )

    def _reaches_goal(self, evaluation: Evaluation) -> bool:
        goal = self.config.stop_value
        return goal is not None and evaluation.average(self.config.average) >= goal

    def _verdict(self, evaluation: Evaluation, confirmation: Evaluation) -> str:
        c, n = self.config, len(evaluation.episodes)
        name: Average = c.average
        word = {"win_rate": "win rate", "per_step": f"{c.metric} per step"}.get(
            name, f"mean {c.metric}"
        )
        return (
            f"{word} {evaluation.average(name):g} over {n} episodes, and {confirmation.average(name):g} over "
            f"{n} unseen ones; the goal is {c.stop_value:g}"
        )


def own_env(config: Any) -> Any:
    """The env of an evaluator without a link."""
    if config.env is None:
        what = "it has no env to play in"
        raise UnsoundError(what, "give it an `env`, or link it to an env manager", "env")
    return evaluation_part(config.env)


def check_goal(config: Any, spec: EnvSpec) -> None:
    """Refuse a goal about something that is not measured."""
    metric = config.metric
    if metric != RETURN and (metric not in spec.info or spec.info[metric].shape):
        numbers = [name for name, column in spec.info.items() if not column.shape]
        what = f"there is no number '{metric}' in the listed info of the env"
        listed = f"known: {', '.join((RETURN, *numbers))}"
        raise UnsoundError(
            what, f"{listed}; list it: `env: {{info: {{{metric}: bool}}}}`", "metric"
        )
    if config.average == "per_step" and metric != RETURN:
        what = f"`average: per_step` is for returns, and the metric is {metric}"
        raise UnsoundError(what, "take `mean` or `win_rate`", "average")
    if config.average == "win_rate" and config.win_above is None:
        what = f"a win rate needs the {metric} above which an episode is won"
        raise UnsoundError(what, "give `win_above`", "win_above")
    if (
        config.stop_value is not None
        and config.stop_value > 1
        and (why := _at_most_1(config, spec))
    ):
        what = f"`stop_value` is {config.stop_value:g}, and {why}"
        raise UnsoundError(what, "give a share from 0 to 1, or null", "stop_value")


def _at_most_1(config: Any, spec: EnvSpec) -> str:
    """Why the average of the goal is at most 1; empty if it may be more."""
    if config.average == "win_rate":
        return "a win rate is at most 1"
    metric = config.metric
    if config.average == "mean" and metric != RETURN and spec.info[metric].dtype == "bool":
        return f"the mean of '{metric}', which is true or false, is at most 1"
    return ""
