"""The evaluator: plays greedily, keeps the best weights, and tells when the goal is reached."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from flowrl.core.batch import Batch
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.context import Context
from flowrl.core.node import Facts, Node, Surroundings, UnsoundError
from flowrl.core.ports import Out, StateIn
from flowrl.core.state import State
from flowrl.nodes.collectors.acting import Taken
from flowrl.nodes.collectors.collector import amount
from flowrl.nodes.collectors.episodes import episode_rows, in_order
from flowrl.nodes.collectors.transitions import row_schema
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.agent_rows import env_spec
from flowrl.nodes.envs.spec import env_part, evaluation_part
from flowrl.nodes.evaluators.evaluation import Average, Evaluation, play
from flowrl.nodes.evaluators.video import Watched, film
from flowrl.nodes.models.model import check_no_nan
from flowrl.nodes.observations import flatten_columns
from flowrl.nodes.policy import policy_for

MOST_ENVS = 10  # by default


class Evaluator(Node):
    """Every evaluation plays the same episodes, so that versions of the weights can be compared.

    Those episodes alone do not end a run: a goal that they reach must be reached again in as many
    episodes that were never seen.
    """

    role = "evaluator"
    weights = StateIn("weights")
    data = Out("samples", optional=True, about="the steps of this evaluation, as rows for learning")

    class Config(BaseConfig):
        env: Any = part("env", "what to play", shared="env", default="gymnasium")
        policy: Any = part("policy", "what acts", shared="policy")
        episodes: int = param(20, "episodes in each evaluation", ge=1)
        envs: int | None = param(
            None, f"envs side by side; default: one an episode, at most {MOST_ENVS}", ge=1
        )
        most_steps: int = param(
            100_000, "steps of an episode; a longer one is an error, it may have no end", ge=1
        )
        stop_value: float | None = param(None, "average at which the run has reached its goal")
        average: Average = param(
            "return_mean", "what the goal and the best checkpoint go by: returns, wins, or rewards"
        )
        win_above: float | None = param(
            None, "an episode with a return above this is won; null: nothing is said of wins"
        )

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """The columns of the greedy steps; how many rows there will be depends on the policy."""
        spec = env_spec(evaluation_part(config.env), 1)
        policy = policy_for(config.policy, spec.obs, spec.action)  # says what is wrong with it
        _demand(config)
        schema = row_schema(spec.obs, spec.action, {})
        return Facts(outs={"data": schema}, imports=policy.imported_modules(learn=False))

    def setup(self) -> None:
        """Envs of its own, which begin the same list of episodes in each evaluation."""
        c, ctx = self.config, self.ctx
        _demand(c)
        env = env_part(evaluation_part(c.env))
        agents = env_spec(env, 1).agents
        count = min(-(-c.episodes // agents), c.envs or MOST_ENVS)
        own = Context(ctx.name, ctx.replica, ctx.seed)
        config = SerialEnvManager.Config(env=env, count=count)
        self._envs = SerialEnvManager(config=config, context=own)
        spec = self._envs.spec()
        self._policy = policy_for(c.policy, spec.obs, spec.action)
        self._mode = self._policy.eval_mode(ctx.seed_for("act"))
        self._best: float | None = None
        self._firings = 0
        self._evaluated_at: int | None = None

    def fire(self, weights: State) -> Batch | None:
        """Evaluate these weights; keep the best; the verdict, if the goal is reached."""
        steps: list[Taken] | None = [] if self.ctx.is_consumed("data") else None
        self._evaluate(weights, steps, self.config.episodes)
        return self._rows(steps) if steps else None

    def eval(self, weights: State | None = None, n_episode: int | None = None) -> Evaluation:
        """By hand: the evaluation of these weights, over `episodes` by default as configured.

        Without weights: of a policy that acts without, such as `random` and `expert`.
        """
        n = amount("n_episode", n_episode, self.config.episodes)
        if weights is None:
            if not self._policy.acts_without_weights:
                raise ValueError(
                    f"{type(self._policy).__name__} acts with weights, and none are given; give those "
                    "of a learner: `learner.state()`"
                )
            weights = State({})
        return self._evaluate(weights, None, n)

    def film(self, weights: State, out: Path) -> list[Path]:
        """Evaluate, and film the worst, the median and the best episode; gives the files.

        Into a folder one file each, into a file (.mp4 or .gif) one after another. Where agents act
        for themselves, an episode is a game of all of them.
        """
        watched = Watched(self._envs)
        self._evaluate(weights, None, self.config.episodes, watched)
        seed = self.ctx.seed_for("episodes")
        return film(evaluation_part(self.config.env), watched.count, seed, watched.scenes(), out)

    def should_eval(self, train_iter: int, every_iters: int = 100) -> bool:
        """By hand: whether so many train iterations passed since this last said yes."""
        last = self._evaluated_at
        if last is not None and train_iter - last < every_iters:
            return False
        self._evaluated_at = train_iter
        return True

    def close(self) -> None:
        """Close the envs."""
        self._envs.close()

    def _evaluate(
        self, weights: State, steps: list[Taken] | None, n: int, watched: Watched | None = None
    ) -> Evaluation:
        self._firings += 1
        check_no_nan(weights.arrays)
        self._mode.load(weights)
        found = self._play(watched or self._envs, "episodes", steps, n)
        metrics = found.metrics(self.ctx.rng("bootstrap"))
        self._keep_best(weights, found, metrics)
        if self._reaches_goal(found):
            again = self._play(self._envs, f"confirm/{self._firings}", None, n)
            metrics["confirm_return_mean"] = again.return_mean
            if self._reaches_goal(again):
                found = replace(found, stop=True)
                self.ctx.verdict(self._reason(found, again))
        self.ctx.metrics(metrics)
        return found

    def _play(self, envs: Any, seeds: str, steps: list[Taken] | None, n: int) -> Evaluation:
        c = self.config
        self._envs.seed(self.ctx.seed_for(seeds), dynamic_seeds=False)
        played = play(envs, self._mode, n, steps, c.most_steps)
        return Evaluation(played, win_above=c.win_above)

    def _keep_best(self, weights: State, found: Evaluation, metrics: dict[str, float]) -> None:
        value = found.average(self.config.average)
        if self._best is None or value > self._best:
            self._best = value
            self.ctx.save_checkpoint(
                "best",
                weights,
                eval_return=metrics["return_mean"],
                eval_return_std=metrics["return_std"],
                eval_episodes=len(found.episodes),
            )

    def _reaches_goal(self, evaluation: Evaluation) -> bool:
        goal = self.config.stop_value
        return goal is not None and evaluation.average(self.config.average) >= goal

    def _reason(self, found: Evaluation, again: Evaluation) -> str:
        name, n = self.config.average, len(found.episodes)
        word = {"return_mean": "mean return"}.get(name, name.replace("_", " "))
        return (
            f"{word} {found.average(name):g} over {n} episodes, and {again.average(name):g} over "
            f"{n} unseen ones; the goal is {self.config.stop_value:g}"
        )

    def _rows(self, steps: list[Taken]) -> Batch:
        policy, ordered = self._policy, in_order(steps, self._envs.spec().count)
        columns = row_schema(policy.obs, policy.action, {})
        rows = flatten_columns(episode_rows(ordered, policy.gamma, policy.nstep))
        return Batch({name: rows[name] for name in columns})


def _demand(config: Any) -> None:
    if config.average == "win_rate" and config.win_above is None:
        what = "a win rate needs the return above which an episode is won"
        raise UnsoundError(what, "give `win_above`", "win_above")
