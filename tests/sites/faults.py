"""Runs with real faults, in processes of their own: their ends, and what they leave behind.

python -m tests.sites.faults [ROUNDS] [SEED]     kills a random process at a random moment, in many runs
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowrl.channels.socket_folder import FOLDER_PREFIX
from flowrl.graph.yaml_writer import flow_text
from tests.toys.toy_runs import toy_graph

ROOT = Path(__file__).parents[2]
MARK = "FLOWRL_TEST_RUN"  # an environment variable of all processes of a run
ENDS_S = 30.0  # in which a run ends after a fault
STARTS_S = 60.0


@dataclass
class ActiveRun:
    """A run in a process of its own."""

    folder: Path
    tmp: Path  # its folder for temporary files
    process: subprocess.Popen[str]
    mark: str
    began: float = field(default_factory=time.monotonic)

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.folder / "r"

    def child_pids(self) -> list[int]:
        """Return the processes of the run, without the coordinator's."""
        mine = f"{MARK}={self.mark}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mine in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return sorted(set(found) - {self.process.pid})

    def site_pids(self) -> list[int]:
        """Return the processes of the run's sites, and those from which they are forked."""
        server = "flowrl.runtime.sites.fork_server"
        return [pid for pid in self.child_pids() if server in command_of(pid)]

    def wait_for_text(self, text: str, name: str = "metrics.jsonl") -> None:
        """Wait until a file of the run's folder contains a text."""
        deadline = time.monotonic() + STARTS_S
        path = self.run / name
        while not (path.exists() and text in path.read_text()):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, f"no {text!r} in {name}"
            time.sleep(0.01)

    def wait_for_fault(self) -> None:
        """Wait until the faulty node is about to fail."""
        assert self.process.stderr is not None
        assert self.process.stderr.readline() == "faulty\n"

    def wait_for_end(self, within_s: float = ENDS_S) -> RunEnd:
        """Wait for the end of the run, and check that it leaves nothing behind."""
        began = time.monotonic()
        out, err = self.process.communicate(timeout=within_s)
        took_s = time.monotonic() - began
        leftovers = self.leftovers()
        assert leftovers == [], (leftovers, out, err)
        return RunEnd(self.process.returncode, out, err, took_s)

    def leftovers(self) -> list[str]:
        """Return the processes, socket folders and named shared memory of the run that still exist."""
        found = [f"process {pid} ({command_of(pid)})" for pid in self.child_pids()]
        paths = self.tmp.rglob("*")  # an empty folder for all runs of a user may remain
        found += [str(p) for p in paths if not p.is_dir() or p.name.startswith(FOLDER_PREFIX)]
        return found + [str(p) for p in Path("/dev/shm").glob("*flowrl*")]


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    return "gone"


@dataclass
class RunEnd:
    """The exit status, the output and the duration of a run's end."""

    status: int
    out: str
    err: str
    took_s: float

    @property
    def summary(self) -> dict[str, Any]:
        """The summary, which is the only line of standard output."""
        found: dict[str, Any] = json.loads(self.out)
        return found


@contextmanager
def start_run(
    folder: Path,
    graph: Mapping[str, Any],
    *words: str,
    placement: str = "processes",
    closed: str = "",
    output: str = "--json",
) -> Iterator[ActiveRun]:
    """Start `flowrl run` of a graph, with some standard streams closed. All its processes end with the context."""
    folder.mkdir(parents=True)
    tmp = Path(tempfile.mkdtemp(prefix="flowrl-test-", dir="/tmp"))  # sockets want short paths
    text = "".join(f"{key}: {flow_text(value)}\n" for key, value in graph.items())
    (folder / "g.yaml").write_text(text)
    mark = uuid.uuid4().hex
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp), MARK: mark}
    command = [sys.executable, "-m", "flowrl", "run", "g.yaml", "--placement", placement]
    command += [
        *([output] if output else []),
        *([] if "--out" in words else ["--out", "r"]),
        *words,
    ]
    if closed:
        streams = " ".join(f"{number}>&-" for number in closed.split())
        command = ["sh", "-c", f'exec "$0" "$@" {streams}', *command]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=folder, env=env, text=True, stdout=pipe, stderr=pipe
    ) as process:
        run = ActiveRun(folder, tmp, process, mark)
        try:
            yield run
        finally:
            for pid in (process.pid, *run.child_pids()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(tmp)


def graph_to_kill() -> dict[str, Any]:
    """Return a graph with a warm-up, rounds and an evaluator, which takes about half a second."""
    nodes = {
        "c": {"type": "Source", "replicas": 2},
        "s": {"type": "tests.sites.fault_nodes:SleepingNode", "sleep_s": 0.002},
        "l": "Learner",
        "e": "Evaluator",
    }
    edges = ["c -> l, s", "l.weights -> c.weights", {"l.weights -> e": {"every": 5}}]
    warmup = [{"edges": ["c -> s"], "rounds": 100}]
    return toy_graph(nodes, edges, warmup=warmup, limits={"rounds": 100})


KILLED_MESSAGE = re.compile(
    r"flowrl: site '(?P<site>[^']+)' has ended: "
    r"(its process|the process that forked it) was killed by SIGKILL\n"
)


def kill_once(folder: Path, draw: random.Random) -> str:
    """Kill a random process at a random moment of a run, check the end, and return what happened."""
    with start_run(folder, graph_to_kill(), placement="processes") as run:
        while not run.site_pids() and run.process.poll() is None:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 1.2))
        victims = run.site_pids()
        victim = draw.choice(victims) if victims else None
        ended = False
        if victim is not None:
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                ended = True
        end = run.wait_for_end()
    if end.status == 0:
        assert end.summary["status"] == "finished"
        if end.summary["recoveries"]:  # from the loss of a process before its first firing
            return "recovered"
        return "no process" if victim is None or ended else "after the end"
    assert end.status == 1, (end.status, end.err)
    assert end.summary["status"] == "failed"
    assert KILLED_MESSAGE.fullmatch(end.err), end.err
    return "killed"


def main(rounds: int = 100, seed: int = 0) -> None:
    """Kill processes of many runs, and count what happened."""
    draw = random.Random(seed)
    found: Counter[str] = Counter()
    began = time.monotonic()
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            found[kill_once(Path(folder) / "run", draw)] += 1
        print(f"\r{number + 1}: {dict(found)}", end="", flush=True)
    print(f"\n{rounds} rounds in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
