"""The Python interface: load a graph, check it, draw it, run it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from pathlib import Path
from time import perf_counter
from typing import Any

from flowrl.checks.check import CheckedGraph, check_placed
from flowrl.checks.descriptions import EnvUse
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.errors import UsageError, shortened_repr
from flowrl.graph.bundled import locate_graph
from flowrl.graph.expand import expand
from flowrl.graph.loading import load_data
from flowrl.graph.loading import load_graph as load_file
from flowrl.graph.model import Limits
from flowrl.graph.sections import parse_seconds
from flowrl.graph.tree import data_tree, read_tree
from flowrl.graph.yaml_text import SourceLocation, YamlValue, flow_text, item_of
from flowrl.machine.forked_call import can_fork
from flowrl.runs.display import Watcher, Watchers, print_warnings, watcher_for
from flowrl.runs.fork import forked_run
from flowrl.runs.result import RunResult
from flowrl.runs.resume import resumed_run
from flowrl.runs.run import Run
from flowrl.runs.run_names import existing_run_path
from flowrl.runs.seed_display import seed_display_for
from flowrl.runs.seed_results import SeedResults
from flowrl.runs.seeds import SeedRuns, read_seeds
from flowrl.runs.trained_policy import TrainedPolicy, load_policy


class FlowGraph:
    """A graph that can be checked, drawn and run. `set` changes values as `--set` does."""

    def __init__(
        self, source: str | Path | Mapping[str, Any], set: Mapping[str, Any] | None = None
    ) -> None:
        self.source = source
        self._set = _override_texts(set)
        self._tree = self._read_tree()

    def __repr__(self) -> str:
        """The graph in one line, as it was when it was loaded: its name, its nodes and what `set` changes."""
        name = "of plain data" if isinstance(self.source, Mapping) else repr(str(self.source))
        about, nodes = (self._tree.fields.get(key) for key in ("about", "nodes"))
        shown = f" ({str(about.plain()).rstrip('.')})" if about is not None else ""
        names = ", ".join(nodes.fields) if nodes is not None else ""
        changes = ", ".join(f"{key}={text}" for key, text in self._set.items())
        return f"<FlowGraph {name}{shown}: {names or 'no nodes'}{changes and f'; set {changes}'}>"

    def check(self, *, envs: EnvUse = "make", in_fork: bool = False) -> CheckedGraph:
        """Check the graph: `.ok`, `.problems`, `.deterministic` and `.reasons` of the result say what was found.

        `envs` says whether envs are made to learn their spaces: `"make"` all of them (`"play"`: and to see what their
        `info` offers), `"make_if_installed"` those whose packages are installed, or `"skip"`. `.undescribed` has the
        nodes whose columns are then unknown.
        With `in_fork`, each env is made in a fork of this process, and one that ends or blocks it is a problem of the
        graph; the commands do this on Linux. Without, such an env ends or blocks this process.
        """
        if in_fork and not can_fork():
            raise UsageError(
                "check: in_fork needs Linux and a process with one thread; leave it out"
            )
        return self._checked({}, envs, in_fork)

    def expand(self) -> str:
        """The resolved graph as YAML."""
        return expand(self.check(envs="skip").require_sound().graph)

    def draw(self, path: str | Path | None = None, placement: str | None = None) -> str:
        """Write a picture in the format of the path's ending, and return the path. Without one, return DOT text."""
        from flowrl.graph.placement import resolve_placement
        from flowrl.render.draw import draw as draw_graph

        checked = self._checked({}, "make_if_installed", placement=placement, has_hosts=True)
        checked.require_sound()
        sites = resolve_placement(checked.graph, placement) if placement else None
        return draw_graph(checked, sites, Path(path) if path is not None else None)

    def run(
        self,
        *,
        placement: str = "serial",
        rendezvous: Rendezvous | None = None,
        seed: int | None = None,
        set: Mapping[str, Any] | None = None,
        steps: float | None = None,
        train_iters: float | None = None,
        time: str | float | None = None,
        out: str | Path | None = None,
        quiet: bool = False,
        watcher: Watcher | None = None,
        hash_tokens: bool = False,
        recover: bool = True,
    ) -> RunResult:
        """Run to the earliest cut. Raises `GraphError` if the graph is unsound, and `NodeError` if a node fails.

        Progress is shown as on the command line: live on a terminal, and elsewhere (in notebooks, pipes and files) by a
        line every few seconds. `quiet` shows nothing. A `watcher` is notified of what happens, too. `time` counts from
        the first firing, when all nodes are made.
        `rendezvous` says where hosts join, if the placement names some. A run goes on from its newest snapshot when it
        loses a process or a host, unless `recover` is false.
        """
        begun_s = perf_counter()
        if not (watcher is None or isinstance(watcher, Watcher)):
            raise UsageError(
                f"run: watcher is {shortened_repr(watcher)}; expected an object of a class that extends "
                "flowrl.Watcher, which defines what it is notified of"
            )
        checked = self._checked(
            set or {}, placement=placement, has_hosts=rendezvous is not None
        ).require_sound()
        if not quiet:
            print_warnings(checked)
        given = {"steps": _count("steps", steps), "train_iters": _count("train_iters", train_iters)}
        limits = checked.graph.limits.overridden_by(**given, time_s=_seconds(time))
        return Run(
            checked,
            seed=_seed(seed),
            limits=limits,
            out=out,
            placement=placement,
            rendezvous=rendezvous,
            watcher=Watchers(watcher_for(quiet), *([watcher] if watcher else [])),
            hash_tokens=hash_tokens,
            recovers=recover,
            begun_s=begun_s,
        ).run()

    def run_seeds(
        self,
        seeds: int | Iterable[int],
        *,
        at_once: int | None = None,
        placement: str = "serial",
        set: Mapping[str, Any] | None = None,
        steps: float | None = None,
        train_iters: float | None = None,
        time: str | float | None = None,
        out: str | Path | None = None,
        quiet: bool = False,
        hash_tokens: bool = False,
        recover: bool = True,
    ) -> SeedResults:
        """Run with several seeds, each in a process and a folder of its own, as `flowrl run --seeds` does.

        `seeds` is how many (5 stands for range(5)), or the seeds one by one. `at_once` is how many runs there may be at
        a time; by default, as many as there are cores for. A run that fails is in the results, and is not raised. The
        other arguments are those of `run`; there is no watcher, as the runs are in other processes.
        """
        begun_s = perf_counter()
        found = read_seeds(seeds)
        checked = self._checked(set or {}).require_sound()
        if not quiet:
            print_warnings(checked)
        given = {"steps": _count("steps", steps), "train_iters": _count("train_iters", train_iters)}
        return SeedRuns(
            checked,
            found,
            limits=checked.graph.limits.overridden_by(**given, time_s=_seconds(time)),
            out=out,
            placement=placement,
            at_once=_count("at_once", at_once),
            hash_tokens=hash_tokens,
            recovers=recover,
            display=seed_display_for(quiet),
            begun_s=begun_s,
        ).run()

    def _read_tree(self) -> YamlValue:
        """Read the files of the graph, and import nothing. A missing file or broken YAML is an error."""
        if isinstance(self.source, Mapping):
            return data_tree(item_of(self.source, SourceLocation("graph"))).tree
        return read_tree(locate_graph(str(self.source))).tree

    def _checked(
        self,
        more: Mapping[str, Any],
        envs: EnvUse = "make",
        in_fork: bool = False,
        placement: str | None = None,
        has_hosts: bool = False,
    ) -> CheckedGraph:
        overrides = {**self._set, **_override_texts(more)}
        if isinstance(self.source, Mapping):
            loaded = load_data(self.source, overrides=overrides)
        else:
            loaded = load_file(self.source, overrides)
        return check_placed(loaded, placement, has_hosts, envs, in_fork)


