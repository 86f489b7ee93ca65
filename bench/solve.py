"""The wall time until CartPole-v1 is solved: flowrl, stable-baselines3 and tianshou under one protocol.

    python -m bench solve [SEEDS [TIME_LIMIT_S [CONTENDER ...]]]        (a CONTENDER: sb3_cartpole_ppo)

Every run is a process of its own with one thread. Runs do not overlap; for each seed, all contenders run
in turn. `bench/peers/solve_protocol.py` says what the clock counts; each library's settings, which are its
own, are in the files beside it. `flowrl_cartpole_dqn_processes` is `flowrl_cartpole_dqn` with each node in a
process, and evaluations in worker processes of their own: it shows whether evaluations hold back the learner.

A run is solved when 20 greedy episodes have a mean return of 475 and 20 other episodes confirm it. It is
unsolved after TIME_LIMIT_S seconds, or after the env steps that its settings allow, and then counts with
the time it has taken.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench._arguments import benchmark_parser, one_of
from bench.peers import SB3, TIANSHOU, Contender, Row

SEEDS, TIME_LIMIT_S = 5, 120.0
GRACE_S = (
    120.0  # for imports, for the training before the clock starts, and for the last evaluation
)

CONTENDERS = (
    Contender("flowrl", "cartpole_dqn"),
    Contender("flowrl", "cartpole_dqn_processes"),
    Contender("sb3", "cartpole_dqn", SB3),
    Contender("tianshou", "cartpole_dqn", TIANSHOU),
    Contender("flowrl", "cartpole_ppo"),
    Contender("sb3", "cartpole_ppo", SB3),
    Contender("tianshou", "cartpole_ppo", TIANSHOU),
)


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("seeds", nargs="?", type=int, default=SEEDS)
    parser.add_argument("time_limit_s", nargs="?", type=float, default=TIME_LIMIT_S)
    names = [contender.name for contender in CONTENDERS]
    parser.add_argument(
        "contenders", nargs="*", type=one_of(names), default=names, metavar="CONTENDER"
    )
    options = parser.parse_args(arguments)
    contenders = [c for c in CONTENDERS if c.name in options.contenders]
    runs: dict[str, list[Row]] = {c.name: [] for c in contenders}
    for seed in range(options.seeds):
        for contender in contenders:
            row = run_once(contender, seed, options.time_limit_s)
            runs[contender.name].append({"seed": seed, **row})
            print(f"{contender.name:29} seed {seed}  {outcome(row)}", file=sys.stderr)
    summaries = {name: summary(rows) for name, rows in runs.items()}
    print(table(summaries))
    return {"time_limit_s": options.time_limit_s, "summaries": summaries, "runs": runs}


def run_once(contender: Contender, seed: int, time_limit_s: float) -> Row:
    """Do one run of a contender."""
    return contender.run("solve", [str(seed), str(time_limit_s)], time_limit_s + GRACE_S)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Summarise the runs of a contender."""
    good = [row for row in rows if "failed" not in row]
    if not good:
        return {"failed": rows[0]["failed"] if rows else "no run"}
    wall_s = [row["wall_s"] for row in good]
    last = [row["curve"][-1][1] for row in good if row["curve"]]
    return {
        "runs": len(rows),
        "solved": sum(row["solved"] for row in good),
        "median_s": statistics.median(wall_s),
        "mean_s": statistics.fmean(wall_s),
        "std_s": statistics.pstdev(wall_s),
        "without_eval_median_s": statistics.median(row["wall_s"] - row["eval_s"] for row in good),
        "env_steps_median": statistics.median(row["env_steps"] for row in good),
        "eval_return_median": statistics.median(last) if last else None,
        "versions": good[0]["versions"],
    }


def table(summaries: Mapping[str, Row]) -> str:
    """The summaries in Markdown; `≥` marks numbers that include an unsolved run."""
    lines = [
        "| | solved | wall time, median s | mean ± std s | without evaluation, median s | env steps, median |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in summaries.items():
        if "failed" in row:
            cells = [name, f"failed: {row['failed']}", "", "", "", ""]
        else:
            cells = [name, f"{row['solved']}/{row['runs']}", *_number_cells(row)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _number_cells(row: Row) -> list[str]:
    bound = "≥ " if row["solved"] < row["runs"] else ""
    return [
        f"{bound}{row['median_s']:.1f}",
        f"{bound}{row['mean_s']:.1f} ± {row['std_s']:.1f}",
        f"{bound}{row['without_eval_median_s']:.1f}",
        f"{bound}{row['env_steps_median']:,.0f}",
    ]


def outcome(row: Row) -> str:
    if "failed" in row:
        return f"failed: {row['failed']}"
    outcome = "solved" if row["solved"] else "not solved"
    return f"{outcome} in {row['wall_s']:.1f} s, {row['env_steps']:,} env steps"
