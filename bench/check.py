"""What it costs to check a large graph: a thousand nodes, read from YAML, checked and resolved.

    python -m bench check [NODES]

Lanes of collectors with envs of their own, pipes in a row, buffers and learners; evaluators paced by each.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from flowrl.checks.check import check
from flowrl.graph.loading import load_graph

REPEATS = 5
LANE = 10  # nodes in a lane
PIPES = 5  # of them


def large_graph(nodes: int = 1000) -> str:
    """A graph of so many nodes as YAML; its types are the small ones of the tests."""
    lanes = range(nodes // LANE)
    return "\n".join(
        [
            "policy: {type: 'tests.toys.toys:Greedy', gives: [logp]}",
            "nodes:",
            *(line for i in lanes for line in _nodes(i)),
            "edges:",
            *(line for i in lanes for line in _edges(i)),
            "warmup:",
            f"  - {{edges: ['{_all('collector', lanes)} -> {_all('buffer', lanes)}'], steps: 8000}}",
            "",
        ]
    )


def _all(kind: str, lanes: range) -> str:
    return ", ".join(f"{kind}{i}" for i in lanes)


def _nodes(lane: int) -> Iterator[str]:
    yield f"  envs{lane}: {{type: 'tests.toys.toys:Envs', count: 2}}"
    yield f"  collector{lane}: {{type: 'tests.toys.toys:Collector', n_sample: 8, replicas: 2}}"
    for pipe in range(PIPES):
        yield f"  pipe{lane}-{pipe}: {{type: 'tests.toys.toys:Pipe', takes: 2, gives: 2}}"
    yield f"  buffer{lane}: {{type: 'tests.toys.toys:Buffer', size: 1000, updates: 3}}"
    yield f"  learner{lane}: {{type: 'tests.toys.toys:Learner', policy: {{lr: 0.{lane + 1}}}}}"
    yield f"  evaluator{lane}: 'tests.toys.toys:Evaluator'"


def _edges(lane: int) -> Iterator[str]:
    pipes = " -> ".join(f"pipe{lane}-{pipe}" for pipe in range(PIPES))
    yield f"  - collector{lane} <-> envs{lane}"
    yield f"  - collector{lane} -> {pipes} -> buffer{lane} -> learner{lane}"
    yield f"  - learner{lane}.priorities -> buffer{lane}.priorities"
    yield f"  - learner{lane} -> collector{lane}: {{lag: 1}}"
    yield f"  - learner{lane} -> evaluator{lane}: {{every: {lane + 1}}}"


def measure(nodes: int) -> tuple[float, float]:
    """Median seconds to load and to check."""
    loads, checks = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.yaml"
        path.write_text(large_graph(nodes))
        for _ in range(REPEATS):
            begin = time.perf_counter()
            loaded = load_graph(path)
            middle = time.perf_counter()
            problems = check(loaded).problems
            assert problems == [], problems[0]
            loads.append(middle - begin)
            checks.append(time.perf_counter() - middle)
    return statistics.median(loads), statistics.median(checks)


def main(arguments: Sequence[str]) -> dict[str, float]:
    """Print and give the numbers."""
    nodes = int(arguments[0]) if arguments else 1000
    load_s, check_s = measure(nodes)
    print(f"{nodes} nodes: read in {load_s:.2f} s, checked in {check_s:.2f} s; 2 s in all wanted")
    return {"nodes": nodes, "read_s": load_s, "check_s": check_s, "wanted_s": 2.0}
