"""Compares the runs of every bundled graph in every placement, with replicas and lags, and with every kind of cut.

python -m tests.sites.matrix [GRAPH…]                   all cases of all graphs, or of some (three hours)
python -m tests.sites.matrix --cases 3                  three cases of each graph, others for each (forty minutes)
python -m tests.sites.matrix --only steps processes     only one kind of cut, and one placement

Each process has its own global random states and hash seed. Two hosts are network namespaces of this machine. In the
table, `=` means that all results are equal to those of the serial run: the summary, metrics, logs, checkpoints, hashes
of all tokens, and the files that nodes wrote.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import flowrl
from flowrl.channels.keys import write_key
from tests.cluster.network import MACHINES, Network, network
from tests.cluster.network import why_not as why_no_hosts
from tests.sites.bundled_cases import (
    COMPARED,
    CUTS,
    Case,
    cases_of,
    collect_results,
    describe_difference,
    run_case,
    why_not_comparable,
)
from tests.sites.perturbed_environment import perturbed_environment
from tests.sites.run_comparison import Results

PLACEMENTS = ("threads", "processes", "mixed", "hosts")
ON_HOSTS = (
    "collector=a,learner=b",
    "collector=?,learner=process",
    "collector=b,evaluator=a,learner=main",
)
ADDRESS = f"tcp://{MACHINES['run']}:5555"
RUN_S = 120.0


class TwoHosts:
    """Two hosts that serve several runs."""

    def __init__(self, net: Network, folder: Path) -> None:
        self._net, self._folder = net, folder
        write_key(folder / "key")
        self._places = [folder / name for name in ("a", "b")]
        for place in self._places:
            place.mkdir()
            words = ("host", "--join", ADDRESS, "--key", "../key", "--name", place.name, "--stay")
            net.flowrl(place.name, *words, cwd=place, silent=True)

    def run_case(self, case: Case, placement: str, folder: Path) -> Results:
        """Run a case on the hosts, and return its results."""
        folder.mkdir()
        words = ["run", *case.arguments(), "--json", "--out", "r", "--hash-tokens"]
        words += ["--placement", placement, "--listen", ADDRESS, "--hosts", "2"]
        words += ["--key", str(self._folder / "key")]
        run = self._net.flowrl("run", *words, cwd=folder)
        _, err = run.communicate(timeout=RUN_S)
        if run.returncode:
            raise RuntimeError(err)
        results = collect_results(folder / "r", folder, *self._places)
        for place in self._places:
            for file in place.iterdir():
                file.unlink()  # files that nodes wrote
        return results


class Matrix:
    """Runs the cases, and counts the outcomes."""

    def __init__(
        self, folder: Path, hosts: TwoHosts | str, only: Sequence[str], most_cases: int | None
    ) -> None:
        self._folder, self._hosts, self._only = folder, hosts, only
        self._most_cases = most_cases  # of each graph
        self.outcomes: Counter[str] = Counter()
        self.differences: list[str] = []

    def run_graph(self, graph: str) -> None:
        """Run cases of a graph, and print a line for each."""
        why = why_not_comparable(graph)
        if why:
            print(f"{graph}: skipped: {why}")
            self.outcomes["skipped"] += 1
            return
        placements = [p for p in PLACEMENTS if p in self._only] or list(PLACEMENTS)
        for number, case in enumerate(self._chosen_cases(graph)):
            on_hosts = ON_HOSTS[number % len(ON_HOSTS)].replace("learner", _first_learner(graph))
            self._run_case(case, placements, on_hosts)

    def _chosen_cases(self, graph: str) -> list[Case]:
        cuts = [cut for cut in CUTS if cut in self._only] or CUTS
        found = [case for case in cases_of(graph) if case.cut in cuts]
        if self._most_cases is None or self._most_cases >= len(found):
            return found
        return random.Random(graph).sample(found, self._most_cases)

    def _run_case(self, case: Case, placements: list[str], on_hosts: str) -> None:
        began = time.monotonic()
        folder = self._folder / str(case).replace(" ", "-")
        serial = run_case(case, "serial", folder / "serial")
        assert serial["status"] == ("solved" if case.cut == "verdict" else "finished"), case
        cells = {}
        for placement in placements:
            named = on_hosts if placement == "hosts" else placement
            cells[placement] = self._compare(case, named, serial, folder)
        shutil.rmtree(folder)
        self.outcomes.update(cells.values())
        row = "  ".join(f"{name} {cell:<7}" for name, cell in cells.items())
        took_s = time.monotonic() - began
        print(f"{case!s:<48} {serial['digest'][:8]}  {row} {took_s:4.0f} s", flush=True)

    def _compare(self, case: Case, placement: str, serial: Results, folder: Path) -> str:
        placed = folder / placement.replace("?", "any")
        if placement in PLACEMENTS:
            other = run_case(case, placement, placed)
        elif isinstance(self._hosts, TwoHosts):
            other = self._hosts.run_case(case, placement, placed)
        else:
            return "skipped"
        differs = describe_difference(serial, other, folder / "serial" / "r", placed / "r")
        if differs:
            self.differences.append(f"{case}, {placement}: {differs}")
        return "differs" if differs else "="


def _first_learner(graph: str) -> str:
    """Return the learner that a host executes. Those of other groups of agents stay in the main site."""
    nodes = flowrl.load(graph).check().graph.nodes
    return next(name for name, spec in nodes.items() if spec.cls.role == "learner")


@contextmanager
def two_hosts() -> Iterator[TwoHosts | str]:
    """Start two hosts in network namespaces; yield them, or why they cannot be started."""
    why = why_no_hosts()
    with ExitStack() as stack:
        if why:
            yield why
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
            yield TwoHosts(stack.enter_context(network()), folder)


def main(words: Sequence[str]) -> int:
    """Print the table; return 1 if results differ."""
    parser = ArgumentParser(prog="python -m tests.sites.matrix", description=__doc__)
    parser.add_argument("graphs", nargs="*", help="names of bundled graphs (default: all)")
    parser.add_argument("--only", nargs="+", default=[], choices=(*PLACEMENTS, *CUTS))
    parser.add_argument("--cases", type=int, help="at most so many cases of each graph")
    arguments = parser.parse_args(words)
    os.environ.update(perturbed_environment())
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, two_hosts() as hosts:
        matrix = Matrix(Path(folder), hosts, arguments.only, arguments.cases)
        for graph in arguments.graphs or COMPARED:
            matrix.run_graph(graph)
    if isinstance(hosts, str):
        print(f"hosts: skipped: {hosts}")
    counts = ", ".join(f"{count} {cell}" for cell, count in sorted(matrix.outcomes.items()))
    print(f"{counts} in {time.monotonic() - began:.0f} s", *matrix.differences, sep="\n\n")
    return 1 if matrix.differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
