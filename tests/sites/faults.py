"""Runs in which something goes wrong for real: how they end, and what they leave behind.

python -m tests.sites.faults [ROUNDS] [SEED]     kill a random process at a random moment, again and again
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
from flowrl.graph.yaml_text import flow_text
from tests.toys.running import tree

ROOT = Path(__file__).parents[2]
MARK = "FLOWRL_TEST_RUN"  # a variable in the environment of all that belongs to a run
ENDS_S = 10.0  # in which a run ends, whatever goes wrong
STARTS_S = 60.0


@dataclass
class Running:
    """A run as a process of its own, with a folder for its temporary files."""

    folder: Path
    tmp: Path  # its folder for temporary files
    process: subprocess.Popen[str]
    mark: str
    began: float = field(default_factory=time.monotonic)

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.folder / "r"

    def others(self) -> list[int]:
        """The processes that belong to the run, without its own."""
        mine = f"{MARK}={self.mark}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mine in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return sorted(set(found) - {self.process.pid})

    def until(self, text: str, name: str = "metrics.jsonl") -> None:
        """Wait until a file of the run's folder holds this."""
        deadline = time.monotonic() + STARTS_S
        path = self.run / name
        while not (path.exists() and text in path.read_text()):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, f"no {text!r} in {name}"
            time.sleep(0.01)

    def until_faulty(self) -> None:
        """Wait until the faulty node is about to go wrong."""
        assert self.process.stderr is not None
        assert self.process.stderr.readline() == "faulty\n"

    def ended(self, within_s: float = ENDS_S) -> Ended:
        """The end, which comes in time; and everything is gone."""
        began = time.monotonic()
        out, err = self.process.communicate(timeout=within_s)
        took_s = time.monotonic() - began
        left = self.left()
        assert left == [], (left, out, err)
        return Ended(self.process.returncode, out, err, took_s)

    def left(self) -> list[str]:
        """What is still there of the run: processes, socket folders, named shared memory."""
        left = [f"process {pid} ({_command(pid)})" for pid in self.others()]
        inside = self.tmp.rglob("*")  # a user's folder for all runs stays, but nothing in it
        left += [str(p) for p in inside if not p.is_dir() or p.name.startswith(FOLDER_PREFIX)]
        return left + [str(p) for p in Path("/dev/shm").glob("*flowrl*")]


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    return "gone"


@dataclass
class Ended:
    """How a run ended."""

    status: int
    out: str
    err: str
    took_s: float

    @property
    def told(self) -> dict[str, Any]:
        """The summary, from the only line of standard output."""
        found: dict[str, Any] = json.loads(self.out)
        return found


@contextmanager
def running(
    folder: Path,
    graph: Mapping[str, Any],
    *words: str,
    placement: str = "processes",
    closed: str = "",
    told: str = "--json",
) -> Iterator[Running]:
    """`flowrl run` of a graph, with some streams closed, and told in some way; nothing of it outlives this."""
    folder.mkdir(parents=True)
    tmp = Path(tempfile.mkdtemp(prefix="flowrl-test-", dir="/tmp"))  # sockets want short paths
    text = "".join(f"{key}: {flow_text(value)}\n" for key, value in graph.items())
    (folder / "g.yaml").write_text(text)
    mark = uuid.uuid4().hex
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp), MARK: mark}
    command = [sys.executable, "-m", "flowrl", "run", "g.yaml", "--placement", placement]
    command += [told, "--no-recover", *([] if "--out" in words else ["--out", "r"]), *words]
    if closed:
        streams = " ".join(f"{number}>&-" for number in closed.split())
        command = ["sh", "-c", f'exec "$0" "$@" {streams}', *command]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=folder, env=env, text=True, stdout=pipe, stderr=pipe
    ) as process:
        run = Running(folder, tmp, process, mark)
        try:
            yield run
        finally:
            for pid in (process.pid, *run.others()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(tmp)


def killed_graph() -> dict[str, Any]:
    """A warm-up, rounds, an evaluator; it ends after about half a second."""
    nodes = {
        "c": {"type": "Source", "replicas": 2},
        "s": {"type": "tests.sites.fault_nodes:Sleepy", "sleep_s": 0.002},
        "l": "Learner",
        "e": "Judge",
    }
    edges = ["c -> l, s", "l.weights -> c.weights", {"l.weights -> e": {"every": 5}}]
    warmup = [{"edges": ["c -> s"], "rounds": 100}]
    return tree(nodes, edges, warmup=warmup, limits={"rounds": 100})


NAMED = re.compile(
    r"flowrl: site '(?P<site>[^']+)' has ended: "
    r"(its process|the process that forked it) was killed by SIGKILL\n"
)


def killed_once(folder: Path, draw: random.Random) -> str:
    """Kill a random process at a random moment of a run; what became of it."""
    with running(folder, killed_graph(), placement="processes") as run:
        while not run.others() and run.process.poll() is None:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 1.2))
        victims = [
            pid for pid in run.others() if "flowrl.runtime.sites.fork_server" in _command(pid)
        ]
        victim = draw.choice(victims) if victims else None
        ended = False
        if victim is not None:
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                ended = True
        end = run.ended()
    if end.status == 0:  # it had done all that was asked for
        assert end.told["status"] == "finished"
        return "nobody to kill" if victim is None or ended else "after the end"
    assert end.status == 1, (end.status, end.err)
    assert end.told["status"] == "failed"
    assert NAMED.fullmatch(end.err), end.err
    return "killed"


def main(rounds: int = 100, seed: int = 0) -> None:
    """Many rounds, counted."""
    draw = random.Random(seed)
    found: Counter[str] = Counter()
    began = time.monotonic()
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            found[killed_once(Path(folder) / "run", draw)] += 1
        print(f"\r{number + 1}: {dict(found)}", end="", flush=True)
    print(f"\n{rounds} rounds in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
