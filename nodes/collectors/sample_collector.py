"""The collector of a fixed number of env steps in each firing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import field_validator

from flowrl.core.batch import Batch, Schema
from flowrl.core.config import param, part
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.state import State
from flowrl.nodes.collectors.actor import CollectedSteps
from flowrl.nodes.collectors.collector import Collector, requested_count
from flowrl.nodes.collectors.independent_stepping import IndependentStepping
from flowrl.nodes.collectors.row_slicer import (
    PendingSteps,
    RowSlicer,
    check_rewards_of_unrolls,
    sliced_schema,
)
from flowrl.nodes.collectors.transitions import row_schema, step_schema
from flowrl.nodes.devices import device_facts
from flowrl.nodes.envs.spec import EnvSpec
from flowrl.nodes.envs.steps import Episode
from flowrl.nodes.nstep import nstep_of, require_gamma
from flowrl.nodes.origin import LINK_COLUMNS, origin_schema
from flowrl.nodes.policy import Policy, acting_facts, rows_gamma, weights_facts


class SampleCollector(Collector):
    """Each token holds the next `n_sample` env steps, sorted by env and then by time.

    A row is one step or, if the policy learns from unrolls, `unroll_steps` steps. No step is lost: if
    there are more envs than rows left, the step stays pending until the next firing. A step counts when
    its row is returned, so every firing counts `n_sample` env steps.

    If the policy that learns sums rewards (`nstep`), a row also says of which env and step it is, so that a
    buffer finds the next one.
    """

    class Config(Collector.Config):
        n_sample: int = param(96, "env steps in each token, over all envs", ge=1)
        stepping: Literal["together", "halves", "independent", "ready"] = param(
            "together",
            "`together`: all envs at once; `halves`: one half while the policy serves the other half; "
            "`independent`: each env as soon as it is ready, with the same rows as `together`; `ready`: "
            "each env as soon as it is ready, with rows in the order in which envs are ready",
        )
        least: int = param(
            1, "`independent`, `ready`: ready envs that a call of the policy waits for", ge=1
        )
        learning_policy: Any = part(
            "policy",
            "the policy that learns from the rows, for the rewards that it sums, and for their discount if the one "
            "that acts does not learn; by hand: the one that acts",
            shared="policy",
            default=None,
            reads=("nstep", "gamma"),
        )

        @field_validator("stepping", mode="before")
        @classmethod
        def _refuse_old_name(cls, value: Any) -> Any:
            if value == "own_pace":
                raise ValueError("`own_pace` is now called `independent`")
            return value

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        spec, policy = cls.spec_and_policy(config, surroundings)
        slicer = RowSlicer.for_policy(policy)
        _check_config(config, spec, slicer)
        check_rewards_of_unrolls(policy)
        _check_newest_weights(config, spec, policy, slicer)
        extra = cls.extra_columns(config, policy, spec)
        gamma = rows_gamma(policy, config.learning_policy)
        rows = sliced_schema(row_schema(spec.obs, spec.action, extra, gamma), policy)
        if config.learning_policy is not None:
            require_gamma(config.learning_policy, rows, "learning_policy")
        why = "envs are stepped as they are ready"
        return Facts(
            outs={"data": {**rows, **policy.estimated_columns()}},
            rows={"data": config.n_sample // slicer.stride},
            cuts_episodes=frozenset({"data"}),
            env_steps=config.n_sample if config.counts else 0,
            nondeterministic=why if config.stepping == "ready" else "",
            **weights_facts({"weights": (policy, "policy")}),
            **acting_facts({"policy": policy}, explores=True, gamma=gamma),
            needs_settings={"weights": policy.collect_settings()},
            **device_facts(config, policy, False, surroundings.runs_here),
        )

    @classmethod
    def origin_columns(cls, config: Any, policy: Policy, spec: EnvSpec) -> Schema:
        if config.origin or nstep_of(config.learning_policy or policy) == 1:
            return super().origin_columns(config, policy, spec)
        columns = origin_schema(spec.count)
        return {name: columns[name] for name in LINK_COLUMNS}

    def setup(self) -> None:
        super().setup()
        _check_config(self.config, self.envs.spec(), self._slicer)
        check_rewards_of_unrolls(self.policy)
        _check_newest_weights(self.config, self.envs.spec(), self.policy, self._slicer)

    def _restart(self) -> None:
        super()._restart()
        spec, policy = self.envs.spec(), self.policy
        extra = self.extra_columns(self.config, policy, spec)
        gamma = rows_gamma(policy, self.config.learning_policy)
        self._slicer = RowSlicer.for_policy(policy, gamma)
        self.pending_steps = PendingSteps(step_schema(spec.obs, spec.action, extra), spec.count)
        envs = np.array_split(np.arange(spec.count).reshape(-1, spec.agents), 2)
        # Those that ended in steps that were received when a state was saved; the next firing counts them.
        self._received_episodes: list[Episode] = []
        self._halves = [half.reshape(-1) for half in envs]
        self._steppings = {
            "together": self._step_together,
            "halves": self._step_halves,
            "independent": self._step_independently,
            "ready": self._step_when_ready,
        }

    def fire(self, weights: State | None) -> Batch:
        return self.collect(weights=weights)

    def collect(self, n_sample: int | None = None, weights: State | None = None) -> Batch:
        """Return the rows of the next `n_sample` env steps; act with `weights` from now on, if given."""
        n = requested_count("n_sample", n_sample, self.config.n_sample)
        self._load_weights(weights)
        slicer, pending = self._slicer, self.pending_steps
        if n % slicer.stride:
            raise ValueError(_partial_unrolls(n, slicer))
        slices, dropped = n // slicer.stride, 0
        episodes, self._received_episodes = self._received_episodes, []
        # more than one pass is needed only if failed episodes are dropped
        while slicer.slice_count(pending.counts) < slices:
            steps = slicer.steps_needed(slices, pending.counts)
            pending.make_room(steps)
            for collected in self._steppings[self.config.stepping](steps, slices):
                dropped += pending.add(collected)
                episodes += collected.episodes
        batch = pending.take(slicer, slices)
        self._report(n, episodes, dropped, batch["action"])
        return self._estimated(batch)

    def _step_together(self, steps: int, slices: int) -> Iterator[CollectedSteps]:
        for _ in range(steps):
            yield self._actor.step()

    def _step_halves(self, steps: int, slices: int) -> Iterator[CollectedSteps]:
        """Step in halves. Afterwards no step is pending, so a firing's weights act in all its steps."""
        actor, (first, second) = self._actor, self._halves
        actor.send(first)
        for left in reversed(range(steps)):
            actor.send(second)
            yield actor.receive(first)
            if left:
                actor.send(first)
            yield actor.receive(second)

    def _step_independently(self, steps: int, slices: int) -> Iterator[CollectedSteps]:
        return IndependentStepping(self._actor, self.config.least).rounds(steps)

    def _step_when_ready(self, steps: int, slices: int) -> Iterator[CollectedSteps]:
        actor = self._actor
        while self._slicer.slice_count(self.pending_steps.counts) < slices:
            if len(idle := np.flatnonzero(~actor.pending)):
                actor.send(idle)
            yield actor.receive(least=min(self.config.least, int(actor.pending.sum())))

    def state_dict(self) -> dict[str, Any]:
        if self._actor.pending.any():
            collected = self._actor.receive(np.flatnonzero(self._actor.pending))
            self._dropped_steps += self.pending_steps.add(collected)
            self._received_episodes += collected.episodes
        return {
            **super().state_dict(),
            "pending_steps": self.pending_steps.state_dict(),
            "received_episodes": [tuple(episode) for episode in self._received_episodes],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.pending_steps.load_state_dict(state["pending_steps"])
        received = state.get("received_episodes", ())
        self._received_episodes = [Episode(*episode) for episode in received]


def _check_config(config: Any, spec: EnvSpec, slicer: RowSlicer) -> None:
    if config.n_sample % slicer.stride:
        raise UnsoundError(_partial_unrolls(config.n_sample, slicer), "", "n_sample")
    if config.stepping == "halves" and spec.count < 2 * spec.agents:
        what = "one env cannot be split into halves"
        raise UnsoundError(what, "take `stepping: together`, or more envs", "stepping")
    if config.least > 1 and config.stepping not in ("independent", "ready"):
        what = "`least` is for `stepping: independent` and `ready`"
        raise UnsoundError(what, "leave it out", "least")
    if config.least > spec.count:
        raise UnsoundError(
            f"there are {spec.count} envs, fewer than `least`", "take fewer", "least"
        )


def _check_newest_weights(config: Any, spec: EnvSpec, policy: Policy, slicer: RowSlicer) -> None:
    """Refuse steps that wait for the next token, for a policy that learns from rows of the newest weights alone."""
    if not policy.needs_newest_weights:
        return
    hint = "or give the policy `advantages: learner`"
    if config.stepping == "ready":
        what = (
            f"with `stepping: ready` some rows are of older weights: {policy.needs_newest_weights}"
        )
        raise UnsoundError(what, f"take another `stepping`, {hint}", "stepping")
    whole = spec.count * slicer.stride
    if config.n_sample % whole:
        what = (
            f"{config.n_sample} env steps are no multiple of {whole}, so that some rows are of older weights: "
            f"{policy.needs_newest_weights}"
        )
        near = max(1, round(config.n_sample / whole)) * whole
        raise UnsoundError(what, f"take {near}, {hint}", "n_sample")


def _partial_unrolls(n: int, slicer: RowSlicer) -> str:
    near = max(1, round(n / slicer.stride)) * slicer.stride
    return (
        f"{n} env steps are not whole unrolls of {slicer.stride} new steps each; take {near}, or "
        "another multiple"
    )
