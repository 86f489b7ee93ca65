"""What every bundled graph reaches: its goal, env steps and seconds until then, and the learning curve.

    python -m bench zoo                                    all graphs that can run here, five seeds each (hours)
    python -m bench zoo [GRAPH…] [--seeds 5] [--side N]    some graphs, N runs side by side
    python -m bench zoo GRAPH… --seeds 5..9                other seeds, with which no setting was chosen

Each run is stored in `bench/results/zoo/GRAPH.json` as soon as it ends, and is not repeated, so the command can be
stopped and started again. Stored runs are dropped when a graph's file has changed; after a change of an algorithm,
delete its file of results. At the end `docs/zoo.md` is written from all results.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench._arguments import benchmark_parser, one_of
from flowrl.api import load
from flowrl.graph.bundled import bundled_graphs, graphs_folder
from flowrl.graph.yaml_writer import flow_text

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "zoo"
PAGE = ROOT / "docs" / "zoo.md"
SEEDS = 5
NO_TASK = ("cartpole_dqn_record",)  # graphs that do not add an algorithm
PLAIN_MODEL = {"type": "mlp", "hidden": [64, 64], "activation": "tanh"}


@dataclass(frozen=True)
class Comparison:
    """What a graph's own settings are for: variants of graphs without them, as a part of the page."""

    title: str
    text: tuple[str, ...]
    variants: Mapping[str, tuple[str, Mapping[str, Any]]]  # a graph, and the settings that differ


COMPARISONS = (
    Comparison(
        "Without a memory",
        (
            "CartPole without velocities needs a memory: the same algorithms with a model that has none do not",
            "solve it. The settings of these runs are in `COMPARISONS` of `bench/zoo.py`;",
            "`hiddencartpole_dqn-plain` is `cartpole_dqn` in that env, as R2D2 without a memory is DQN.",
        ),
        {
            "hiddencartpole_ppo-plain": (
                "hiddencartpole_ppo",
                {"policy.model": PLAIN_MODEL, "policy.unroll_steps": None},
            ),
            "hiddencartpole_impala-plain": (
                "hiddencartpole_impala",
                {"policy.model": PLAIN_MODEL, "policy.unroll_steps": None},
            ),
            "hiddencartpole_dqn-plain": (
                "cartpole_dqn",
                {
                    "env": {"id": "CartPole-v1", "wrappers": [{"type": "select", "keep": [0, 2]}]},
                    "limits.steps": 200_000,
                },
            ),
        },
    ),
    Comparison(
        "Without hindsight, without a bonus, and by imitation alone",
        (
            "`bitflip_dqn-plain` is `bitflip_dqn_her` without its transform, for 100,000 env steps.",
            "`mountaincar_dqn-sparse` is `mountaincar_dqn_rnd` and `mountaincar_dqn_icm` without their",
            "reward models, for 100,000 env steps: DQN that is rewarded at the goal only.",
            "`pendulum_bc-mixed` imitates the steps of a learning SAC, from which `pendulum_td3bc`,",
            "`pendulum_iql`, `pendulum_awac` and `pendulum_cql` learn.",
        ),
        {
            "bitflip_dqn-plain": (
                "bitflip_dqn_her",
                {"buffer.transforms": [], "limits.steps": 100_000},
            ),
            "mountaincar_dqn-sparse": (
                "mountaincar_dqn",
                {
                    "env.wrappers": [{"type": "reward_goal", "reached": 100}],
                    "policy.lr": 0.0007,
                    "limits.steps": 100_000,
                },
            ),
            "pendulum_bc-mixed": (
                "pendulum_td3bc",
                {"policy": {"type": "bc", "model": {"type": "mlp", "hidden": [128, 128]}}},
            ),
        },
    ),
)
VARIANTS = {name: found for one in COMPARISONS for name, found in one.variants.items()}
LEVELS = " ▁▂▃▄▅▆▇█"
CURVE_POINTS = 24

METRICS = {"mean": "return_mean", "win_rate": "win_rate", "per_step": "return_per_step"}
KEPT = ("status", "env_steps", "train_iters", "eval_return", "best_return")  # of what a run prints

Run = dict[str, Any]


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Do the runs that are missing, and write the page."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument(
        "graphs", nargs="*", type=one_of([*bundled_graphs(), *VARIANTS]), metavar="GRAPH"
    )
    parser.add_argument("--seeds", type=seeds_of, default=range(SEEDS), help="5, or 5..9")
    parser.add_argument("--side", type=int, default=1, help="runs side by side")
    options = parser.parse_args(arguments)
    missing = list(missing_runs(options.graphs or runnable_graphs(), options.seeds))
    with ThreadPoolExecutor(options.side) as pool:
        for line in pool.map(lambda job: do_run(*job), missing):
            print(line, flush=True)
    results = stored_results()
    PAGE.write_text(page(results), encoding="utf-8")
    return {graph: summary(record) for graph, record in results.items()}


