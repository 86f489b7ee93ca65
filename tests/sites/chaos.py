"""Runs in which processes are killed and stopped at random, and cables are pulled, beside undisturbed ones.

python -m tests.sites.chaos [RUNS] [SEED] [FIRST]      half of them over processes, half over two machines of a network

Each run is disturbed as its number and the seed say, as far as the machine is as fast: `… 1 0 17` repeats run 17.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import flowrl
from flowrl.channels.keys import write_key
from flowrl.graph.yaml_writer import flow_text
from flowrl.runs.snapshot_files import snapshot_folders
from flowrl.runs.token_file import TOKEN_FILE
from tests.cluster.network import MACHINES, Network, network, why_not
from tests.sites.faults import ActiveRun, command_of, start_run
from tests.toys.toy_runs import toy_graph

FAULTS = 4  # in each run
ENDS_S = 180.0  # in which a run ends after its last fault, on a machine that does much else
ADDRESS = f"tcp://{MACHINES['run']}:5555"
LOST_S = 10.0  # how long a cable must be out, so that a host is lost


def disturbed_graph() -> dict[str, Any]:
    """Return a graph with a warm-up, rounds and an evaluator, which takes some seconds."""
    nodes = {
        "c": {"type": "Source", "replicas": 2},
        "s": {"type": "tests.sites.fault_nodes:SleepingNode", "sleep_s": 0.01},
        "l": "Learner",
        "e": "Evaluator",
    }
    edges = ["c -> l, s", "l.weights -> c.weights", {"l.weights -> e": {"every": 5}}]
    warmup = [{"edges": ["c -> s"], "rounds": 50}]
    more = {"snapshots": {"every_rounds": 25}, "limits": {"rounds": 300}}
    return toy_graph(nodes, edges, warmup=warmup, **more)


def results(folder: Path) -> dict[str, Any]:
    """Return what a disturbed run must have in common with an undisturbed one."""
    summary = json.loads((folder / "summary.json").read_text())
    names = ("status", "why", "digest", "state_digest", "env_steps", "train_iters", "eval_return")
    files = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", TOKEN_FILE)}
    return {**{name: summary[name] for name in names}, **files}


def require_equal(found: Mapping[str, Any], expected: Mapping[str, Any], out: str = "") -> None:
    differing = [name for name, value in expected.items() if found[name] != value]
    assert not differing, f"{', '.join(differing)} differ\n{out}"


def undisturbed(folder: Path) -> dict[str, Any]:
    """Run the graph in one thread."""
    flowrl.load(disturbed_graph()).run(out=folder, hash_tokens=True, quiet=True)
    return results(folder)


# over processes


def disturb_processes(
    folder: Path, draw: random.Random, expected: Mapping[str, Any]
) -> Counter[str]:
    """Disturb a run over processes; it must end by itself with the expected results."""
    done: Counter[str] = Counter()
    with start_run(folder, disturbed_graph(), "--hash-tokens") as run:
        run.wait_for_text("node")  # before its first firing, a run is started again only once
        for _ in range(FAULTS):
            time.sleep(draw.uniform(0.2, 2.0))
            if run.process.poll() is not None:
                break
            done[_disturb_process(run, draw)] += 1
        if not done["run killed"]:
            end = run.wait_for_end(ENDS_S)
            assert end.status == 0, end.err
        else:
            run.process.wait()
            if not _resume(run, draw):
                return done
    require_equal(results(folder / "r"), expected)
    return done


def _resume(run: ActiveRun, draw: random.Random) -> bool:
    """Resume a run that was killed, under any placement. Return whether it had a snapshot."""
    if not snapshot_folders(run.run):
        return False
    placement = draw.choice(["processes", "threads", "serial"])
    found = subprocess.run(
        [sys.executable, "-m", "flowrl", "resume", "r", "--json", "--placement", placement],
        cwd=run.folder,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=ENDS_S,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return True


def _disturb_process(run: ActiveRun, draw: random.Random) -> str:
    """Kill or stop a random process of a run, rarely that of the run itself."""
    if draw.random() < 0.1:
        run.process.kill()
        return "run killed"
    sites = [p for p in run.child_pids() if "flowrl.runtime.sites.fork_server" in command_of(p)]
    if not sites:
        return "no process"  # it is recovering
    pid = draw.choice(sites)
    with suppress(ProcessLookupError):
        if draw.random() < 0.6:
            os.kill(pid, signal.SIGKILL)
            return "killed"
        os.kill(pid, signal.SIGSTOP)
        time.sleep(draw.uniform(0.1, 1.0))
        os.kill(pid, signal.SIGCONT)
        return "stopped"
    return "no process"


# over hosts


def disturb_hosts(
    net: Network, folder: Path, draw: random.Random, expected: Mapping[str, Any]
) -> Counter[str]:
    """Disturb a run over two machines; it must end by itself with the expected results."""
    done: Counter[str] = Counter()
    folder.mkdir(parents=True)
    text = "".join(f"{key}: {flow_text(value)}\n" for key, value in disturbed_graph().items())
    (folder / "g.yaml").write_text(text)
    write_key(folder / "key")
    key = ("--key", "key")

    def start_host(name: str) -> subprocess.Popen[str]:
        words = ("--join", ADDRESS, *key, "--name", name, "--stay")
        return net.flowrl(name, "host", *words, cwd=folder, silent=True)

    rendezvous = ("--listen", ADDRESS, *key, "--hosts", "2", "--hosts-within", "60s", "--json")
    words = ("--placement", "c=a,s=b,l=b,e=a", *rendezvous)
    hosts = {name: start_host(name) for name in ("a", "b")}
    run = net.flowrl("run", "run", "g.yaml", "--out", "r", "--hash-tokens", *words, cwd=folder)
    deadline = time.monotonic() + ENDS_S
    while run.poll() is None:
        assert time.monotonic() < deadline, f"the run did not end: {what_it_does(run, folder)}"
        for name, process in hosts.items():
            if process.poll() is not None:
                hosts[name] = start_host(name)
        time.sleep(draw.uniform(0.5, 2.0))
        if done.total() < FAULTS and (folder / "r/metrics.jsonl").exists():
            done[_disturb_machine(net, draw)] += 1
            deadline = (
                time.monotonic() + ENDS_S
            )  # after each of them the hosts may have to start anew
    out, err = run.communicate()
    assert run.returncode == 0, err
    require_equal(results(folder / "r"), expected, out)
    return done


def what_it_does(run: subprocess.Popen[str], folder: Path) -> str:
    """Say what a run does that should have ended, and end it."""
    why = subprocess.run(
        [sys.executable, "-m", "flowrl", "why", "r"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=False,
    )
    run.kill()
    return "\n".join((why.stdout, why.stderr, *run.communicate()))


def _disturb_machine(net: Network, draw: random.Random) -> str:
    """Kill a process of a machine, the host itself among them, or pull its cable."""
    machine = draw.choice(["a", "b"])
    if draw.random() < 0.3:
        net.cable(machine, "down")
        time.sleep(draw.choice([1.0, LOST_S]))
        net.cable(machine, "up")
        return "cable"
    processes = net.processes(machine)
    if not processes:
        return "no process"
    with suppress(ProcessLookupError):
        os.kill(int(draw.choice(processes)), signal.SIGKILL)
    return "killed"


def main(runs: int = 200, seed: int = 0, first: int = 0) -> int:
    """Disturb so many runs, and count what was done to them; return 1 if one failed. Folders of those are kept."""
    total: Counter[str] = Counter()
    failed = []
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="flowrl-chaos-"))
    expected = undisturbed(folder / "whole")
    for number in range(first, first + runs):
        own, draw = folder / str(number), random.Random(f"{seed} {number}")
        try:
            if number % 2 and not why_not():
                with network() as net:
                    total += disturb_hosts(net, own, draw, expected)
            else:
                total += disturb_processes(own, draw, expected)
            shutil.rmtree(own)
            print(f"{number}: {dict(total)}", flush=True)
        except (AssertionError, subprocess.TimeoutExpired) as error:  # the others are still run
            failed.append(number)
            print(f"{number}: failed, see {own}\n{error}", flush=True)
    took = f"{runs} runs in {time.monotonic() - began:.0f} s"
    if failed:
        print(f"{took}: {len(failed)} failed: {failed}")
        return 1
    shutil.rmtree(folder)
    print(f"{took}: every result as undisturbed")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
