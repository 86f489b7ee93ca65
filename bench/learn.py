"""Wall time and env steps until an env is solved: flowrl beside other libraries, on four envs.

    python -m bench learn                                        all rows, three seeds each (hours)
    python -m bench learn [ROW…] [--seeds 3] [--only LIBRARY…]   some rows, some libraries

A row is one algorithm on one env. Its contenders take turns: each library runs with a seed before any runs with the
next one. Each run is a process of its own with one thread, and is stored in `bench/results/learn/ROW.json` as soon as
it ends. It is not repeated, so the command can be stopped and started again. The stored runs of a library are dropped
when its program, its settings or its version have changed; after a change of an algorithm of flowrl, delete them by
hand. A run that failed is tried again by `--retry`.

`bench/peers/solve_protocol.py` says what the clock counts, and what solved means. The settings of other libraries are
those that they recommend (`bench/peers/*_solve.py`), and those of flowrl are its bundled graphs. At the end
`bench/results/learn.md` is written from all results.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench._arguments import benchmark_parser, one_of
from bench.peers import DING, SB3, SBX, TIANSHOU, Contender, Peer, Row
from bench.peers.solve_protocol import task_of
from bench.solve import GRACE_S, outcome, summary
from bench.zoo import graph_hash

FOLDER = Path(__file__).parent
RESULTS, PAGE = FOLDER / "results" / "learn", FOLDER / "results" / "learn.md"
SEEDS = 3
LIBRARIES: Mapping[str, Peer | None] = {
    "flowrl": None,
    "sb3": SB3,
    "sbx": SBX,
    "tianshou": TIANSHOU,
    "ding": DING,
}
ROWS: Mapping[str, tuple[str, ...]] = {
    "cartpole_dqn": ("flowrl", "sb3", "sbx", "tianshou", "ding"),
    "cartpole_ppo": ("flowrl", "sb3", "sbx", "tianshou", "ding"),
    "cartpole_c51": ("flowrl", "tianshou", "ding"),
    "cartpole_a2c": ("flowrl", "sb3", "tianshou", "ding"),
    "pendulum_sac": ("flowrl", "sb3", "sbx", "tianshou", "ding"),
    "pendulum_td3": ("flowrl", "sb3", "sbx", "tianshou", "ding"),
    "lunarlander_dqn": ("flowrl", "sb3", "sbx", "tianshou", "ding"),
    "lunarlander_ppo": ("flowrl", "sb3", "sbx", "ding"),
    "hopper_sac": ("flowrl", "sb3", "sbx", "tianshou"),
}


@dataclass(frozen=True, slots=True)
class Job:
    """A run to be done."""

    row: str
    contender: Contender
    seed: int


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Do the runs that are missing, and write the page."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument(
        "rows", nargs="*", type=one_of(ROWS), default=ROWS, metavar="ROW", help=", ".join(ROWS)
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--retry", action="store_true", help="repeat runs that failed")
    options = parser.parse_args(arguments)
    for job in missing_jobs(options.rows, options.seeds, options.only, options.retry):
        row = run_once(job)
        store(job, row)
        line = f"{job.row:16} {job.contender.library:9} seed {job.seed}  {outcome(row)}"
        print(line, file=sys.stderr, flush=True)
    results = stored_results()
    PAGE.write_text(page(results), encoding="utf-8")
    print(page(results))
    return {row: summaries(record) for row, record in results.items()}


def missing_jobs(
    rows: Sequence[str] | Mapping[str, Any], seeds: int, libraries: Sequence[str], retry: bool
) -> Iterator[Job]:
    """The runs that are not stored, row by row, the contenders of a row in turn."""
    for row in rows:
        for seed in range(seeds):
            for library in (name for name in ROWS[row] if name in libraries):
                contender = Contender(library, row, LIBRARIES[library])
                done = stored_runs(stored_results().get(row, {}), contender).get(str(seed))
                if done is None or (retry and "failed" in done):
                    yield Job(row, contender, seed)


def run_once(job: Job) -> Row:
    """Do one run."""
    time_limit_s = task_of(job.row).time_limit_s
    words = [str(job.seed), str(time_limit_s)]
    return job.contender.run("solve", words, time_limit_s + GRACE_S)


def identity(contender: Contender) -> str:
    """What a library's runs depend on: its program and settings, its version, and the protocol."""
    parts = [
        (FOLDER / "peers" / f"{name}_solve.py").read_text() for name in programs(contender.library)
    ]
    if contender.peer is None:
        parts.append(graph_hash(contender.kind))
    else:
        parts += [*contender.peer.requirements, *contender.peer.without_dependencies]
    parts += [contender.kind, json.dumps(asdict(task_of(contender.kind)))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def programs(library: str) -> tuple[str, ...]:
    return ("sbx", "sb3") if library == "sbx" else (library,)


def stored_runs(record: Mapping[str, Any], contender: Contender) -> dict[str, Row]:
    """The stored runs of a library in a row, by seed; none if what they depend on has changed since."""
    found = record.get(contender.library, {})
    runs: dict[str, Row] = found.get("runs", {}) if found.get("of") == identity(contender) else {}
    return runs


def store(job: Job, row: Row) -> None:
    """Add a run to the file of its row."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{job.row}.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    runs = {**stored_runs(record, job.contender), str(job.seed): row}
    record[job.contender.library] = {"of": identity(job.contender), "runs": runs}
    path.write_text(json_lines(record), encoding="utf-8")


def json_lines(record: Mapping[str, Any]) -> str:
    """JSON with one line for each run."""
    libraries = []
    for library, found in record.items():
        runs = ",\n".join(f'"{seed}": {json.dumps(run)}' for seed, run in found["runs"].items())
        libraries.append(f'"{library}": {{"of": "{found["of"]}", "runs": {{\n{runs}\n}}}}')
    return "{" + ",\n".join(libraries) + "}\n"


def stored_results() -> dict[str, Any]:
    """The records of all rows, in the order of `ROWS`."""
    paths = {row: RESULTS / f"{row}.json" for row in ROWS}
    return {row: json.loads(path.read_text()) for row, path in paths.items() if path.exists()}


def summaries(record: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of each library in a row, with the median of the runs' last evaluations."""
    return {library: summary(list(found["runs"].values())) for library, found in record.items()}


def page(results: Mapping[str, Any]) -> str:
    """The page of all results."""
    lines = [
        "# Learning beside other libraries",
        "",
        "`python -m bench learn` measures this, and writes this page. A run is solved when 20 greedy episodes reach",
        "the goal and 20 others confirm it. Times are wall times in one thread, medians of the runs, without imports",
        "and compilation; *with evaluations* includes those that decide whether a run is solved. `≥` marks numbers",
        "that include an unsolved run, which counts with all that it took. Hopper has no goal: its runs end after",
        "100,000 env steps. The runs, with the versions of all packages, are stored in `bench/results/learn/`.",
        "",
        "| row | library | solved | wall time, s | with evaluations, s | env steps | last evaluation |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, record in results.items():
        has_goal = task_of(row).goal is not None
        for library, found in summaries(record).items():
            lines.append(f"| {' | '.join(cells(row, library, found, has_goal))} |")
    return "\n".join(lines) + "\n"


def cells(row: str, library: str, found: Row, has_goal: bool) -> list[str]:
    if "failed" in found:
        return [f"`{row}`", library, f"failed: {found['failed']}", "", "", "", ""]
    bound = "≥ " if has_goal and found["solved"] < found["runs"] else ""
    return [
        f"`{row}`",
        f"{library} {library_version(library, found['versions'])}".strip(),
        f"{found['solved']}/{found['runs']}" if has_goal else "",
        f"{bound}{found['without_eval_median_s']:.1f}",
        f"{bound}{found['median_s']:.1f}",
        f"{bound}{found['env_steps_median']:,.0f}",
        f"{found['eval_return_median']:,.0f}" if found["eval_return_median"] is not None else "",
    ]


def library_version(library: str, versions: Mapping[str, str]) -> str:
    packages = {"sb3": "stable-baselines3", "sbx": "sbx-rl", "ding": "DI-engine"}
    return versions.get(packages.get(library, library), "")
