"""Runs a graph twice, undisturbed and with faults made on purpose, and compares the runs bit by bit."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from flowrl.checks.check import CheckedGraph
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.context import instance_key
from flowrl.core.errors import UsageError, spelling_hint
from flowrl.core.wording import count_text
from flowrl.graph.model import Limits, SnapshotSettings
from flowrl.graph.placement import resolve_placement
from flowrl.graph.sections import parse_seconds
from flowrl.graph.site_layout import SiteLayout, make_layout
from flowrl.graph.site_shares import without_hosts
from flowrl.runs.repetition import (
    Repetition,
    compare_runs,
    require_deterministic,
    result_line,
    whole_result,
    with_own_outputs,
)
from flowrl.runs.run import Run
from flowrl.runs.watcher import Watcher, Watchers
from flowrl.runtime.disturbances import Disturbance, HostSilence, SiteSignal
from flowrl.runtime.sites.coordinator import Coordinator

USUAL_SNAPSHOTS = SnapshotSettings(every_s=2.0)  # of a graph that does not say how often
POLL_S = 0.02

Kind = Literal["kill", "stop", "disconnect"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to an instance or a host, so many seconds after the first firing."""

    kind: Kind
    target: str
    at_s: float
    for_s: float = 0.0

    def __str__(self) -> str:
        done = {"kill": "killed", "stop": "stopped", "disconnect": "disconnected"}[self.kind]
        lasting = f" for {self.for_s:g} s" if self.for_s else ""
        return f"{self.at_s:g} s: {done} {self.target}{lasting}"


def read_fault(kind: Kind, text: str) -> Fault:
    """Read `NODE@TIME`, or `NODE@TIME,DURATION` where the fault lasts."""
    target, at, times = text.rpartition("@")
    seconds = [parse_seconds(part) for part in times.split(",")]
    lasts = kind != "kill"
    if not (target and at) or len(seconds) != 1 + lasts or None in seconds:
        what = "HOST" if kind == "disconnect" else "NODE"
        example = f"{what}@30s,10s" if lasts else f"{what}@30s"
        raise UsageError(f"--{kind} {text}: expected {example}")
    return Fault(kind, target, *(found for found in seconds if found is not None))


@dataclass(frozen=True, slots=True)
class DisturbedRun:
    """A run with faults, and what it has in common with the run without them."""

    faults: tuple[Fault, ...]  # those that were made before the run had ended
    missed: tuple[Fault, ...]  # those for which the run was too short
    repetition: Repetition

    @property
    def is_exact(self) -> bool:
        return self.repetition.is_exact

    def as_dict(self) -> Mapping[str, Any]:
        disturbed = self.repetition.results[1]
        return {
            **self.repetition.as_dict(),
            "faults": [str(fault) for fault in self.faults],
            "missed": [str(fault) for fault in self.missed],
            "recoveries": disturbed.recoveries,
            "happened": list(disturbed.happened),
        }

    def __str__(self) -> str:
        undisturbed, disturbed = self.repetition.results
        lines = [f"undisturbed, {result_line(undisturbed)}", f"disturbed, {result_line(disturbed)}"]
        lines += [f"  {fault}" for fault in self.faults]
        lines += [f"  the run was over before {fault}" for fault in self.missed]
        lines += [f"  {line}" for line in disturbed.happened]
        recoveries = count_text(disturbed.recoveries, "recovery", "recoveries")
        return "\n".join((*lines, f"{recoveries}; {self.repetition.verdict}"))