def _override_texts(values: Mapping[str, Any] | None) -> dict[str, str]:
    """The values as `--set` takes them."""
    if not (values is None or isinstance(values, Mapping)):
        raise UsageError(
            f"set is {shortened_repr(values)}; expected values by key, such as {{'policy.lr': 0.001}}"
        )
    texts = {}
    for key, value in (values or {}).items():
        try:
            texts[key] = flow_text(value)
        except TypeError:
            what = f"set: {key} is {shortened_repr(value)}"
            raise UsageError(
                f"{what}; expected numbers, texts, lists and mappings, as in a graph file"
            ) from None
    return texts


def _count(name: str, value: float | None) -> int | None:
    """A limit: a whole number, which may be written 1e5."""
    if value is None:
        return None
    is_number = isinstance(value, int | float | Integral) and not isinstance(value, bool)
    if is_number and value >= 1 and value % 1 == 0:
        return int(value)
    raise UsageError(f"run: {name} is {value!r}; expected a whole number of 1 or more")


def _seed(value: int | None) -> int | None:
    if value is None or (isinstance(value, Integral) and not isinstance(value, bool)):
        return None if value is None else int(value)
    raise UsageError(f"run: seed is {value!r}; expected a whole number from 0 to 2^63 - 1")


def _seconds(time: str | float | None) -> float | None:
    found = None if time is None else parse_seconds(time)
    if time is not None and found is None:
        raise UsageError(f"run: time is {time!r}; expected seconds, or a time such as 30s or 10m")
    return found


