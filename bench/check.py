"""The time to load and check a large graph: a thousand nodes, read from YAML, checked and resolved.

    python -m bench check [NODES]

The graph consists of groups: each has a collector with its own envs, a row of pipes, a buffer, a learner
and an evaluator.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench._arguments import benchmark_parser
from flowrl.checks.check import check
from flowrl.graph.loading import load_graph

REPEATS = 5
GROUP_NODES = 10
GROUP_PIPES = 5  # pipes among the nodes of a group
TARGET_S = 2.0


def large_graph(nodes: int = 1000) -> str:
    """A graph with this number of nodes as YAML; the types are those of the tests."""
    groups = range(nodes // GROUP_NODES)
    return "\n".join(
        [
            "policy: {type: 'tests.toys.toys:Greedy', gives: [logp]}",
            "nodes:",
            *(line for i in groups for line in _node_lines(i)),
            "edges:",
            *(line for i in groups for line in _edge_lines(i)),
            "warmup:",
            f"  - {{edges: ['{_all('collector', groups)} -> {_all('buffer', groups)}'], steps: 8000}}",
            "",
        ]
    )


def _all(kind: str, groups: range) -> str:
    return ", ".join(f"{kind}{i}" for i in groups)


def _node_lines(group: int) -> Iterator[str]:
    yield f"  envs{group}: {{type: 'tests.toys.toys:Envs', count: 2}}"
    yield f"  collector{group}: {{type: 'tests.toys.toys:Collector', n_sample: 8, replicas: 2}}"
    for pipe in range(GROUP_PIPES):
        yield f"  pipe{group}-{pipe}: {{type: 'tests.toys.toys:Pipe', takes: 2, gives: 2}}"
    yield f"  buffer{group}: {{type: 'tests.toys.toys:Buffer', size: 1000, updates: 3}}"
    yield f"  learner{group}: {{type: 'tests.toys.toys:Learner', policy: {{lr: 0.{group + 1}}}}}"
    yield f"  evaluator{group}: 'tests.toys.toys:Evaluator'"


def _edge_lines(group: int) -> Iterator[str]:
    pipes = " -> ".join(f"pipe{group}-{pipe}" for pipe in range(GROUP_PIPES))
    yield f"  - collector{group} <-> envs{group}"
    yield f"  - collector{group} -> {pipes} -> buffer{group} -> learner{group}"
    yield f"  - learner{group}.priorities -> buffer{group}.priorities"
    yield f"  - learner{group} -> collector{group}: {{lag: 1}}"
    yield f"  - learner{group} -> evaluator{group}: {{every: {group + 1}}}"


def measure(nodes: int) -> tuple[float, float]:
    """The median seconds to load and to check."""
    load_times_s, check_times_s = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.yaml"
        path.write_text(large_graph(nodes))
        for _ in range(REPEATS):
            start_s = time.perf_counter()
            loaded = load_graph(path)
            loaded_s = time.perf_counter()
            problems = check(loaded).problems
            assert problems == [], problems[0]
            load_times_s.append(loaded_s - start_s)
            check_times_s.append(time.perf_counter() - loaded_s)
    return statistics.median(load_times_s), statistics.median(check_times_s)


def main(arguments: Sequence[str]) -> dict[str, float]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("nodes", nargs="?", type=int, default=1000)
    nodes = parser.parse_args(arguments).nodes
    load_s, check_s = measure(nodes)
    print(
        f"{nodes} nodes: loaded in {load_s:.2f} s, checked in {check_s:.2f} s "
        f"(target: {TARGET_S:g} s for both)"
    )
    return {"nodes": nodes, "load_s": load_s, "check_s": check_s, "target_s": TARGET_S}
