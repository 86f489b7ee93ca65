"""The learner does one train iteration in each firing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Batch, Rows, Schema, as_batch
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import PartSpec, param, part
from flowrl.core.node import Facts, Node, Surroundings, UnsoundError
from flowrl.core.ports import In, Out, StateOut
from flowrl.core.state import State
from flowrl.nodes.greedy_policy import GreedyPolicy
from flowrl.nodes.models.saved_weights import check_no_nan
from flowrl.nodes.observations import obs_columns_in
from flowrl.nodes.policy import Policy, made_policy, policy_for_rows


class Learner(Node):
    """Trains the policy's learn mode; each train iteration makes a new version of the weights."""

    role = "learner"
    data = In("samples")
    weights = StateOut("weights")
    priorities = Out(
        "priorities", optional=True, about="the priorities of the rows that were learned from"
    )

    class Config(BaseConfig):
        policy: Any = part("policy", "the policy that learns", shared="policy")
        log_every_iters: int = param(
            100, "train iterations between two reports of mean metrics", ge=1
        )

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        policy = _policy_for_schema(config.policy, surroundings.inputs["data"])
        return Facts(
            outs={"priorities": {"priority": policy.priority_column()}},
            needs={"data": policy.learn_columns()},
            on_policy=policy.on_policy,
            needs_order=frozenset({"data"} if policy.needs_order else ()),
            imports=policy.imported_modules(learn=True),
        )

    @classmethod
    def trained_policy(
        cls, config: Any, inputs: Mapping[str, Schema | None], weights: State
    ) -> GreedyPolicy:
        """Make the policy that a learner with this config and these inputs trains, to act outside of the run."""
        return GreedyPolicy(_policy_for_schema(config.policy, inputs.get("data")), weights)

    def setup(self) -> None:
        self.policy = _policy_for_schema(self.config.policy, self.ctx.inputs.get("data"))
        self.mode = self.policy.learn_mode(self.ctx.seed_for("learn"))
        self._metrics: dict[str, list[Any]] = {}  # since the last report
        self.train_iter = 0

    def fire(self, data: Batch) -> Batch | None:
        """Do one train iteration; return the priorities of its rows, if the policy has any."""
        result = self.mode.forward(data, self.policy.command(self.ctx.clock.total))
        self.train_iter += 1
        rewards = {"learned_reward_mean": data["reward"].mean()} if "reward" in data else {}
        self._report({**result.metrics, **rewards})
        if result.priorities is None:
            return None
        return Batch({"priority": np.asarray(result.priorities, np.float32)})

    def state(self, port: str = "weights") -> State:
        """The current weights, with the command for the progress so far."""
        return State(self.mode.weights(), self.policy.command(self.ctx.clock.total))

    def train(self, batch: Batch | Rows, env_steps: int = 0) -> Batch | None:
        """By hand: do one train iteration, after `env_steps` more env steps; return its priorities, if any."""
        where, needed = f"{self.ctx.key}.train", self.policy.learn_columns()
        data = as_batch(where, batch)
        missing = [name for name in needed if name not in data]
        if missing:
            raise ValueError(
                f"{where}: the batch lacks the columns {', '.join(missing)}; "
                f"{type(self.policy).__name__} learns from {', '.join(needed)}"
            )
        priorities = self.fire(data)
        self.ctx.clock = self.ctx.clock.add(self.ctx.key, env_steps=env_steps, train_iters=1)
        return priorities

    def _report(self, metrics: Mapping[str, Any]) -> None:
        # Tensors are converted only when a report is due, because that waits for their computation.
        for name, value in metrics.items():
            self._metrics.setdefault(name, []).append(value)
        if self.train_iter % self.config.log_every_iters == 0:
            self.ctx.metrics({k: sum(map(float, v)) / len(v) for k, v in self._metrics.items()})
            self._metrics = {}
            check_no_nan(self.mode.weights())


def _policy_for_schema(policy: Any, schema: Schema | None) -> Policy:
    if not isinstance(policy, PartSpec):
        return made_policy(policy)
    obs, action = obs_columns_in(schema or {}, "obs"), (schema or {}).get("action")
    if obs is None or action is None:
        missing = "obs" if obs is None else "action"
        raise UnsoundError(f"the data has no column '{missing}'", "connect a collector or a buffer")
    return policy_for_rows(policy, obs, action)