def seeds_of(text: str) -> range:
    """The seeds that the command line names: `5` are the first five, and `5..9` those from 5 to 9."""
    first, dots, last = text.rpartition("..")
    return range(int(first), int(last) + 1) if dots else range(int(last))


def runnable_graphs() -> list[str]:
    """The bundled graphs whose packages are installed, and the variants."""
    graphs = [g for g in bundled_graphs() if g not in NO_TASK and not load(g).check().problems]
    return [*graphs, *VARIANTS]


def settings_of(graph: str) -> tuple[str, Mapping[str, Any]]:
    """The bundled graph that a name stands for, and the settings that differ from it."""
    return VARIANTS.get(graph, (graph, {}))


def graph_hash(graph: str) -> str:
    """The identity of a graph: what its file says, and those that it extends, without comments and `about`."""
    if graph in VARIANTS:
        base, sets = VARIANTS[graph]
        return f"{graph_hash(base)}+{hashlib.sha256(json.dumps(sets).encode()).hexdigest()[:16]}"
    text = (graphs_folder() / f"{graph}.yaml").read_text(encoding="utf-8")
    kept = [line for line in text.splitlines() if not line.startswith(("#", "about:"))]
    found = hashlib.sha256("\n".join(kept).encode()).hexdigest()[:16]
    extended = re.search(r"^extends: (\w+)", text, re.M)
    return found if extended is None else f"{graph_hash(extended[1])}+{found}"


def missing_runs(graphs: Sequence[str], seeds: Iterable[int]) -> Iterator[tuple[str, str, int]]:
    """The graphs, their identities and seeds that have no stored run."""
    stored = stored_results()
    for seed in seeds:
        for graph in graphs:
            identity = graph_hash(graph)
            record = stored.get(graph, {})
            done = record.get("runs", {}) if record.get("graph") == identity else {}
            if str(seed) not in done:
                yield graph, identity, seed


def do_run(graph: str, identity: str, seed: int) -> str:
    """Do one run in a process of its own, and store it; return a line about it."""
    with tempfile.TemporaryDirectory() as folder:
        out, answer = Path(folder) / "run", Path(folder) / "answer"
        name, sets = settings_of(graph)
        words = [sys.executable, "-m", "flowrl", "run", name, "--seed", str(seed)]
        words += [word for k, v in sets.items() for word in ("--set", f"{k}={flow_text(v)}")]
        with answer.open("w") as stdout:
            process = subprocess.Popen(
                [*words, "--placement", "serial", "--json", "--quiet", "--out", str(out)],
                stdout=stdout,
                cwd=folder,
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1) or not answer.read_text().strip():
            raise RuntimeError(f"{graph}, seed {seed}: exit status {process.returncode}")
        found = json.loads(answer.read_text().strip().splitlines()[-1])
        curve = evaluations(out / "metrics.jsonl")
        won = evaluations(out / "metrics.jsonl", "win_rate")
    run = {key: found[key] for key in KEPT}
    if won:
        run["best_win_rate"] = max(share for _, share in won)
    run["cpu_s"] = round(usage.ru_utime + usage.ru_stime, 1)
    store(graph, identity, seed, {**run, "curve": curve})
    return f"{graph:24} seed {seed}  {run['status']:9} {run['env_steps']:>8} steps  {run['cpu_s']:6.1f} s"


def evaluations(metrics: Path, name: str = "return_mean") -> list[tuple[int, float]]:
    """The env steps and mean returns of the evaluations of a run, or another of their metrics."""
    found = []
    for line in metrics.read_text().splitlines() if metrics.exists() else ():
        record = json.loads(line)
        if name in record and record.get("node") == "evaluator":
            progress = record["env_steps"] or record["train_iters"]
            found.append((int(progress), round(float(record[name]), 2)))
    return found


