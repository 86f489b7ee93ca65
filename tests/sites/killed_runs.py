"""Kills a run of every bundled graph and example at a random round, resumes it elsewhere, and compares the results.

python -m tests.sites.killed_runs [GRAPH…] [--seed N]     all (an hour or so), or some

Each graph has two collectors where it has one. A run in one thread goes on to its end. Another one is killed with
SIGKILL as soon as a random snapshot of it is written, under a placement drawn at random, and resumed under another one.
Its digests, metrics, logs, checkpoints, the hashes of all tokens and the files that nodes wrote must be those of the
first.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flowrl
from flowrl.api import FlowGraph
from flowrl.graph.bundled import bundled_graphs
from flowrl.graph.yaml_writer import flow_text
from flowrl.runs.result import RunResult
from tests.sites.bundled_cases import (
    DQN,
    OFFLINE,
    SEED,
    SMALL,
    UNREACHED_GOALS,
    UNREACHED_RETURN,
    Case,
    collect_results,
    describe_difference,
    working_directory,
)
from tests.sites.run_comparison import Results

ROOT = Path(__file__).parents[2]
EXAMPLES = ("my_league/league", "my_league/exploiter", "my_league/self_play", "my_agents/queue")
# BipedalWalker keeps its physical world in a reset, so that an episode depends on those before it.
INEXACT = ("bipedalwalker_tqc",)
PLACEMENTS = ("serial", "threads", "processes", "mixed")
RUN_S = 600.0  # on a machine that does much else
# Of the summary, what a run that was resumed says of its resumption.
RESUMED_KEYS = ("resumed_after", "happened", "repeat", "resume")
KILLED = """
import os, signal, sys
from flowrl.runs.snapshot_files import SnapshotWriter
from flowrl.cli.main import main

def write(self, snapshot, facts, write=SnapshotWriter.write):
    digest = write(self, snapshot, facts)
    if snapshot.rounds >= int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return digest

SnapshotWriter.write = write
sys.exit(main(sys.argv[2:]))
"""


@dataclass(frozen=True)
class KilledCase:
    """A graph that is killed: a bundled one, or an example."""

    name: str

    @property
    def graph(self) -> str:
        return str(ROOT / "examples" / f"{self.name}.yaml") if "/" in self.name else self.name

    @property
    def sets(self) -> dict[str, Any]:
        """The settings of a short run with a snapshot after each round."""
        sets: dict[str, Any] = {"snapshots.every_rounds": 1}
        if "/" in self.name:
            changes: Mapping[str, Any] = {"evaluator.weights.every": 2, "evaluator.episodes": 2}
        elif self.name in OFFLINE:
            changes = {**DQN, "evaluator.stop_value": UNREACHED_RETURN}
        else:
            goal = UNREACHED_GOALS.get(self.name, UNREACHED_RETURN)
            changes = {**SMALL[self.name], "evaluator.stop_value": goal}
        nodes = flowrl.load(self.graph).check(envs="skip").graph.nodes
        has_own_replicas = "collector" in nodes and "/" not in self.name
        return {**changes, **sets, **({"collector.replicas": 2} if has_own_replicas else {})}

    @property
    def train_iters(self) -> int:
        return 30 if self.name in OFFLINE or Case(self.name, "iters").is_off_policy else 6

    @property
    def flow(self) -> FlowGraph:
        return flowrl.load(self.graph, self.sets)

    def placement(self, kind: str) -> str:
        """Return a placement of this kind: `mixed` has nodes in processes, in threads and in the main site in turn."""
        if kind != "mixed":
            return kind
        fires = [name for name, spec in self.flow.check().graph.nodes.items() if spec.fires]
        kinds = ("process", "thread", "main")
        return ",".join(f"{name}={kinds[n % 3]}" for n, name in enumerate(fires))

    def run(self, folder: Path) -> RunResult:
        """Run without a stop, in one thread."""
        folder.mkdir()
        with working_directory(folder):
            return self.flow.run(
                seed=SEED,
                out=folder / "r",
                hash_tokens=True,
                quiet=True,
                train_iters=self.train_iters,
            )

    def run_and_kill(self, folder: Path, rounds: int, placement: str) -> None:
        """Run, and kill the run when its snapshot after so many rounds, or the next one, is written."""
        folder.mkdir()
        words = ["run", self.graph, f"--seed={SEED}", f"--train-iters={self.train_iters}"]
        words += [f"--set={key}={flow_text(value)}" for key, value in self.sets.items()]
        words += ["--out", "r", "--hash-tokens", "--quiet", "--placement", placement]
        found = subprocess.run(
            [sys.executable, "-c", KILLED, str(rounds), *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        assert found.returncode == -signal.SIGKILL, (found.returncode, found.stderr)


def compare_killed(case: KilledCase, folder: Path, draw: random.Random) -> tuple[str, str]:
    """Return where a run was killed and resumed, and what then differs from one without a stop; empty if nothing."""
    whole = case.run(folder / "whole")
    assert whole.snapshot_rounds is not None
    rounds = draw.randrange(1, whole.snapshot_rounds)
    before, after = draw.sample(PLACEMENTS, 2)
    case.run_and_kill(folder / "killed", rounds, case.placement(before))
    with working_directory(folder / "killed"):
        resumed = flowrl.resume(
            folder / "killed" / "r", placement=case.placement(after), quiet=True
        )
    where = (
        f"{before}, killed after {resumed.resumed_after} of {whole.snapshot_rounds} rounds, {after}"
    )
    runs = folder / "whole", folder / "killed"
    one, two = (_results(run) for run in runs)
    return where, describe_difference(one, two, *(run / "r" for run in runs))


def _results(folder: Path) -> Results:
    """Return what must be equal: everything but how the run was placed and resumed."""
    found = collect_results(folder / "r", folder)
    return {key: value for key, value in found.items() if key not in RESUMED_KEYS}


def main(words: Sequence[str]) -> int:
    """Print a line for each graph; return 1 if results differ."""
    parser = ArgumentParser(prog="python -m tests.sites.killed_runs", description=__doc__)
    parser.add_argument("graphs", nargs="*", help="names of graphs (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the rounds and placements")
    arguments = parser.parse_args(words)
    differing = []
    began = time.monotonic()
    graphs = arguments.graphs or [*bundled_graphs(), *EXAMPLES]
    for name in graphs:
        began_graph = time.monotonic()
        draw = random.Random(f"{arguments.seed} {name}")
        with tempfile.TemporaryDirectory(prefix="flowrl-killed-") as folder:
            try:
                where, difference = compare_killed(KilledCase(name), Path(folder), draw)
            except (AssertionError, subprocess.TimeoutExpired) as error:  # the others are still run
                where, difference = "failed", f"{type(error).__name__}: {error}"
        if difference and name not in INEXACT:
            differing.append(f"{name} ({where}): {difference}")
        mark = "differs" if difference else "="
        print(f"{name:<24} {mark:<8} {where} {time.monotonic() - began_graph:4.0f} s", flush=True)
    print(f"{len(graphs)} graphs in {time.monotonic() - began:.0f} s", *differing, sep="\n\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
