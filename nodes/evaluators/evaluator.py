"""The evaluator plays greedily, saves the best weights, and ends the run when its goal is reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowrl.core.batch import Batch
from flowrl.core.config import part
from flowrl.core.facts import Facts, Surroundings
from flowrl.core.ports import Out, StateIn
from flowrl.core.state import State
from flowrl.nodes.collectors.actor import CollectedSteps
from flowrl.nodes.collectors.collector import requested_count
from flowrl.nodes.collectors.episodes import order_by_env
from flowrl.nodes.collectors.joined_managers import join_managers, join_specs
from flowrl.nodes.collectors.transitions import row_schema, transitions
from flowrl.nodes.configured_policies import policy_for, policy_of_mode
from flowrl.nodes.devices import available_device, device_facts
from flowrl.nodes.envs.agent_columns import env_spec
from flowrl.nodes.envs.info import info_schema
from flowrl.nodes.envs.spec import EnvSpec, require_one_policy
from flowrl.nodes.evaluators.base_evaluator import BEST, BaseEvaluator, check_goal, own_env
from flowrl.nodes.evaluators.evaluation import (
    Evaluation,
    metric_names,
    play_episodes,
)
from flowrl.nodes.evaluators.video import EpisodeRecorder
from flowrl.nodes.models.saved_weights import check_no_nan
from flowrl.nodes.observations import flatten_columns
from flowrl.nodes.policy import acting_facts, use_device, weights_facts


class Evaluator(BaseEvaluator):
    """Plays the same episodes in every evaluation, so that versions of the weights are comparable.

    These episodes alone do not end a run: once they reach the goal, as many episodes with new seeds
    must confirm it.
    """

    weights = StateIn("weights")
    data = Out("samples", optional=True, about="the steps of this evaluation, as rows for learning")

    class Config(BaseEvaluator.Config):
        policy: Any = part("policy", "the policy that acts", shared="policy")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        linked = surroundings.links.get("envs")
        spec = join_specs(linked) if linked else env_spec(own_env(config), 1)
        require_one_policy(spec)
        policy = policy_for(
            config.policy, spec.obs, spec.action, "policy"
        )  # raises if it does not fit
        check_goal(config, spec)
        schema = row_schema(spec.obs, spec.action, info_schema(spec), policy.gamma)
        numbers = [name for name, column in spec.info.items() if not column.shape]
        return Facts(
            outs={"data": schema},
            **weights_facts({"weights": (policy, "policy")}),
            **acting_facts({"policy": policy}, False, "data" in surroundings.connected_outputs),
            settings={"found": frozenset([*metric_names(numbers, config.win_above), BEST])},
            **device_facts(config, policy, False, surroundings.runs_here),
        )

    def setup(self) -> None:
        super().setup()
        c = self.config
        self.envs = join_managers(self._managers)
        spec: EnvSpec = self.envs.spec()
        require_one_policy(spec)
        check_goal(c, spec)
        self.policy = policy_for(c.policy, spec.obs, spec.action)
        make_mode = self.policy.eval_mode if policy_of_mode(c.policy) is None else c.policy
        self.mode = make_mode(self.ctx.seed_for("act"))
        use_device(self.mode, available_device(c.device))

    def fire(self, weights: State) -> Batch | None:
        """Evaluate the weights, save the best, and emit the verdict if the goal is reached."""
        steps: list[CollectedSteps] | None = [] if self.ctx.is_consumed("data") else None
        self._evaluate(weights, steps, self.config.episodes)
        return self._rows(steps) if steps else None

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
        return self._record(
            lambda recorder: self._evaluate(weights, None, self.config.episodes, recorder), path
        )

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
        confirming = f"confirm/{self._evaluations}"
        return self._judge(
            evaluation, found, weights, lambda: self.play(self.envs, confirming, None, n)
        )

    def play(self, envs: Any, seeds: str, steps: list[CollectedSteps] | None, n: int) -> Evaluation:
        c = self.config
        envs.seed(self.ctx.seed_for(seeds), dynamic_seeds=False)
        try:
            played = play_episodes(envs, self.mode, n, steps, c.most_steps)
        finally:
            self._take_failures()
        return Evaluation(played, win_above=c.win_above, metric=c.metric)

    def _rows(self, steps: list[CollectedSteps]) -> Batch:
        policy, spec = self.policy, self.envs.spec()
        ordered = order_by_env(steps, spec.count)
        columns = row_schema(policy.obs, policy.action, info_schema(spec))
        rows = flatten_columns(transitions(ordered, policy.gamma))
        return Batch({name: rows[name] for name in columns})
