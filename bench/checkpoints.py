"""Makes the checkpoints that come with bundled graphs, so that `flowrl eval cartpole_ppo` plays at once.

    python -m bench checkpoints            those that are missing, or whose graph has changed
    python -m bench checkpoints GRAPH…     these graphs, again

Each graph is trained with one seed after another, until the best weights of a run reach the goal in 100 other episodes,
too. They are written to `graphs/checkpoints/GRAPH.safetensors`, without the state of the learner. Graphs whose weights
need more than 100 kB have no checkpoint.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench._arguments import benchmark_parser, one_of
from bench.zoo import goal_and_metric, graph_hash, runnable_graphs
from flowrl.api import load
from flowrl.core.checkpoint import checkpoint_bytes, read_acting
from flowrl.core.state import Clock, Count, State
from flowrl.graph.bundled import bundled_checkpoint, bundled_graphs, graphs_folder
from flowrl.runs.evaluation import evaluate_checkpoint

MAX_BYTES = 100_000
SEEDS, UNSEEN_EPISODES = 5, 100
# The weights of these are larger, or their goals take hours.
LARGE = ("bipedalwalker_tqc", "crazyclimber_ppo", "hopper_ppo", "hopper_sac", "walker2d_ppo")
IDENTITY = "graph"  # the entry of a checkpoint's info that says by which graph it was made


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Train the graphs, and write their checkpoints."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("graphs", nargs="*", type=one_of(bundled_graphs()), metavar="GRAPH")
    found = {}
    for graph in parser.parse_args(arguments).graphs or outdated_graphs():
        found[graph] = make_checkpoint(graph)
        print(f"{graph:24} {found[graph]}", file=sys.stderr, flush=True)
    return found


def outdated_graphs() -> Iterator[str]:
    """The graphs without a checkpoint of their present form."""
    for graph in runnable_graphs():
        path = bundled_checkpoint(graph)
        if graph not in LARGE and (path is None or made_by(path) != graph_hash(graph)):
            yield graph


def made_by(path: Path) -> str:
    _, info = read_acting(path)
    return str(info.get(IDENTITY, ""))


def make_checkpoint(graph: str) -> str:
    """Train a graph, and write its checkpoint; return a sentence about it."""
    for seed in range(SEEDS):
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            if load(graph).run(seed=seed, out=run, quiet=True).status != "solved":
                continue
            goal, metric = goal_and_metric(graph)
            reached = evaluate_checkpoint(run, UNSEEN_EPISODES, seed=1).metrics[metric]
            if reached < (reached if goal is None else goal):
                continue
            content = acting_part(run / "checkpoints" / "best.safetensors", graph)
        if len(content) > MAX_BYTES:
            return f"its weights need {len(content):,} bytes, so it has no checkpoint"
        path = graphs_folder() / "checkpoints" / f"{graph}.safetensors"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return f"seed {seed}, {metric} {reached:.2f}, {len(content):,} bytes"
    return f"none of {SEEDS} seeds reaches the goal in {UNSEEN_EPISODES} unseen episodes"


def acting_part(path: Path, graph: str) -> bytes:
    """The checkpoint without the state of its learner, and with the identity of its graph."""
    state, info = read_acting(path)
    counts = {name: info.pop(name) for name in ("env_steps", "train_iters")}
    clock = Clock({"run": Count(**counts)})
    acting = State(state.arrays, state.command, state.version, clock)
    return checkpoint_bytes({info.pop("node"): acting}, {**info, IDENTITY: graph_hash(graph)})
