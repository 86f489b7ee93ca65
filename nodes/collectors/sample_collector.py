"""The collector of steps: a fixed number of env steps in each firing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from flowrl.core.batch import Batch
from flowrl.core.config import param
from flowrl.core.node import Facts, Surroundings, UnsoundError
from flowrl.core.state import State
from flowrl.nodes.collectors.acting import Taken
from flowrl.nodes.collectors.collector import Collector, amount
from flowrl.nodes.collectors.cut import Cut, cut_schema
from flowrl.nodes.collectors.own_pace import OwnPace
from flowrl.nodes.collectors.transitions import row_schema, step_schema
from flowrl.nodes.collectors.waiting import Waiting
from flowrl.nodes.envs.spec import EnvSpec
from flowrl.nodes.envs.steps import Episode


class SampleCollector(Collector):
    """Each token holds the next `n_sample` steps in the order of time, sorted by env.

    A row is a step, or where the policy learns from unrolls, `unroll_steps` of them. Nothing is
    thrown away: steps whose row is in no token yet (there are more envs than rows left, or their
    n-step window is not whole) wait for the next firing. A step counts when its row is given, so
    every firing counts `n_sample` env steps.
    """

    class Config(Collector.Config):
        n_sample: int = param(96, "env steps in each token, over all envs", ge=1)
        stepping: Literal["together", "halves", "own_pace", "ready"] = param(
            "together",
            "all envs at once; one half while the policy serves the other; each as it is ready, "
            "for the same rows as together; or for whichever rows are there first",
        )
        least: int = param(
            1, "`own_pace`, `ready`: envs that the policy waits for, to serve them at once", ge=1
        )

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """Rows and env steps of one firing."""
        spec, policy = cls.described(config, surroundings)
        _demand(config, spec, Cut.of(policy))
        extra = cls.extra_columns(config, policy)
        why = "envs are stepped as they are ready"
        return Facts(
            outs={"data": cut_schema(row_schema(spec.obs, spec.action, extra), policy)},
            rows={"data": config.n_sample // Cut.of(policy).stride},
            env_steps=config.n_sample,
            nondeterministic=why if config.stepping == "ready" else "",
            imports=policy.imported_modules(learn=False),
        )

    def setup(self) -> None:
        """Everything from the first step on is in `_start`, so that one can begin anew."""
        super().setup()
        _demand(self.config, self.envs.spec(), self._cut)

    def _start(self) -> None:
        super()._start()
        spec, policy = self.envs.spec(), self._policy
        extra = self.extra_columns(self.config, policy)
        self._cut = Cut.of(policy)
        self._waiting = Waiting(step_schema(spec.obs, spec.action, extra), spec.count)
        envs = np.array_split(np.arange(spec.count).reshape(-1, spec.agents), 2)
        self._halves = [half.reshape(-1) for half in envs]
        self._steps = {
            "together": self._together,
            "halves": self._by_halves,
            "own_pace": self._at_own_pace,
            "ready": self._as_ready,
        }

    def fire(self, weights: State | None) -> Batch:
        """Collect with these weights."""
        return self.collect(weights=weights)

    def collect(self, n_sample: int | None = None, weights: State | None = None) -> Batch:
        """The next rows, of `n_sample` env steps, by default as configured; with these weights, if given."""
        n = amount("n_sample", n_sample, self.config.n_sample)
        self._load(weights)
        if n % self._cut.stride:
            raise ValueError(_uneven(n, self._cut))
        pieces, dropped, waiting = n // self._cut.stride, 0, self._waiting
        episodes: list[Episode] = []
        while self._cut.pieces(waiting.held) < pieces:  # again, where a failed episode was dropped
            steps = self._cut.steps_for(pieces, waiting.held)
            waiting.make_room(steps)
            for taken in self._steps[self.config.stepping](steps, pieces):
                dropped += waiting.put(taken)
                episodes += taken.episodes
        batch = waiting.take(self._cut, pieces)
        self._report(n, episodes, dropped)
        return batch

    def _together(self, steps: int, pieces: int) -> Iterator[Taken]:
        for _ in range(steps):
            yield self._acting.together()

    def _by_halves(self, steps: int, pieces: int) -> Iterator[Taken]:
        """Nothing is under way in the end: all that a firing gives, its weights acted."""
        acting, (first, second) = self._acting, self._halves
        acting.send(first)
        for left in reversed(range(steps)):
            acting.send(second)
            yield acting.receive(first)
            if left:
                acting.send(first)
            yield acting.receive(second)

    def _at_own_pace(self, steps: int, pieces: int) -> Iterator[Taken]:
        return OwnPace(self._acting, self.config.least).rounds(steps)

    def _as_ready(self, steps: int, pieces: int) -> Iterator[Taken]:
        acting = self._acting
        while self._cut.pieces(self._waiting.held) < pieces:
            if len(idle := np.flatnonzero(~acting.under_way)):
                acting.send(idle)
            yield acting.receive(least=min(self.config.least, int(acting.under_way.sum())))

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next token depends on, beside the weights and the envs."""
        if self._acting.under_way.any():
            taken = self._acting.receive(np.flatnonzero(self._acting.under_way))
            self._dropped += self._waiting.put(taken)
            self._finished += taken.episodes
        return {**super().state_dict(), "waiting": self._waiting.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, with the policy that acts now."""
        super().load_state_dict(state)
        self._waiting.load_state_dict(state["waiting"])


def _demand(config: Any, spec: EnvSpec, cut: Cut) -> None:
    """What cannot be is refused, before the run or by hand."""
    if config.n_sample % cut.stride:
        raise UnsoundError(_uneven(config.n_sample, cut), "", "n_sample")
    if config.stepping == "halves" and spec.count < 2 * spec.agents:
        raise UnsoundError("one env has no halves", "step it `together`, or take more", "stepping")
    if config.least > 1 and config.stepping not in ("own_pace", "ready"):
        what = "`least` is for `stepping: own_pace` and `ready`"
        raise UnsoundError(what, "leave it out", "least")
    if config.least > spec.count:
        raise UnsoundError(
            f"there are {spec.count} envs, fewer than `least`", "take fewer", "least"
        )


def _uneven(n: int, cut: Cut) -> str:
    near = max(1, round(n / cut.stride)) * cut.stride
    return (
        f"{n} env steps are not whole unrolls of {cut.stride} new steps each; take {near}, or "
        "another multiple"
    )