def store(graph: str, identity: str, seed: int, run: Run) -> None:
    """Add a run to the file of its graph; runs of a graph that has changed since are dropped."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{graph}.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    if record.get("graph") != identity:
        record = {
            "graph": identity,
            "goal": goal_of(graph),
            "about": load(settings_of(graph)[0]).check().graph.about,
            "runs": {},
        }
    record["runs"][str(seed)] = run
    runs = ",\n".join(
        f'"{seed}": {json.dumps(run)}' for seed, run in sorted(record["runs"].items())
    )
    facts = json.dumps({name: value for name, value in record.items() if name != "runs"})
    path.write_text(f'{facts[:-1]}, "runs": {{\n{runs}\n}}}}\n', encoding="utf-8")


def goal_of(graph: str) -> float | None:
    return goal_and_metric(graph)[0]


def goal_and_metric(graph: str) -> tuple[float | None, str]:
    """The goal of a graph, if it has one, and the metric of its evaluations that the goal is about."""
    nodes = load(*settings_of(graph)).check().graph.nodes
    for spec in nodes.values():
        if spec.cls.role == "evaluator":
            return spec.config.stop_value, METRICS[spec.config.average]
    return None, METRICS["mean"]


def stored_results() -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers over the seeds of a graph; a run that did not reach its goal counts with the steps it took."""
    runs = list(record["runs"].values())
    won = [run["best_win_rate"] for run in runs if "best_win_rate" in run]
    steps = [run["env_steps"] or run["train_iters"] for run in runs]
    return {
        "goal": record["goal"],
        "solved": sum(run["status"] == "solved" for run in runs),
        "seeds": len(runs),
        "steps_median": statistics.median(steps),
        "steps_range": [min(steps), max(steps)],
        "steps_interval": list(bootstrap_interval(steps)),
        "best_median": round(statistics.median(run["best_return"] for run in runs), 1),
        "best_win_rates": [min(won), max(won)] if won else None,
        "cpu_s_median": round(statistics.median(run["cpu_s"] for run in runs), 1),
    }


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median."""
    rng = np.random.default_rng(0)
    draws = rng.choice(np.asarray(values, float), (2000, len(values)))
    low, high = np.quantile(np.median(draws, 1), [0.025, 0.975])
    return float(low), float(high)


def page(results: Mapping[str, Any]) -> str:
    """The page of all results."""
    lines = [
        "# The zoo: what the bundled graphs reach",
        "",
        "`make zoo` trains every bundled graph whose packages are installed, each with five seeds, and writes",
        "this page. The runs and their curves are stored in `bench/results/zoo/`. Env steps do not depend on the",
        "machine. Seconds are those of the processor, in one thread, with imports and evaluations.",
        "",
        "A run is solved when an evaluation reaches the goal and as many unseen episodes confirm it. *Env steps*:",
        "the median over the seeds, with its 95 % bootstrap interval; a run that did not reach its goal counts with",
        "all its steps, and one without envs with its train iterations. *Best return*: of an evaluation, the median;",
        "where the goal is a share of won episodes, also the best share of the worst and of the best seed.",
        "*Curve*: the mean return of the evaluations, as the median of the seeds, from the lowest to the highest. A",
        "row with fewer than five seeds, or a graph without a row, awaits its runs.",
        "",
        *table({graph: record for graph, record in results.items() if graph not in VARIANTS}),
    ]
    for comparison in COMPARISONS:
        rows = {graph: results[graph] for graph in comparison.variants if graph in results}
        lines += ["", f"## {comparison.title}", "", *comparison.text, "", *table(rows)]
    return "\n".join(lines) + "\n"


def table(results: Mapping[str, Any]) -> list[str]:
    """A row for each graph."""
    lines = [
        "| graph | goal | solved | env steps | best return | CPU s | curve |",
        "|---|---|---|---|---|---|---|",
    ]
    for graph, record in results.items():
        s = summary(record)
        low, high = s["steps_interval"]
        steps = f"{s['steps_median']:,.0f} [{low:,.0f}, {high:,.0f}]"
        curve = sparkline(record["runs"].values())
        goal = "" if s["goal"] is None else f"{s['goal']:g}"
        best = f"{s['best_median']:g}"
        if s["best_win_rates"] is not None:
            least, most = s["best_win_rates"]
            shares = f"{least:g}" if least == most else f"{least:g}–{most:g}"
            goal, best = f"{goal} won", f"{best}, {shares} won"
        lines.append(
            f"| `{graph}` | {goal} | {s['solved']}/{s['seeds']} | {steps} | {best} "
            f"| {s['cpu_s_median']:.0f} | {curve} |"
        )
    return lines


def sparkline(runs: Iterator[Run] | Any) -> str:
    """The median curve of runs as a line of blocks."""
    curves = [run["curve"] for run in runs if len(run["curve"]) > 1]
    if not curves:
        return ""
    last = max(curve[-1][0] for curve in curves)
    at = np.linspace(0, last, CURVE_POINTS + 1)[1:]
    values = np.median([np.interp(at, *zip(*curve, strict=True)) for curve in curves], axis=0)
    span = float(np.ptp(values)) or 1.0
    levels = 1 + np.round((values - values.min()) / span * (len(LEVELS) - 2)).astype(int)
    return "".join(LEVELS[level] for level in levels)


if __name__ == "__main__":
    main(sys.argv[1:])
