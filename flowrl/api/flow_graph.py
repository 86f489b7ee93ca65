"""The Python interface: load a graph, check it, draw it, run it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from flowrl.api.arguments import (
    joined_watcher,
    override_texts,
    parse_count,
    parse_limits,
    parse_seed,
    parse_words,
)
from flowrl.api.tapes import record_run
from flowrl.checks.check import CheckedGraph, check_placed
from flowrl.checks.descriptions import EnvUse
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.errors import UsageError
from flowrl.graph.bundled import locate_graph
from flowrl.graph.expand import expand
from flowrl.graph.loading import load_data
from flowrl.graph.loading import load_graph as load_file
from flowrl.graph.model import Limits
from flowrl.graph.tree import data_tree, read_tree
from flowrl.graph.yaml_text import SourceLocation, YamlValue, item_of
from flowrl.machine.forked_call import can_fork
from flowrl.runs.chaos import DisturbedRun, read_fault, run_with_faults
from flowrl.runs.display import print_warnings, watcher_for
from flowrl.runs.repetition import Repetition, run_twice, short_limits
from flowrl.runs.result import RunResult
from flowrl.runs.run import Run
from flowrl.runs.seed_display import seed_display_for
from flowrl.runs.seed_results import SeedResults
from flowrl.runs.seeds import SeedRuns, read_seeds
from flowrl.runs.watcher import Watcher


class FlowGraph:
    """A graph that can be checked, drawn and run. `set` changes values as `--set` does."""

    def __init__(
        self, source: str | Path | Mapping[str, Any], set: Mapping[str, Any] | None = None
    ) -> None:
        self.source = source
        self._set = override_texts(set)
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
        return self._new_run(
            set,
            quiet,
            parse_limits(steps, train_iters, time),
            seed=parse_seed(seed),
            out=out,
            placement=placement,
            rendezvous=rendezvous,
            watcher=joined_watcher(quiet, watcher),
            hash_tokens=hash_tokens,
            recovers=recover,
            begun_s=begun_s,
        ).run()

    def record(
        self,
        edges: str | Iterable[str],
        *,
        tape: str | Path | None = None,
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
    ) -> RunResult:
        """Run, and record what passes some edges, as `flowrl record` does; `flowrl.replay` runs nodes against the tape.

        An edge is named by one of its ports (`"learner.data"`), or by both of its nodes (`"buffer -> learner"`); a node
        stands for all of its edges. The tape is the file `tape`, by default `tokens.tape` in the run's folder. The
        other arguments are those of `run`. A run that is recorded does not recover from the loss of a process.
        """
        begun_s = perf_counter()
        run = self._new_run(
            set,
            quiet,
            parse_limits(steps, train_iters, time),
            seed=parse_seed(seed),
            out=out,
            placement=placement,
            rendezvous=rendezvous,
            watcher=joined_watcher(quiet, watcher),
            begun_s=begun_s,
        )
        return record_run(run, edges, tape)

    def check_twice(
        self, *, train_iters: float | None = None, rounds: float | None = None
    ) -> Repetition:
        """Run for a short time in one thread and in processes, and compare the runs, as `flowrl check --twice` does.

        The runs end after so many train iterations, or so many rounds after the warm-up; by default after ten rounds.
        `.is_exact` says whether all bits are equal, and `.differences` names what is not. `.unsaved` says why the state
        of a node could not be saved. `.is_continued_exactly` says whether a run that was stopped half-way and
        continued has the same bits, too, and `.continued.differences` names what has not.
        """
        limits = short_limits(
            parse_count("train_iters", train_iters), parse_count("rounds", rounds)
        )
        return run_twice(self._checked({}), limits)

    def chaos(
        self,
        *,
        kill: str | Iterable[str] = (),
        stop: str | Iterable[str] = (),
        disconnect: str | Iterable[str] = (),
        placement: str = "processes",
        rendezvous: Rendezvous | None = None,
        seed: int | None = None,
        steps: float | None = None,
        train_iters: float | None = None,
        quiet: bool = False,
    ) -> DisturbedRun:
        """Run undisturbed and with faults made on purpose, and compare the runs, as `flowrl chaos` does.

        `kill` has faults such as `"collector@5s"`, `stop` such as `"learner@5s,1s"`, and `disconnect` such as
        `"cpu-1@5s,10s"`: a node or a host, the time after the first firing, and how long it lasts. `.is_exact` says
        whether all bits are equal, and `.faults` and `.missed` which faults were made.
        """
        faults = [
            *(read_fault("kill", text) for text in parse_words("kill", kill)),
            *(read_fault("stop", text) for text in parse_words("stop", stop)),
            *(read_fault("disconnect", text) for text in parse_words("disconnect", disconnect)),
        ]
        if not faults:
            raise UsageError(
                "chaos: nothing is to happen; add a fault, such as kill='collector@5s'"
            )
        checked = self._checked({}).require_sound()
        chosen = parse_seed(seed)
        if chosen is not None:
            checked = replace(checked, graph=replace(checked.graph, seed=chosen))
        return run_with_faults(
            checked,
            faults,
            placement,
            checked.graph.limits.overridden_by(parse_limits(steps, train_iters)),
            rendezvous=rendezvous,
            watcher=watcher_for(quiet),
        )

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
        given = parse_limits(steps, train_iters, time)
        return SeedRuns(
            checked,
            found,
            limits=checked.graph.limits.overridden_by(given),
            out=out,
            placement=placement,
            at_once=parse_count("at_once", at_once),
            hash_tokens=hash_tokens,
            recovers=recover,
            display=seed_display_for(quiet),
            begun_s=begun_s,
        ).run()

    def _new_run(
        self, set: Mapping[str, Any] | None, quiet: bool, given: Limits, **options: Any
    ) -> Run:
        """Return the run of the graph with further settings. `options` are arguments of `Run`."""
        has_hosts = options["rendezvous"] is not None
        checked = self._checked(set or {}, placement=options["placement"], has_hosts=has_hosts)
        if not quiet:
            print_warnings(checked.require_sound())
        limits = checked.require_sound().graph.limits.overridden_by(given)
        return Run(checked, limits=limits, **options)

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
        overrides = {**self._set, **override_texts(more)}
        if isinstance(self.source, Mapping):
            loaded = load_data(self.source, overrides=overrides)
        else:
            loaded = load_file(self.source, overrides)
        return check_placed(loaded, placement, has_hosts, envs, in_fork)


def load(graph: str | Path | Mapping[str, Any], set: Mapping[str, Any] | None = None) -> FlowGraph:
    """Load a graph by its file, by its bundled name, or as plain data, which may extend another graph.

    A misspelt name is an error here; other mistakes in a graph are those that `check` lists. `set` changes values as
    `--set` does: `{"learner.lr": 3e-4}`.
    """
    return FlowGraph(graph, set)