def load(graph: str | Path | Mapping[str, Any], set: Mapping[str, Any] | None = None) -> FlowGraph:
    """Load a graph by its file, by its bundled name, or as plain data, which may extend another graph.

    A misspelt name is an error here; other mistakes in a graph are those that `check` lists. `set` changes values as
    `--set` does: `{"learner.lr": 3e-4}`.
    """
    return FlowGraph(graph, set)


def resume(
    run: str | Path,
    *,
    placement: str = "serial",
    rendezvous: Rendezvous | None = None,
    set: Mapping[str, Any] | None = None,
    steps: float | None = None,
    train_iters: float | None = None,
    time: str | float | None = None,
    quiet: bool = False,
    watcher: Watcher | None = None,
    recover: bool = True,
) -> RunResult:
    """Continue a run in its folder from its newest snapshot, as `flowrl resume` does.

    `run` is a run's folder or its name in `runs`, or `last` for the newest run. The placement may be another one. The
    limits are those of the run, except where others are given. `set` changes values that leave its bits as they are.
    """
    begun_s = perf_counter()
    given = {"steps": _count("steps", steps), "train_iters": _count("train_iters", train_iters)}
    continued, _, _ = resumed_run(
        existing_run_path(str(run)),
        settings=_override_texts(set),
        placement=placement,
        limits=Limits(**given, time_s=_seconds(time)),
        rendezvous=rendezvous,
        watcher=Watchers(watcher_for(quiet), *([watcher] if watcher else [])),
        recovers=recover,
        begun_s=begun_s,
    )
    return continued.run()


def fork(
    run: str | Path,
    *,
    at: int | None = None,
    set: Mapping[str, Any] | None = None,
    seed: int | None = None,
    same_random: bool = False,
    placement: str = "serial",
    rendezvous: Rendezvous | None = None,
    steps: float | None = None,
    train_iters: float | None = None,
    time: str | float | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    watcher: Watcher | None = None,
    recover: bool = True,
) -> RunResult:
    """Run from a snapshot of another run, in a folder of its own and with changed settings, as `flowrl fork` does.

    `at` is the number of rounds after which the snapshot was saved; by default it is the newest. The random numbers are
    other ones than those of `run`, and follow from `seed`; without one, from the snapshot and the settings.
    """
    begun_s = perf_counter()
    given = {"steps": _count("steps", steps), "train_iters": _count("train_iters", train_iters)}
    forked, _, _ = forked_run(
        existing_run_path(str(run)),
        after_rounds=_count("at", at),
        settings=_override_texts(set),
        seed=_seed(seed),
        same_random=same_random,
        limits=Limits(**given, time_s=_seconds(time)),
        out=out,
        placement=placement,
        rendezvous=rendezvous,
        watcher=Watchers(watcher_for(quiet), *([watcher] if watcher else [])),
        recovers=recover,
        begun_s=begun_s,
    )
    return forked.run()


def policy(run: str | Path, checkpoint: str | None = None) -> TrainedPolicy:
    """Load the trained policy of a run, with its model and weights, to act outside of the run: `policy(run).act(obs)`.

    `run` is a run's folder or its name in `runs`, `last` for the newest run, or a checkpoint's file. `checkpoint` is
    `best` or `last`; by default the best, if there is one.
    """
    return load_policy(run, checkpoint)
