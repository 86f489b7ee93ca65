"""Env steps a second: every kind of env manager, beside the same kind of other libraries.

    python -m bench envs [REPEATS] [--seconds S] [--contender sb3_subproc ...] [--load cartpole_8 ...]

CartPole-v1, and images of 84x84x4 bytes, for 8 and 64 envs, random actions, two cores. Contenders
take turns, each in a process of its own; told is the median of the repeats. How each is measured is
in `bench/peers/env_protocol.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.peers import ROOT, SB3, TIANSHOU, NotInstalled, Peer
from bench.peers.env_protocol import LOADS

WHAT = "Env steps a second of every kind of env manager, beside the same kind of other libraries."
REPEATS, SECONDS = 3, 1.0
GRACE_S = 120.0  # to import, and to make the envs
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")}


@dataclass(frozen=True, slots=True)
class Contender:
    """A library's kind of stepping envs, and the group of those that it is to be compared with."""

    library: str
    kind: str
    group: str
    peer: Peer | None = None  # None: installed where this runs

    @property
    def name(self) -> str:
        """Its row in the table."""
        return f"{self.library}_{self.kind}"

    def run(self, seconds: float, loads: Sequence[str]) -> Mapping[str, float]:
        """Env steps a second for each load; nothing, with what went wrong printed, if it failed."""
        try:
            python = str(self.peer.python()) if self.peer else sys.executable
            done = subprocess.run(
                [python, "-m", f"bench.peers.{self.library}_envs", self.kind, str(seconds), *loads],
                cwd=ROOT,
                env={**os.environ, **ONE_THREAD},
                capture_output=True,
                text=True,
                timeout=GRACE_S + len(loads) * seconds,
            )
        except (NotInstalled, subprocess.TimeoutExpired) as error:
            print(f"  {self.name}: {str(error).replace(str(ROOT), '.')}", file=sys.stderr)
            return {}
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["no message"])[-1]
            print(f"  {self.name}: {why}", file=sys.stderr)
            return {}
        found: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found


CONTENDERS = (
    Contender("gymnasium", "bare_loop", "in process"),
    Contender("flowrl", "base", "in process"),
    Contender("gymnasium", "sync", "in process"),
    Contender("sb3", "dummy", "in process", SB3),
    Contender("tianshou", "dummy", "in process", TIANSHOU),
    Contender("flowrl", "thread", "threads"),
    Contender("flowrl", "sync_subprocess", "processes"),
    Contender("flowrl", "one_worker", "processes"),
    Contender("gymnasium", "async", "processes"),
    Contender("sb3", "subproc", "processes", SB3),
    Contender("tianshou", "subproc", "processes", TIANSHOU),
    Contender("tianshou", "shmem", "processes", TIANSHOU),
    Contender("flowrl", "async_subprocess", "processes, what is ready"),
    Contender("tianshou", "shmem_async", "processes, what is ready", TIANSHOU),
    Contender("flowrl", "vector", "gymnasium's pool"),
    Contender("gymnasium", "vector", "gymnasium's pool"),
    Contender("flowrl", "envpool", "EnvPool"),
    Contender("gymnasium", "envpool", "EnvPool"),
)


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure and print."""
    told = parsed(arguments)
    chosen = [c for c in CONTENDERS if c.name in told.contender]
    runs: dict[str, list[Mapping[str, float]]] = {c.name: [] for c in chosen}
    for _ in range(told.repeats):
        for contender in chosen:
            runs[contender.name].append(contender.run(told.seconds, told.load))
    found = {contender.name: medians(runs[contender.name]) for contender in chosen}
    print(f"  {'':28}" + "".join(f"{load:>14}" for load in told.load))
    for name, rates in found.items():
        print(f"  {name:28}" + "".join(f"{rates.get(load, 0):>14,.0f}" for load in told.load))
    return {"env_steps_per_s": found, "ahead": ahead(chosen, found)}


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """What is to be measured."""
    names, loads = [c.name for c in CONTENDERS], [load.name for load in LOADS]
    parser = argparse.ArgumentParser("python -m bench envs", description=WHAT)
    several: dict[str, Any] = {"nargs": "+", "metavar": "NAME"}
    add = parser.add_argument
    add("repeats", nargs="?", type=int, default=REPEATS, help="default: %(default)s; 1: 2 minutes")
    add("--seconds", type=float, default=SECONDS, help="for each load; default: %(default)s")
    told = f"by default all of {', '.join(names)}"
    add("--contender", choices=names, default=names, help=told, **several)
    add("--load", choices=loads, default=loads, help=f"by default all of {loads}", **several)
    return parser.parse_args(arguments)


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of what each run measured."""
    names = {name for run in runs for name in run}
    return {
        load.name: statistics.median(run[load.name] for run in runs if load.name in run)
        for load in LOADS
        if load.name in names
    }


def ahead(
    contenders: Sequence[Contender], found: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """How many times as fast as the fastest other of its group each of ours is."""
    told: dict[str, dict[str, float]] = {}
    for ours in (c for c in contenders if c.library == "flowrl"):
        others = [
            found[c.name]
            for c in contenders
            if c.group == ours.group and c.library != "flowrl" and c.kind != "bare_loop"
        ]
        for load, steps in found[ours.name].items():
            theirs = [other[load] for other in others if load in other]
            if theirs:
                told.setdefault(ours.name, {})[load] = round(steps / max(theirs), 2)
    return told


if __name__ == "__main__":
    main(sys.argv[1:])
