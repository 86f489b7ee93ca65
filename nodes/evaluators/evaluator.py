"""The evaluator plays greedily, saves the best weights, and ends the run when its goal is reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowrl.core.batch import Batch
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.node import Facts, Load, Node, Surroundings, UnsoundError
from flowrl.core.ports import Link, Out, StateIn, StateOut
from flowrl.core.state import State
from flowrl.nodes.collectors.actor import CollectedSteps
from flowrl.nodes.collectors.collector import requested_count
from flowrl.nodes.collectors.episodes import order_by_env
from flowrl.nodes.collectors.joined_managers import join_managers, join_specs
from flowrl.nodes.collectors.transitions import row_schema, transitions
from flowrl.nodes.devices import available_device, device_facts, device_param
from flowrl.nodes.env_managers.env_manager import EnvManager
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.agent_columns import env_spec
from flowrl.nodes.envs.info import info_schema
from flowrl.nodes.envs.spec import EnvSpec, evaluation_part
from flowrl.nodes.evaluators.evaluation import (
    RETURN,
    Average,
    Evaluation,
    metric_names,
    play_episodes,
)
from flowrl.nodes.evaluators.own_envs import forward_records, make_own_manager
from flowrl.nodes.evaluators.video import EpisodeRecorder, RenderingEnvPart, render_episodes
from flowrl.nodes.models.saved_weights import check_no_nan
from flowrl.nodes.observations import flatten_columns
from flowrl.nodes.policy import policy_for, policy_of_mode, use_device

DEFAULT_MOST_ENVS = 10
BEST = "best"  # among what was found: the best average so far, about which the goal is


class Evaluator(Node):
    """Plays the same episodes in every evaluation, so that versions of the weights are comparable.

    These episodes alone do not end a run: once they reach the goal, as many episodes with new seeds must
    confirm it.
    """

    role = "evaluator"
    envs: Any = Link(
        "env_manager",
        optional=True,
        many=True,
        about="the envs to play in; without a link the evaluator makes its own",
    )
    weights = StateIn("weights")
    found = StateOut(
        "results",
        optional=True,
        about="the newest evaluation: its metrics, for a learner's command",
    )
    data = Out("samples", optional=True, about="the steps of this evaluation, as rows for learning")

    class Config(BaseConfig):
        env: Any = part(
            "env",
            "the env to play in, without a link",
            shared="env",
            default=None,
            usual_type="gymnasium",
            replaced_by="envs",
        )
        policy: Any = part("policy", "the policy that acts", shared="policy")
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
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        linked = surroundings.links.get("envs")
        spec = join_specs(linked) if linked else env_spec(_own_env(config), 1)
        policy = policy_for(config.policy, spec.obs, spec.action)  # raises if it does not fit
        _check_config(config, spec)
        schema = row_schema(spec.obs, spec.action, info_schema(spec))
        numbers = [name for name, column in spec.info.items() if not column.shape]
        return Facts(
            outs={"data": schema},
            acts_on={"weights": policy.weights_columns()},
            settings={"found": frozenset([*metric_names(numbers, config.win_above), BEST])},
            **device_facts(config, policy, False, surroundings.runs_here),
        )

    @classmethod
    def remedy(cls, config: Any, load: Load) -> str:
        """Fewer evaluations, or evaluations at the same time as everything else."""
        return "evaluate less often (`every`) or fewer `episodes`, or give it a process of its own (`--placement`)"

    def setup(self) -> None:
        c = self.config
        self._own_manager = self._make_own_manager() if self.envs is None else None
        self._managers = self._own_manager or self.envs
        self.envs = join_managers(self._managers)
        spec: EnvSpec = self.envs.spec()
        _check_config(c, spec)
        self.policy = policy_for(c.policy, spec.obs, spec.action)
        make_mode = self.policy.eval_mode if policy_of_mode(c.policy) is None else c.policy
        self.mode = make_mode(self.ctx.seed_for("act"))
        use_device(self.mode, available_device(c.device))
        # Of the own envs in the last episodes, if any failed.
        self._failure_metrics: dict[str, float] = {}
        self._best: float | None = None
        self._found: dict[str, float] = {}  # the metrics of the newest evaluation
        self._evaluations = 0
        self._last_eval_iter: int | None = None

    def _make_own_manager(self) -> EnvManager:
        c = self.config
        env = _own_env(c)
        agents = env_spec(env, 1).agents
        count = min(-(-c.episodes // agents), c.env_count or DEFAULT_MOST_ENVS)
        return make_own_manager(env, count, self.ctx)

    def fire(self, weights: State) -> Batch | None:
        """Evaluate the weights, save the best, and emit the verdict if the goal is reached."""
        steps: list[CollectedSteps] | None = [] if self.ctx.is_consumed("data") else None
        self._evaluate(weights, steps, self.config.episodes)
        return self._rows(steps) if steps else None

    def state(self, port: str) -> State:
        """The newest evaluation, as settings; before the first one there are none."""
        return State({}, dict(self._found))

    def eval(self, weights: State | None = None, n_episode: int | None = None) -> Evaluation:
        """By hand: evaluate these weights over `n_episode` episodes (by default as configured).

        `weights` may be omitted for a policy that acts without them, such as `random` and `expert`.
        """
        n = requested_count("n_episode", n_episode, self.config.episodes)
        if weights is None:
            if not self.policy.acts_without_weights:
                raise ValueError(
                    f"{type(self.policy).__name__} needs weights to act; give those of a learner: "
                    "`learner.state()`"
                )
            weights = State({})
        return self._evaluate(weights, None, n)

    def record_videos(self, weights: State, path: Path) -> list[Path]:
        """Evaluate, and make videos of the worst, the median and the best episode; return the files.

        A path with the suffix .mp4 or .gif is one video of all three; any other path is a folder with a
        file for each. In an env with several agents, an episode is that of all agents.
        """
        managers = self._managers
        env = (managers[0] if isinstance(managers, Sequence) else managers).part
        rendering = RenderingEnvPart(env)  # an env that cannot be rendered is refused at once
        spec: EnvSpec = self.envs.spec()
        manager = SerialEnvManager(env=env, count=spec.count // spec.agents)
        recorder = EpisodeRecorder(manager)
        try:
            self._evaluate(weights, None, self.config.episodes, recorder)
        finally:
            manager.close()
        seed = self.ctx.seed_for("episodes")
        return render_episodes(rendering, recorder.count, seed, recorder.select_episodes(), path)

    def should_eval(self, train_iter: int, every_iters: int = 100) -> bool:
        """By hand: return true at first, and again whenever `every_iters` train iterations have passed."""
        last = self._last_eval_iter
        if last is not None and train_iter - last < every_iters:
            return False
        self._last_eval_iter = train_iter
        return True

    def close(self) -> None:
        if self._own_manager is not None:
            self._own_manager.close()

    def _evaluate(
        self,
        weights: State,
        steps: list[CollectedSteps] | None,
        n: int,
        recorder: EpisodeRecorder | None = None,
    ) -> Evaluation:
        self._evaluations += 1
        check_no_nan(weights.arrays)
        self.mode.load(weights)
        evaluation = self.play(recorder or self.envs, "episodes", steps, n)
        found = evaluation.metrics(self.ctx.rng("bootstrap"))
        metrics = {**found, **self._failure_metrics}
        self._save_best(weights, evaluation, metrics)
        self._found = found if self._best is None else {**found, BEST: self._best}
        if self._reaches_goal(evaluation):
            confirmation = self.play(self.envs, f"confirm/{self._evaluations}", None, n)
            metrics.update(self._failure_metrics, confirm_return_mean=confirmation.return_mean)
            if evaluation.metric != RETURN:
                metrics[f"confirm_{evaluation.metric}"] = confirmation.average("mean")
            if self._reaches_goal(confirmation):
                evaluation = replace(evaluation, stop=True)
                self.ctx.verdict(self._verdict(evaluation, confirmation))
        self.ctx.histograms({"return": evaluation.returns})
        self.ctx.metrics(metrics)
        return evaluation

    def play(self, envs: Any, seeds: str, steps: list[CollectedSteps] | None, n: int) -> Evaluation:
        c = self.config
        envs.seed(self.ctx.seed_for(seeds), dynamic_seeds=False)
        try:
            played = play_episodes(envs, self.mode, n, steps, c.most_steps)
        finally:
            if self._own_manager is not None:
                self._failure_metrics = forward_records(self._own_manager, self.ctx)
        return Evaluation(played, win_above=c.win_above, metric=c.metric)

    def _save_best(self, weights: State, evaluation: Evaluation, metrics: dict[str, float]) -> None:
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

    def _rows(self, steps: list[CollectedSteps]) -> Batch:
        policy, spec = self.policy, self.envs.spec()
        ordered = order_by_env(steps, spec.count)
        columns = row_schema(policy.obs, policy.action, info_schema(spec))
        rows = flatten_columns(transitions(ordered, policy.gamma))
        return Batch({name: rows[name] for name in columns})


def _own_env(config: Any) -> Any:
    """The env of an evaluator without a link."""
    if config.env is None:
        what = "it has no env to play in"
        raise UnsoundError(what, "give it an `env`, or link it to an env manager", "env")
    return evaluation_part(config.env)


def _check_config(config: Any, spec: EnvSpec) -> None:
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
