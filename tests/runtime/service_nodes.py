"""Services with random numbers, records and failures, and nodes that call them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flowrl.core.batch import Array, Batch
from flowrl.core.config import Config, param
from flowrl.core.facts import Facts, Surroundings
from flowrl.core.node import Node
from flowrl.core.ports import In, Link, Out, Service
from flowrl.core.state import State
from tests.toys.toy_nodes import TABLE, Evaluator, table


class RandomReply(NamedTuple):
    """The reply of a random service."""

    number: int
    shapes: list[tuple[int, ...]]
    values: Array


@dataclass(frozen=True)
class RandomRequest:
    """The request for a number of random values."""

    size: int


class UnlistedValue(NamedTuple):
    """A named tuple that its service does not name."""

    word: str


class RandomService(Node):
    """A service that draws random numbers, emits lines, metrics and counts, and can fail."""

    random = Service(
        "random", methods=("draw", "unlisted_value", "verdict"), values=(RandomReply, RandomRequest)
    )

    class Config(Config):
        fails_at: int = param(0, "the draw that fails (0: none)", ge=0)
        logs_in_setup: bool = param(False, "log a line while it is made")

    def setup(self) -> None:
        self.drawn = 0
        self.rng = self.ctx.rng("values")
        if self.config.logs_in_setup:
            self.ctx.log("made")

    def draw(self, request: RandomRequest, *, quietly: bool = False) -> RandomReply:
        self.drawn += 1
        self.ctx.count(episodes=1)
        if not quietly:
            self.ctx.log(f"draw {self.drawn} of size {request.size}")
            self.ctx.metrics({"drawn": self.drawn})
        if self.drawn == self.config.fails_at and not self.ctx.restarts:
            raise ValueError(f"failed at draw {self.drawn}")
        values = self.rng.random(request.size)
        return RandomReply(self.drawn, [(self.drawn, request.size), ()], values)

    def unlisted_value(self) -> UnlistedValue:
        return UnlistedValue("x")

    def verdict(self, number: int) -> None:
        if self.drawn == number:
            self.ctx.verdict(f"drawn {number}")

    def unlisted(self) -> None:
        raise AssertionError("this method is not one of the service")


class UnmakeableService(RandomService):
    """A service that cannot be made."""

    def setup(self) -> None:
        raise OSError("no resources")


class ForwardingService(Node):
    """A service that calls another service."""

    service: Any = Link("random")
    random = Service("random", methods=("draw",), values=(RandomReply, RandomRequest))

    def draw(self, request: RandomRequest, *, quietly: bool = False) -> RandomReply:
        drawn: RandomReply = self.service.draw(RandomRequest(request.size + 1), quietly=quietly)
        self.ctx.log(f"forwarded {drawn.number}")
        return drawn


class StatelessService(Node):
    """A service without state, which may have several clients."""

    random = Service(
        "random", methods=("draw",), values=(RandomReply, RandomRequest), stateful=False
    )

    class Config(Config):
        logs: bool = param(False, "log a line in a call, which is not allowed")

    def draw(self, request: RandomRequest, *, quietly: bool = False) -> RandomReply:
        if self.config.logs:
            self.ctx.log("a line of no firing")
        return RandomReply(request.size, [], np.ones(request.size))


class DrawingCollector(Node):
    """A collector that calls its service some times in each firing."""

    role = "collector"
    service: Any = Link("random")
    data = Out("samples")

    class Config(Config):
        times: int = param(3, "draws in a firing", ge=1)
        first_call: str = param("", "another method to call first")
        verdict_at: int = param(0, "the draw that ends the run (0: none)", ge=0)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"data": TABLE}, env_steps=config.times)

    def fire(self) -> Batch:
        if self.config.first_call == "two at once":
            self.service.begin("draw", RandomRequest(1))
            self.service.verdict(0)
        elif self.config.first_call:
            getattr(self.service, self.config.first_call)()
        for turn in range(self.config.times):
            number, shapes, values = self.service.draw(RandomRequest(turn + 2), quietly=turn == 1)
            self.ctx.log(f"{number} {shapes} {values.sum():.6f}")
            if self.config.verdict_at:
                self.service.verdict(self.config.verdict_at)
        self.ctx.count(env_steps=self.config.times)
        return table(number)


class ManyServicesCollector(DrawingCollector):
    """A collector that calls several services in turn, or at the same time."""

    service: Any = Link("random", many=True)

    class Config(DrawingCollector.Config):
        at_once: bool = param(False, "call all services before any reply is taken")

    def fire(self) -> Batch:
        if self.config.at_once:
            drawn = [draw for _ in range(self.config.times) for draw in self._call_together()]
        else:
            drawn = self._call_in_turn()
        self.ctx.log(" ".join(f"{number} {values.sum():.6f}" for number, _, values in drawn))
        self.ctx.count(env_steps=self.config.times)
        return table(*(number for number, *_ in drawn))

    def _call_together(self) -> list[RandomReply]:
        begun = [s.begin("draw", RandomRequest(2)) for s in self.service if hasattr(s, "begin")]
        for n in range(1, len(begun) + 1):
            begun[0].until(lambda n=n: sum(call.ready() for call in begun) >= n, begun[1:])
        local = [s.draw(RandomRequest(2)) for s in self.service if not hasattr(s, "begin")]
        return sorted([*local, *(call.take() for call in begun)], key=lambda r: float(r.values[0]))

    def _call_in_turn(self) -> list[RandomReply]:
        return [
            service.draw(RandomRequest(2))
            for service in self.service
            for _ in range(self.config.times)
        ]


class DrawingEvaluator(Evaluator):
    """An evaluator with a service of its own."""

    service: Any = Link("random")

    def fire(self, weights: State) -> Batch:
        for _ in range(1 + weights.version % 2):
            self.ctx.log(f"drew {self.service.draw(RandomRequest(3)).values.sum():.6f}")
        return super().fire(weights)


class FiringService(Node):
    """A service that also fires."""

    data = In("samples")
    random = Service("random", methods=("draw",), values=(RandomReply, RandomRequest))

    def fire(self, data: Batch) -> None:
        self.ctx.log("fired")

    def draw(self, request: RandomRequest, *, quietly: bool = False) -> RandomReply:
        return RandomReply(0, [], np.zeros(1))
