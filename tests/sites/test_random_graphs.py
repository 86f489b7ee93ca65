"""Random graphs have equal results in every placement."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from flowrl.checks.check import check
from flowrl.graph.loading import load_data
from tests.sites.random_graphs import (
    MOST_FIRINGS,
    add_nondeterminism,
    all_places,
    limits,
    placements,
    random_graphs,
    thread_places,
)
from tests.sites.run_comparison import compare_placements, run_graph

checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


pytestmark = pytest.mark.usefixtures("forked_processes")


def example_count(number: int) -> settings:
    """Return settings for this number of examples, without a deadline."""
    return settings(max_examples=number, deadline=None, suppress_health_check=checks)


def compare(data: st.DataObject, places: st.SearchStrategy[str]) -> None:
    """Compare a random graph on one site and on several."""
    graph = data.draw(random_graphs())
    found = check(load_data(graph))
    assume(found.ok)
    schedules = found.program.round_schedules
    assume(all(sum(schedule.firings.values()) <= MOST_FIRINGS for schedule in schedules))
    limit, placement = data.draw(limits), data.draw(placements(graph, places))
    with tempfile.TemporaryDirectory() as folder:
        facts = compare_placements(graph, Path(folder), placement, **limit)
    event(f"status {facts['status']}")


@pytest.mark.slow
@example_count(12)
@given(st.data())
def test_a_random_graph_has_equal_results_in_threads(data: st.DataObject) -> None:
    compare(data, thread_places)


@pytest.mark.slow
@example_count(6)
@given(st.data())
def test_a_random_graph_has_equal_results_in_threads_and_processes(data: st.DataObject) -> None:
    compare(data, all_places)


def run_nondeterministic_graph(data: st.DataObject) -> None:
    """Check that a random nondeterministic graph ends in a random placement."""
    graph = add_nondeterminism(data.draw, data.draw(random_graphs()))
    found = check(load_data(graph))
    assume(found.ok and not found.deterministic)
    schedules = found.program.round_schedules
    assume(all(sum(schedule.firings.values()) <= MOST_FIRINGS for schedule in schedules))
    limit, placement = data.draw(limits), data.draw(placements(graph, all_places))
    with tempfile.TemporaryDirectory() as folder:
        facts = run_graph(graph, placement, Path(folder) / "r", **{**limit, "time_s": 5.0})
    event(facts["why"])
    assert facts["status"] in ("finished", "solved")


@pytest.mark.slow
@example_count(4)
@given(st.data())
def test_a_random_nondeterministic_graph_ends(data: st.DataObject) -> None:
    run_nondeterministic_graph(data)


@pytest.mark.exhaustive
@example_count(60)
@given(st.data())
def test_many_random_nondeterministic_graphs_end(data: st.DataObject) -> None:
    run_nondeterministic_graph(data)


@pytest.mark.exhaustive
@example_count(50)
@given(st.data())
def test_many_random_graphs_have_equal_results_in_threads(data: st.DataObject) -> None:
    compare(data, thread_places)


@pytest.mark.exhaustive
@example_count(200)
@given(st.data())
def test_two_hundred_random_graphs_have_equal_results_in_threads_and_processes(
    data: st.DataObject,
) -> None:
    compare(data, all_places)
