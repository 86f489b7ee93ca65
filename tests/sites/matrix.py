"""Every bundled graph in every placement, with replicas and lags, to every kind of cut: are the bits the same?

python -m tests.sites.matrix [GRAPH…] [--only WORD…]     all (half an hour or so), or some: `--only steps processes`

Each process begins with global random states and a hash seed of its own. Two hosts are network namespaces of this
machine. In the table `=` says that everything that a run leaves is equal to what the serial run left: the summary,
metrics, logs, checkpoints, hashes of all tokens, and the files that nodes wrote.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flowrl.channels.keys import write_key
from flowrl.graph.bundled import bundled_graphs
from tests.cluster.network import MACHINES, Network, network
from tests.cluster.network import why_not as why_no_hosts
from tests.sites.bundled import Case, cases, difference, left, ran, why_not
from tests.sites.comparing import Facts
from tests.sites.poison import poisoned_environment

PLACEMENTS = ("threads", "processes", "mixed", "hosts")
ON_HOSTS = (
    "collector=a,learner=b",
    "collector=?,learner=process",
    "collector=b,evaluator=a,learner=main",
)
ADDRESS = f"tcp://{MACHINES['run']}:5555"
SOON_S = 120.0


class TwoHosts:
    """Hosts that stay, and runs that use them."""

    def __init__(self, net: Network, folder: Path) -> None:
        self._net, self._folder = net, folder
        write_key(folder / "key")
        self._places = [folder / name for name in ("a", "b")]
        for place in self._places:
            place.mkdir()
            words = ("host", "--join", ADDRESS, "--key", "../key", "--name", place.name, "--stay")
            net.flowrl(place.name, *words, cwd=place, silent=True)

    def ran(self, case: Case, placement: str, folder: Path) -> Facts:
        """Run it there; all that is left of it."""
        folder.mkdir()
        words = ["run", *case.words(), "--json", "--out", "r", "--hash-tokens"]
        words += ["--placement", placement, "--listen", ADDRESS, "--hosts", "2"]
        words += ["--key", str(self._folder / "key")]
        run = self._net.flowrl("run", *words, cwd=folder)
        _, err = run.communicate(timeout=SOON_S)
        if run.returncode:
            raise RuntimeError(err)
        facts = left(folder / "r", folder, *self._places)
        for place in self._places:
            for file in place.iterdir():
                file.unlink()  # what a node wrote
        return facts


class Matrix:
    """The runs, and what they were found to be."""

    def __init__(self, folder: Path, hosts: TwoHosts | str, only: Sequence[str]) -> None:
        self._folder, self._hosts, self._only = folder, hosts, only
        self.found: Counter[str] = Counter()
        self.differences: list[str] = []

    def graph(self, graph: str) -> None:
        """All cases of a graph, a line for each."""
        why = why_not(graph)
        if why:
            print(f"{graph}: skipped: {why}")
            self.found["skipped"] += 1
            return
        for number, case in enumerate(cases(graph)):
            placements = self._chosen(case)
            if placements:
                self._case(case, placements, ON_HOSTS[number % len(ON_HOSTS)])

    def _chosen(self, case: Case) -> list[str]:
        words = str(case).split()
        cuts = {"iters", "steps", "verdict"} & {*self._only}
        if cuts and case.cut not in cuts:
            return []
        chosen = [p for p in PLACEMENTS if p in self._only] or list(PLACEMENTS)
        return chosen if words else []

    def _case(self, case: Case, placements: list[str], on_hosts: str) -> None:
        began = time.monotonic()
        folder = self._folder / str(case).replace(" ", "-")
        serial = ran(case, "serial", folder / "serial")
        assert serial["status"] == ("solved" if case.cut == "verdict" else "finished"), case
        cells = {}
        for placement in placements:
            named = on_hosts if placement == "hosts" else placement
            cells[placement] = self._cell(case, named, serial, folder)
        shutil.rmtree(folder)
        self.found.update(cells.values())
        told = "  ".join(f"{name} {cell:<7}" for name, cell in cells.items())
        took_s = time.monotonic() - began
        print(f"{case!s:<48} {serial['digest'][:8]}  {told} {took_s:4.0f} s", flush=True)

    def _cell(self, case: Case, placement: str, serial: Facts, folder: Path) -> str:
        there = folder / placement.replace("?", "any")
        if placement not in ON_HOSTS:
            other = ran(case, placement, there)
        elif isinstance(self._hosts, TwoHosts):
            other = self._hosts.ran(case, placement, there)
        else:
            return "skipped"
        differs = difference(serial, other, folder / "serial" / "r", there / "r")
        if differs:
            self.differences.append(f"{case}, {placement}: {differs}")
        return "differs" if differs else "="


@contextmanager
def two_hosts() -> Iterator[TwoHosts | str]:
    """Hosts in namespaces, or why there are none."""
    why = why_no_hosts()
    with ExitStack() as stack:
        if why:
            yield why
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
            yield TwoHosts(stack.enter_context(network()), folder)


def main(words: Sequence[str]) -> int:
    """The table; status 1 where bits differ."""
    parser = ArgumentParser(prog="python -m tests.sites.matrix", description=__doc__)
    parser.add_argument("graphs", nargs="*", help="names of bundled graphs (default: all)")
    known = (*PLACEMENTS, "iters", "steps", "verdict")
    parser.add_argument("--only", nargs="+", default=[], choices=known)
    given = parser.parse_args(words)
    os.environ.update(poisoned_environment())
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, two_hosts() as hosts:
        matrix = Matrix(Path(folder), hosts, given.only)
        for graph in given.graphs or bundled_graphs():
            matrix.graph(graph)
    if isinstance(hosts, str):
        print(f"hosts: skipped: {hosts}")
    counts = ", ".join(f"{count} {cell}" for cell, count in sorted(matrix.found.items()))
    print(f"{counts} in {time.monotonic() - began:.0f} s", *matrix.differences, sep="\n\n")
    return 1 if matrix.differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
