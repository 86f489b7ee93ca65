"""Wall time until CartPole-v1 is solved: flowrl, stable-baselines3, tianshou, by one protocol.

    python -m bench solve [SEEDS [CAP_S [CONTENDER ...]]]        (a CONTENDER: sb3_ppo)

Every run is a process of its own with one thread, one after the other, seed by seed. What the clock
counts is in `bench/peers/protocol.py`; each library's settings, its own, in the files beside it.

A run ends with a mean return of 475 in 20 greedy episodes that 20 others confirm; or unsolved,
after CAP_S seconds or the env steps that its settings allow, and then counts with that time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.peers import ROOT, SB3, TIANSHOU, NotInstalled, Peer

SEEDS, CAP_S = 5, 120.0
GRACE_S = 120.0  # for imports, the moment of training before, and an evaluation that has begun
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Contender:
    """A library and an algorithm."""

    library: str
    what: str
    peer: Peer | None = None  # None: installed where this runs

    @property
    def name(self) -> str:
        """Its row in the table."""
        return f"{self.library}_{self.what}"

    def run(self, seed: int, cap_s: float) -> Row:
        """One run; whatever keeps it from its report is its row's `failed`."""
        try:
            python = str(self.peer.python()) if self.peer else sys.executable
            command = [python, "-m", f"bench.peers.{self.library}_solve", self.what]
            done = subprocess.run(
                [*command, str(seed), str(cap_s)],
                cwd=ROOT,
                env={**os.environ, **ONE_THREAD},
                capture_output=True,
                text=True,
                timeout=cap_s + GRACE_S,
            )
        except (NotInstalled, subprocess.TimeoutExpired) as error:
            return {"failed": str(error).replace(str(ROOT), ".")}
        if done.returncode:
            return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1]}
        row: Row = json.loads(done.stdout.splitlines()[-1])
        return row


CONTENDERS = (
    Contender("flowrl", "dqn"),
    Contender("sb3", "dqn", SB3),
    Contender("tianshou", "dqn", TIANSHOU),
    Contender("flowrl", "ppo"),
    Contender("sb3", "ppo", SB3),
    Contender("tianshou", "ppo", TIANSHOU),
)


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure and print."""
    seeds = int(arguments[0]) if arguments else SEEDS
    cap_s = float(arguments[1]) if len(arguments) > 1 else CAP_S
    contenders = [
        c for c in CONTENDERS if c.name.replace(" ", "_") in arguments[2:] or not arguments[2:]
    ]
    runs: dict[str, list[Row]] = {c.name: [] for c in contenders}
    for seed in range(seeds):
        for contender in contenders:
            row = contender.run(seed, cap_s)
            runs[contender.name].append({"seed": seed, **row})
            print(f"{contender.name:14} seed {seed}  {_told(row)}", file=sys.stderr)
    found = {name: summary(rows) for name, rows in runs.items()}
    print(table(found))
    return {"cap_s": cap_s, "table": found, "runs": runs}


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """What a contender's runs came to."""
    good = [row for row in rows if "failed" not in row]
    if not good:
        return {"failed": rows[0]["failed"] if rows else "no run"}
    wall_s = [row["wall_s"] for row in good]
    return {
        "runs": len(rows),
        "solved": sum(row["solved"] for row in good),
        "median_s": statistics.median(wall_s),
        "mean_s": statistics.fmean(wall_s),
        "std_s": statistics.pstdev(wall_s),
        "train_median_s": statistics.median(row["wall_s"] - row["eval_s"] for row in good),
        "env_steps_median": statistics.median(row["env_steps"] for row in good),
        "versions": good[0]["versions"],
    }


def table(found: Mapping[str, Row]) -> str:
    """The summaries in Markdown; `≥` where a run that did not solve counts with its time."""
    lines = [
        "| | solved | wall s, median | mean ± std | without evaluation | env steps, median |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        if "failed" in row:
            cells = [name, f"failed: {row['failed']}", "", "", "", ""]
        else:
            cells = [name, f"{row['solved']}/{row['runs']}", *_numbers(row)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _numbers(row: Row) -> list[str]:
    least = "≥ " if row["solved"] < row["runs"] else ""
    return [
        f"{least}{row['median_s']:.1f}",
        f"{least}{row['mean_s']:.1f} ± {row['std_s']:.1f}",
        f"{least}{row['train_median_s']:.1f}",
        f"{least}{row['env_steps_median']:,.0f}",
    ]


def _told(row: Row) -> str:
    if "failed" in row:
        return f"failed: {row['failed']}"
    end = "solved" if row["solved"] else "not solved"
    return f"{end} in {row['wall_s']:.1f} s, {row['env_steps']:,} env steps"


if __name__ == "__main__":
    main(sys.argv[1:])
