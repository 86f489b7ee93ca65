"""The evaluator: plays greedily, keeps the best weights, and tells when the goal is reached."""

from __future__ import annotations

from typing import Any

from flowrl.batch import Batch
from flowrl.config import Config as BaseConfig
from flowrl.config import param, part
from flowrl.context import Context
from flowrl.node import Facts, Known, Node
from flowrl.nodes.collectors.acting import Taken
from flowrl.nodes.collectors.episodes import episode_rows, in_order
from flowrl.nodes.collectors.transitions import row_schema
from flowrl.nodes.envs.base_env_manager import BaseEnvManager
from flowrl.nodes.envs.spec import columns_of, to_evaluate
from flowrl.nodes.evaluators.evaluation import Evaluation, play
from flowrl.nodes.observations import flat
from flowrl.nodes.policies.policy import policy_for
from flowrl.ports import Out, StateIn
from flowrl.state import State

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
        stop_value: float | None = param(None, "mean return at which the run has reached its goal")

    @classmethod
    def describe(cls, config: Any, known: Known) -> Facts:
        """The columns of the greedy steps; how many rows there will be depends on the policy."""
        obs, action = columns_of(to_evaluate(config.env))
        policy = policy_for(config.policy, obs, action)  # says what is wrong with it
        schema = row_schema(obs, action, {})
        return Facts(outs={"data": schema}, loads=policy.loads(learn=False))

    def setup(self) -> None:
        """Envs of its own, which begin the same list of episodes in each evaluation."""
        c, ctx = self.config, self.ctx
        count = min(c.episodes, c.envs or MOST_ENVS)
        own = Context(ctx.name, ctx.replica, ctx.seed)
        config = BaseEnvManager.Config(env=to_evaluate(c.env), count=count)
        self._envs = BaseEnvManager(config=config, context=own)
        spec = self._envs.spec()
        self._policy = policy_for(c.policy, spec.obs, spec.action)
        self._mode = self._policy.eval_mode(ctx.seed_for("act"))
        self._best: float | None = None
        self._firings = 0
        self._evaluated_at: int | None = None

    def fire(self, weights: State) -> Batch | None:
        """Evaluate these weights; keep the best; the verdict, if the goal is reached."""
        steps: list[Taken] | None = [] if self.ctx.wants("data") else None
        self._evaluate(weights, steps)
        return self._rows(steps) if steps else None

    def eval(self, weights: State) -> Evaluation:
        """By hand: the evaluation of these weights."""
        return self._evaluate(weights, None)

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

    def _evaluate(self, weights: State, steps: list[Taken] | None) -> Evaluation:
        self._firings += 1
        self._mode.load(weights)
        found = self._play("episodes", steps)
        metrics = found.metrics()
        self._keep_best(weights, metrics)
        if self._reaches_goal(found):
            again = self._play(f"confirm/{self._firings}", None)
            metrics["confirm_return_mean"] = again.return_mean
            if self._reaches_goal(again):
                found = Evaluation(found.episodes, stop=True)
                self.ctx.verdict(self._reason(found, again))
        self.ctx.metrics(metrics)
        return found

    def _play(self, seeds: str, steps: list[Taken] | None) -> Evaluation:
        c = self.config
        self._envs.seed(self.ctx.seed_for(seeds), dynamic_seeds=False)
        return Evaluation(play(self._envs, self._mode, c.episodes, steps, c.most_steps))

    def _keep_best(self, weights: State, metrics: dict[str, float]) -> None:
        mean = metrics["return_mean"]
        if self._best is None or mean > self._best:
            self._best = mean
            self.ctx.keep(
                "best",
                weights,
                eval_return=mean,
                eval_return_std=metrics["return_std"],
                eval_episodes=self.config.episodes,
            )

    def _reaches_goal(self, evaluation: Evaluation) -> bool:
        goal = self.config.stop_value
        return goal is not None and evaluation.return_mean >= goal

    def _reason(self, found: Evaluation, again: Evaluation) -> str:
        n = self.config.episodes
        return (
            f"mean return {found.return_mean:g} over {n} episodes, and {again.return_mean:g} over "
            f"{n} unseen ones; the goal is {self.config.stop_value:g}"
        )

    def _rows(self, steps: list[Taken]) -> Batch:
        policy, ordered = self._policy, in_order(steps, self._envs.spec().count)
        columns = row_schema(policy.obs, policy.action, {})
        rows = flat(episode_rows(ordered, policy.gamma, policy.nstep))
        return Batch({name: rows[name] for name in columns})
