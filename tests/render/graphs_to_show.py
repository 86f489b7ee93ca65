"""Small graphs of toy nodes, for the tests of reports and pictures."""

from __future__ import annotations

from typing import Any

from flowrl.checks.check import CheckedGraph, check
from flowrl.core.batch import Column
from flowrl.core.config import Config, param
from flowrl.core.facts import Facts, Surroundings
from flowrl.core.node import Node
from flowrl.core.ports import In, Link, Out, Service, StateIn, StateOut
from flowrl.graph.loading import load_data

ROWS = {"reward": Column("float32")}


class World(Node):
    """The service of a source."""

    serve = Service("world", methods=("step",))

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """The service has no facts."""
        return Facts(service=cls)


class Source(Node):
    """Gives rows, and reads weights."""

    role = "collector"
    world = Link("world")
    weights = StateIn("weights")
    data = Out("samples")

    class Config(Config):
        """Parameters that tests set."""

        rows: int = param(8, "rows in each token", ge=1)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """A fixed number of rows and env steps."""
        return Facts(outs={"data": ROWS}, rows={"data": config.rows}, env_steps=config.rows)

    def fire(self, weights: Any) -> Any:
        """Never called, as these graphs are not run."""


class Mixer(Node):
    """Gives several tokens for one, and has an optional input for priorities."""

    data = In("samples")
    marks = In("marks", rate="times", optional=True, initial=dict)
    out = Out("samples", rate="times")

    class Config(Config):
        """Parameters that tests set."""

        times: int = param(2, "tokens for each that comes in", ge=1, le=9)
        how: str = param("plain", "in which way")

    def fire(self, data: Any, marks: Any) -> Any:
        """Never called, as these graphs are not run."""


class Sink(Node):
    """Learns."""

    role = "learner"
    data = In("samples")
    weights = StateOut("weights")
    marks = Out("marks", optional=True)

    def fire(self, data: Any) -> Any:
        """Never called, as these graphs are not run."""


class Evaluator(Node):
    """Reads some versions of weights."""

    role = "evaluator"
    weights = StateIn("weights")

    def fire(self, weights: Any) -> Any:
        """Never called, as these graphs are not run."""


class Echo(Node):
    """Takes its own tokens."""

    heard = In("marks", initial=dict)
    said = Out("marks")

    def fire(self, heard: Any) -> Any:
        """Never called, as these graphs are not run."""


HERE = f"{__name__}:"


def tree(**changes: Any) -> dict[str, Any]:
    """A graph with every kind of node and edge, as data."""
    names = {"world": World, "source": Source, "mixer": Mixer, "sink": Sink, "evaluator": Evaluator}
    base: dict[str, Any] = {
        "about": "A graph to look at.",
        "nodes": {name: {"type": HERE + cls.__name__} for name, cls in names.items()},
        "edges": [
            "source <-> world",
            "source -> mixer -> sink",
            "sink -> source",
            {"sink -> evaluator": {"every": 10}},
        ],
        "warmup": [{"edges": ["source -> mixer"], "steps": 20}],
    }
    return {**base, **changes}


def checked(name: str = "small", **changes: Any) -> CheckedGraph:
    """That graph, checked."""
    return check(load_data(tree(**changes), name))


def fan(actors: int) -> CheckedGraph:
    """Many sources whose tokens one sink takes, and whose weights all come from it."""
    types = {"source": "Source", "world": "World", "mixer": "Mixer"}
    nodes = {
        f"{n}{i}": {"type": HERE + types[n]}
        for i in range(actors)
        for n in ("source", "world", "mixer")
    }
    nodes["sink"] = {"type": f"{HERE}Sink"}
    edges: list[Any] = [", ".join(f"mixer{i}" for i in range(actors)) + " -> sink"]
    for i in range(actors):
        edges += [f"source{i} <-> world{i}", f"source{i} -> mixer{i}", f"sink -> source{i}"]
    return checked("fan", nodes=nodes, edges=edges, warmup=[])