def run_with_faults(
    checked: CheckedGraph,
    faults: Sequence[Fault],
    placement: str,
    limits: Limits,
    *,
    rendezvous: Rendezvous | None = None,
    watcher: Watcher | None = None,
) -> DisturbedRun:
    """Run the graph in one thread, and then with these faults under a placement."""
    require_deterministic(checked, "chaos")
    graph = checked.graph
    if not graph.snapshots.is_regular:
        checked = replace(checked, graph=replace(graph, snapshots=USUAL_SNAPSHOTS))
    placed = resolve_placement(graph, placement)
    layout = make_layout(graph, placed if rendezvous or graph.launch else without_hosts(placed))
    for fault in faults:
        if fault.kind != "disconnect":
            _require_process(checked, layout, fault, placement)
        elif rendezvous is None:
            raise UsageError(
                f"--disconnect {fault.target}: the run has no hosts; say where they join (--listen), and place nodes "
                "on them (--placement)"
            )
    with tempfile.TemporaryDirectory(prefix="flowrl-chaos-") as folder:
        common: dict[str, Any] = {"limits": limits, "hash_tokens": True}
        first_folder, second_folder = Path(folder) / "undisturbed", Path(folder) / "disturbed"
        own = with_own_outputs(checked, first_folder)
        first = whole_result(Run(own, out=first_folder, **common))
        disturber = FaultWatcher(faults)
        disturbed = Run(
            with_own_outputs(checked, second_folder),
            out=second_folder,
            placement=placement,
            rendezvous=rendezvous,
            watcher=Watchers(watcher or Watcher(), disturber),
            **common,
        )
        second = whole_result(disturbed)
        repetition = Repetition((first, second), tuple(compare_runs(first, second)))
    return DisturbedRun(tuple(disturber.made), tuple(disturber.missed), repetition)


def _require_process(
    checked: CheckedGraph, layout: SiteLayout, fault: Fault, placement: str
) -> None:
    """Refuse a fault of what is no instance, or is not in a process of its own."""
    sites = dict(_sites(checked, layout))
    if fault.target not in sites:
        hint = spelling_hint(fault.target, sites)
        raise UsageError(f"--{fault.kind} {fault.target}: the graph has no such node; {hint}")
    if layout.kinds[sites[fault.target]] != "process":
        raise UsageError(
            f"--{fault.kind} {fault.target}: under `--placement {placement}` it is in the process of the whole run, "
            "whose end no run survives; place it in another one, as `--placement processes` does"
        )


def _sites(checked: CheckedGraph, layout: SiteLayout) -> Iterator[tuple[str, str]]:
    """Yield each instance that has a site, and its site."""
    for (node, replica), site in layout.site_of.items():
        if node in checked.graph.nodes:
            yield instance_key(node, replica), site


class FaultWatcher(Watcher):
    """Makes faults at their times, which count from the first firing."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.made: list[Fault] = []
        self.missed = sorted(faults, key=lambda fault: fault.at_s)
        self._has_ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, run: Run) -> None:
        self._thread = threading.Thread(
            target=self._make_all, args=(run,), name="chaos", daemon=True
        )
        self._thread.start()

    def end(self, run: Run) -> None:
        self._has_ended.set()
        if self._thread is not None:
            self._thread.join()

    def _make_all(self, run: Run) -> None:
        while self.missed:
            fault = self.missed[0]
            if not self._wait_until(run, fault.at_s):
                return
            self.made.append(self.missed.pop(0))
            run.show(f"chaos: {fault}")
            self._make(run, fault)

    def _wait_until(self, run: Run, at_s: float) -> bool:
        """Wait until this time, and until the run is not recovering from an earlier fault."""
        while run.training_s < at_s or not _is_running(run):
            if self._has_ended.wait(POLL_S):
                return False
        return True

    def _make(self, run: Run, fault: Fault) -> None:
        if fault.kind == "disconnect":
            _disturb(run, HostSilence(fault.target, fault.for_s))
            return
        site = dict(_sites(run.checked, run.sites.layout))[fault.target]
        if fault.kind == "kill":
            _disturb(run, SiteSignal(site, signal.SIGKILL))
            return
        _disturb(run, SiteSignal(site, signal.SIGSTOP))
        executor, until_s = run.executor, time.monotonic() + fault.for_s
        self._has_ended.wait(until_s - time.monotonic())
        if run.executor is executor:  # otherwise the process is gone
            _disturb(run, SiteSignal(site, signal.SIGCONT))


def _is_running(run: Run) -> bool:
    executor = run.executor
    return executor is not None and executor.began_s is not None and not run.recovery.is_under_way


def _disturb(run: Run, disturbance: Disturbance) -> None:
    assert isinstance(run.executor, Coordinator)
    run.executor.disturb(disturbance)
