"""The replicas of a group fire together: their data, their sums, and their failures."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.core.batch import Batch
from flowrl.core.errors import FlowError, NodeError
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.graph.placement import resolve_placement
from flowrl.graph.site_layout import SiteLayout, make_layout
from flowrl.runtime.group_exchange import added_in_order
from flowrl.runtime.replica_thread import ReplicaThread
from flowrl.runtime.serial_executor import SerialExecutor
from flowrl.runtime.sites.coordinator import Coordinator
from tests.toys.toy_nodes import GroupLearner
from tests.toys.toy_runs import Trace, run, toy_graph


def group_graph(**learner: Any) -> dict[str, Any]:
    group = {"type": "GroupLearner", "replicas": 3, **learner}
    nodes = {"s": {"type": "Source", "give": 2}, "w": "Widener", "l": group}
    return toy_graph(nodes, ["s -> w -> l", "l.weights -> s.weights"])


def run_in_threads(graph: Mapping[str, Any], *sites: str, **limits: Any) -> tuple[str, Trace]:
    """Run a graph with the replicas of `l` on these sites; return the digest and the trace."""
    checked, trace = check(load_data(graph)).require_sound(), Trace()
    placed = make_layout(checked.graph, resolve_placement(checked.graph, "threads"))
    site_of = {**placed.site_of, **{("l", k): site for k, site in enumerate(sites)}}
    layout = SiteLayout(dict.fromkeys(site_of.values(), "thread"), site_of)
    executor = Coordinator(checked, trace, layout, 0, Limits(**limits))
    try:
        executor.run()
        return executor.digest(), trace
    finally:
        executor.close()


def test_each_replica_gets_its_rows_and_all_get_the_sum() -> None:
    executor, trace, cut = run(group_graph(), rounds=1)
    assert trace.lines_of("l") == ["0,1 + 2,3 + 4,5,6", "1,2 + 3,4 + 5,6,7"]
    assert cut.counts.train_iters == 2
    assert {key for key, _ in trace.other_records} == {"l"}
    states = [instance.node.sum.tobytes() for instance in executor.instances.by_node["l"]]
    assert len(states) == 3
    assert len(set(states)) == 1


@pytest.mark.parametrize(
    "sites", [("a", "b", "a"), ("a", "b", "b"), ("a", "b", "c"), ("b", "a", "a")]
)
def test_a_group_has_the_same_bits_wherever_its_replicas_live(sites: tuple[str, ...]) -> None:
    executor, trace, _ = run(group_graph(), rounds=3)
    digest, placed = run_in_threads(group_graph(), *sites, rounds=3)
    assert (digest, placed.lines) == (executor.digest(), trace.lines)


@pytest.mark.parametrize("sites", [(), ("a", "b", "a"), ("a", "b", "c")])
def test_the_failure_of_one_replica_ends_the_run_with_its_cause(sites: tuple[str, ...]) -> None:
    graph = group_graph(fails_at=3)
    before = threading.active_count()
    with pytest.raises(FlowError) as raised:
        run_in_threads(graph, *sites, rounds=9) if sites else run(graph, rounds=9)
    assert "'l#1', firing 3 (round 1): ValueError: replica 1 has had enough" in str(raised.value)
    assert threading.active_count() == before


class Different(GroupLearner):
    """A learner whose replica 1 exchanges something else."""

    def fire(self, data: Batch) -> Batch:
        assert self.ctx.group is not None
        if self.ctx.group.replica == 1:
            self.ctx.group.gather("a text")
        return super().fire(data)


class Silent(GroupLearner):
    """A learner whose replica 0 exchanges nothing."""

    def fire(self, data: Batch) -> Batch:
        assert self.ctx.group is not None
        return data if self.ctx.group.replica == 0 else super().fire(data)


@pytest.mark.parametrize(
    ("kind", "sites", "text"),
    [
        ("Different", (), "l a sum, and l#1 a gather"),
        ("Different", ("a", "b", "a"), "a sum of float64"),
        ("Silent", (), "l no further value, and l#1 a gather"),
    ],
)
def test_replicas_that_exchange_different_values_fail(
    kind: str, sites: tuple[str, ...], text: str
) -> None:
    graph = group_graph(type=f"{__name__}:{kind}")
    with pytest.raises(FlowError, match="exchange different values") as raised:
        run_in_threads(graph, *sites, rounds=2) if sites else run(graph, rounds=2)
    assert text in str(raised.value)


def test_values_are_exchanged_in_firings_only() -> None:
    checked = check(load_data(group_graph())).require_sound()
    executor = SerialExecutor(checked, Trace(), 0, Limits(rounds=1))
    group = executor.instances.by_node["l"][0].ctx.group
    executor.close()
    assert group is not None
    with pytest.raises(RuntimeError, match="only while it fires"):
        group.gather("too early")


def test_a_token_with_too_few_rows_fails_with_the_name_of_the_group() -> None:
    """How many rows a token has is not always known before the run."""
    graph = toy_graph({"s": "Source", "l": {"type": "GroupLearner", "replicas": 3}}, ["s -> l"])
    with pytest.raises(
        NodeError,
        match="node 'l', splitting a token among its replicas: ValueError: a batch of 1 row",
    ):
        run(graph, rounds=1)


def test_arrays_of_different_shapes_are_not_added() -> None:
    import numpy as np

    with pytest.raises(ValueError, match=r"different arrays to a sum: float64\[2\], float32\[2\]"):
        added_in_order([np.zeros(2), np.zeros(2, np.float32)])


def test_a_thread_that_is_left_in_the_middle_of_a_call_ends() -> None:
    thread = ReplicaThread("l#1", lambda: None)
    reached: list[str] = []

    def call() -> None:
        thread.request("one")
        reached.append("the end")

    thread.begin(call)
    assert thread.resume() == "one"
    thread.leave()
    assert (reached, thread._thread.is_alive()) == ([], False)
