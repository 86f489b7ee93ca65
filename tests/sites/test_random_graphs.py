"""Random graphs: the same bits, files and counts in every placement."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from flowrl.checks.check import check
from flowrl.graph.loading import load_data
from tests.sites.comparing import ran, same_everywhere
from tests.sites.random_graphs import (
    MOST_FIRINGS,
    all_places,
    limits,
    loosened,
    placements,
    random_graphs,
    thread_places,
)

checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


pytestmark = pytest.mark.usefixtures("forked_processes")


def some(examples: int) -> settings:
    """So many examples, however long they take."""
    return settings(max_examples=examples, deadline=None, suppress_health_check=checks)


def compare(data: st.DataObject, places: st.SearchStrategy[str]) -> None:
    """One random graph, serially and on several sites."""
    graph = data.draw(random_graphs())
    found = check(load_data(graph))
    assume(found.ok)
    parts = [found.program.round, *(w.schedule for w in found.program.warmup)]
    assume(all(sum(part.firings.values()) <= MOST_FIRINGS for part in parts))
    limit, placement = data.draw(limits), data.draw(placements(graph, places))
    with tempfile.TemporaryDirectory() as folder:
        facts = same_everywhere(graph, Path(folder), placement, **limit)
    event(f"status {facts['status']}")


@some(30)
@given(st.data())
def test_a_random_graph_does_the_same_in_threads(data: st.DataObject) -> None:
    compare(data, thread_places)


@some(15)
@given(st.data())
def test_a_random_graph_does_the_same_in_threads_and_processes(data: st.DataObject) -> None:
    compare(data, all_places)


def free_running(data: st.DataObject) -> None:
    """A random graph that drops and overtakes ends, wherever it runs."""
    graph = loosened(data.draw, data.draw(random_graphs()))
    found = check(load_data(graph))
    assume(found.ok and not found.deterministic)
    parts = [found.program.round, *(w.schedule for w in found.program.warmup)]
    assume(all(sum(part.firings.values()) <= MOST_FIRINGS for part in parts))
    limit, placement = data.draw(limits), data.draw(placements(graph, all_places))
    with tempfile.TemporaryDirectory() as folder:
        facts = ran(graph, placement, Path(folder) / "r", **{**limit, "time_s": 5.0})
    event(facts["why"])
    assert facts["status"] in ("finished", "solved")


@some(8)
@given(st.data())
def test_a_random_free_running_graph_ends(data: st.DataObject) -> None:
    free_running(data)


@pytest.mark.slow
@some(60)
@given(st.data())
def test_many_random_free_running_graphs_end(data: st.DataObject) -> None:
    free_running(data)


@pytest.mark.slow
@some(50)
@given(st.data())
def test_many_random_graphs_do_the_same_in_threads(data: st.DataObject) -> None:
    compare(data, thread_places)


@pytest.mark.slow
@some(200)
@given(st.data())
def test_two_hundred_random_graphs_do_the_same_in_threads_and_processes(
    data: st.DataObject,
) -> None:
    compare(data, all_places)
