"""Small services, and nodes that call them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flowrl.core.batch import Array, Batch
from flowrl.core.config import Config, param
from flowrl.core.node import Facts, Node, Surroundings
from flowrl.core.ports import In, Link, Out, Service
from flowrl.core.state import State
from tests.toys.toy_nodes import TABLE, Judge, table


class Draw(NamedTuple):
    """What a deep well gives."""

    number: int
    depths: list[tuple[int, ...]]
    water: Array


@dataclass(frozen=True)
class Depth:
    """How deep to draw."""

    metres: int


class Secret(NamedTuple):
    """A named tuple that its service does not name."""

    word: str


class DeepWell(Node):
    """A service with a life: random numbers, lines, metrics, counts; and ways to fail."""

    water = Service("deep", methods=("draw", "whisper", "verdict"), values=(Draw, Depth))

    class Config(Config):
        dry_at: int = param(0, "this draw fails (0: none)", ge=0)
        tells_early: bool = param(False, "tell something while it is made")

    def setup(self) -> None:
        self.drawn = 0
        self.rng = self.ctx.rng("water")
        if self.config.tells_early:
            self.ctx.log("dug")

    def draw(self, depth: Depth, *, quietly: bool = False) -> Draw:
        self.drawn += 1
        self.ctx.count(episodes=1)
        if not quietly:
            self.ctx.log(f"draw {self.drawn} from {depth.metres}")
            self.ctx.metrics({"drawn": self.drawn})
        if self.drawn == self.config.dry_at and not self.ctx.restarts:
            raise ValueError(f"dry after {self.drawn}")
        water = self.rng.random(depth.metres)
        return Draw(self.drawn, [(self.drawn, depth.metres), ()], water)

    def whisper(self) -> Secret:
        return Secret("hush")

    def verdict(self, number: int) -> None:
        if self.drawn == number:
            self.ctx.verdict(f"drawn {number}")

    def unlisted(self) -> None:
        raise AssertionError("this is no method of the service")


class Unmade(DeepWell):
    """A service that cannot be made."""

    def setup(self) -> None:
        raise OSError("no ground")


class Pump(Node):
    """A service that calls another."""

    well: Any = Link("deep")
    water = Service("deep", methods=("draw",), values=(Draw, Depth))

    def draw(self, depth: Depth, *, quietly: bool = False) -> Draw:
        drawn: Draw = self.well.draw(Depth(depth.metres + 1), quietly=quietly)
        self.ctx.log(f"pumped {drawn.number}")
        return drawn


class Spring(Node):
    """A service without state, for many."""

    water = Service("deep", methods=("draw",), values=(Draw, Depth), stateful=False)

    class Config(Config):
        tells: bool = param(False, "tell something in a call, which it cannot")

    def draw(self, depth: Depth, *, quietly: bool = False) -> Draw:
        if self.config.tells:
            self.ctx.log("heard by whom?")
        return Draw(depth.metres, [], np.ones(depth.metres))


class Farmer(Node):
    """A collector that draws some times in each firing."""

    role = "collector"
    well: Any = Link("deep")
    data = Out("samples")

    class Config(Config):
        times: int = param(3, "draws in a firing", ge=1)
        asks_for: str = param("", "something else to call first")
        stops_at: int = param(0, "the draw that ends the run (0: none)", ge=0)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"data": TABLE}, env_steps=config.times)

    def fire(self) -> Batch:
        if self.config.asks_for == "two at once":
            self.well.begin("draw", Depth(1))
            self.well.verdict(0)
        elif self.config.asks_for:
            getattr(self.well, self.config.asks_for)()
        for turn in range(self.config.times):
            number, depths, water = self.well.draw(Depth(turn + 2), quietly=turn == 1)
            self.ctx.log(f"{number} {depths} {water.sum():.6f}")
            if self.config.stops_at:
                self.well.verdict(self.config.stops_at)
        self.ctx.count(env_steps=self.config.times)
        return table(number)


class Village(Farmer):
    """A collector that draws from several wells in turn."""

    well: Any = Link("deep", many=True)

    class Config(Farmer.Config):
        at_once: bool = param(False, "draw from all before any answer is taken")

    def fire(self) -> Batch:
        if self.config.at_once:
            drawn = [draw for _ in range(self.config.times) for draw in self._at_once()]
        else:
            drawn = self._in_turn()
        self.ctx.log(" ".join(f"{number} {water.sum():.6f}" for number, _, water in drawn))
        self.ctx.count(env_steps=self.config.times)
        return table(*(number for number, *_ in drawn))

    def _at_once(self) -> list[Draw]:
        begun = [w.begin("draw", Depth(2)) for w in self.well if hasattr(w, "begin")]
        for n in range(1, len(begun) + 1):
            begun[0].until(lambda n=n: sum(call.ready() for call in begun) >= n, begun[1:])
        here = [w.draw(Depth(2)) for w in self.well if not hasattr(w, "begin")]
        return sorted([*here, *(call.take() for call in begun)], key=lambda d: float(d.water[0]))

    def _in_turn(self) -> list[Draw]:
        return [well.draw(Depth(2)) for well in self.well for _ in range(self.config.times)]


class Taster(Judge):
    """An evaluation that draws from a well of its own."""

    well: Any = Link("deep")

    def fire(self, weights: State) -> Batch:
        for _ in range(1 + weights.version % 2):
            self.ctx.log(f"tastes {self.well.draw(Depth(3)).water.sum():.6f}")
        return super().fire(weights)


class Mill(Node):
    """A service that fires, too."""

    data = In("samples")
    flour = Service("deep", methods=("draw",), values=(Draw, Depth))

    def fire(self, data: Batch) -> None:
        self.ctx.log("ground")

    def draw(self, depth: Depth, *, quietly: bool = False) -> Draw:
        return Draw(0, [], np.zeros(1))
