"""The Python interface: load a graph, check it, draw it, run it."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.checks.check import check as check_graph
from flowrl.checks.descriptions import EnvUse
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.errors import UsageError
from flowrl.graph.expand import expand
from flowrl.graph.loading import load_data
from flowrl.graph.loading import load_graph as load_file
from flowrl.graph.sections import parse_seconds
from flowrl.graph.yaml_text import flow_text
from flowrl.runs.display import Watcher
from flowrl.runs.result import RunResult
from flowrl.runs.run import Run


class FlowGraph:
    """A graph that can be checked, drawn and run. `set` changes values as `--set` does."""

    def __init__(
        self, source: str | Path | Mapping[str, Any], set: Mapping[str, Any] | None = None
    ) -> None:
        self.source = source
        self._set = dict(set or {})

    def check(self, *, envs: EnvUse = "make") -> CheckedGraph:
        """Check the graph: `.ok`, `.problems`, `.deterministic` and `.reasons` of the result say what was found.

        `envs` says whether envs are made to learn their spaces: `"make"` all of them, `"make_if_installed"` those
        whose packages are installed, or `"skip"`. `.undescribed` has the nodes whose columns are then unknown.
        """
        return self._checked({}, envs)

    def expand(self) -> str:
        """The resolved graph as YAML."""
        return expand(self.check(envs="skip").require_sound().graph)

    def draw(self, path: str | Path | None = None, placement: str | None = None) -> str:
        """Write a picture in the format of the path's ending, and return the path. Without one, return DOT text."""
        from flowrl.graph.placement import resolve_placement
        from flowrl.render.draw import draw as draw_graph

        checked = self.check(envs="make_if_installed").require_sound()
        sites = resolve_placement(checked.graph, placement) if placement else None
        return draw_graph(checked, sites, Path(path) if path is not None else None)

    def run(
        self,
        *,
        placement: str = "serial",
        rendezvous: Rendezvous | None = None,
        seed: int | None = None,
        set: Mapping[str, Any] | None = None,
        steps: int | None = None,
        train_iters: int | None = None,
        time: str | float | None = None,
        out: str | Path | None = None,
        watcher: Watcher | None = None,
        hash_tokens: bool = False,
    ) -> RunResult:
        """Run to the earliest cut. Raises `GraphError` if the graph is unsound, and `NodeError` if a node fails.

        `rendezvous` says where hosts join, if the placement names some. A `watcher` is notified of what happens.
        """
        checked = self._checked(set or {}).require_sound()
        given = {"steps": _count("steps", steps), "train_iters": _count("train_iters", train_iters)}
        limits = checked.graph.limits.overridden_by(**given, time_s=_seconds(time))
        return Run(
            checked,
            seed=seed,
            limits=limits,
            out=out,
            placement=placement,
            rendezvous=rendezvous,
            watcher=watcher,
            hash_tokens=hash_tokens,
        ).run()

    def _checked(self, more: Mapping[str, Any], envs: EnvUse = "make") -> CheckedGraph:
        overrides = {key: flow_text(value) for key, value in {**self._set, **more}.items()}
        if isinstance(self.source, Mapping):
            return check_graph(load_data(self.source, overrides=overrides), envs)
        return check_graph(load_file(self.source, overrides), envs)


def _count(name: str, value: int | None) -> int | None:
    if value is None or (isinstance(value, Integral) and value >= 1):
        return value
    raise UsageError(f"run: {name} is {value!r}; expected a whole number of 1 or more")


def _seconds(time: str | float | None) -> float | None:
    found = None if time is None else parse_seconds(time)
    if time is not None and found is None:
        raise UsageError(f"run: time is {time!r}; expected seconds, or a time such as 30s or 10m")
    return found


def load(graph: str | Path | Mapping[str, Any], set: Mapping[str, Any] | None = None) -> FlowGraph:
    """A graph by its file, by its bundled name, or as plain data."""
    return FlowGraph(graph, set)
