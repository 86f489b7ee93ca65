"""Leases: how many rounds are granted, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.runtime.control import leases as module
from flowrl.runtime.control.leases import KEPT_BYTES, MIN_KEPT_ROUNDS, MIN_LEASE_ROUNDS, Leases
from tests.sites.run_comparison import compare_placements
from tests.toys.toy_runs import toy_graph


def set_rounds(leases: Leases, **rounds: int) -> None:
    for name, number in rounds.items():
        leases.set_rounds(name, number)


def test_the_first_lease_is_granted_immediately_and_only_once() -> None:
    leases = Leases("ab")
    assert leases.grant(0.0) == MIN_LEASE_ROUNDS
    assert leases.grant(0.0) is None


def test_a_lease_is_renewed_when_the_slowest_has_used_half_of_it() -> None:
    leases = Leases("ab")
    leases.grant(0.0)
    set_rounds(leases, a=8, b=3)
    assert leases.grant(100.0) is None
    set_rounds(leases, b=4)
    assert leases.grant(100.0) == 4 + MIN_LEASE_ROUNDS


def test_sites_at_the_end_of_a_lease_are_granted_more() -> None:
    leases = Leases("ab")
    for _ in range(20):
        granted = leases.grant(1e-3)
        assert granted is not None
        set_rounds(leases, a=granted, b=granted)


def test_a_lease_is_three_periods_of_reports_where_sites_report_seldom() -> None:
    leases = Leases("ab", report_period_s=1.0)
    set_rounds(leases, a=1200, b=1000)
    assert leases.grant(10.0) == 1000 + 3 * 100  # 100 rounds in a second


def test_a_lease_is_half_a_second_of_work() -> None:
    leases = Leases("ab")
    set_rounds(leases, a=1200, b=1000)
    assert leases.grant(2.0) == 1000 + 250


def test_paced_sites_may_be_behind() -> None:
    leases = Leases("ab", paced="b", rounds_behind=20)
    set_rounds(leases, a=15, b=2)
    assert (leases.completed_rounds, leases.fired_rounds) == (2, 15)
    assert leases.grant(100.0) == 2 + 20


def test_free_sites_count_in_the_warm_up_only() -> None:
    leases = Leases("ab", free="b", warm_up_rounds=3)
    set_rounds(leases, a=9, b=2)
    assert leases.completed_rounds == 2
    set_rounds(leases, b=3)
    assert leases.completed_rounds == 9


def test_a_lost_site_holds_nobody_up_and_comes_back_where_the_others_are() -> None:
    leases = Leases("abc")
    set_rounds(leases, a=9, b=4, c=7)
    assert leases.remove("b") == 7
    set_rounds(leases, b=5)  # a late report
    assert (leases.completed_rounds, leases.fired_rounds) == (7, 7)
    assert leases.add("b", 4) == 7
    set_rounds(leases, a=12, c=12)
    assert leases.completed_rounds == 7


def test_a_lost_site_that_was_ahead_does_not_repeat_its_rounds() -> None:
    leases = Leases("ab")
    set_rounds(leases, a=5, b=8)
    assert leases.add("b", leases.remove("b")) == 8
    assert leases.completed_rounds == 5


def test_completed_rounds_stay_while_all_sites_are_lost() -> None:
    leases = Leases("ab")
    set_rounds(leases, a=9, b=4)
    leases.remove("a")
    leases.remove("b")
    assert (leases.completed_rounds, leases.fired_rounds) == (4, 4)
    assert leases.add("a", 9) == 9


def test_no_lease_goes_beyond_the_last_round() -> None:
    leases = Leases("ab")
    leases.last_round = 9
    assert leases.grant(100.0) == 8
    set_rounds(leases, a=4, b=4)
    assert leases.grant(100.0) == 10  # although it is less than half of a lease
    assert leases.grant(100.0) is None
    leases.last_round = 10
    assert leases.grant(100.0) == 11


def test_large_states_shorten_leases() -> None:
    leases = Leases("ab")
    leases.limit_by_memory(KEPT_BYTES // 5)
    assert leases.grant(0.0) == 5
    leases.limit_by_memory(KEPT_BYTES * 3)
    set_rounds(leases, a=5, b=5)
    assert leases.grant(1e-3) == 5 + MIN_KEPT_ROUNDS
    assert leases.grant(1e-3) is None


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_the_shortest_lease_changes_nothing(
    lag: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 1)
    nodes = {"c": "Source", "l": "Learner", "e": {"type": "Evaluator", "goal": 12}}
    edges = ["c -> l", {"l.weights -> c.weights": {"lag": lag}}, {"l.weights -> e": {"every": 4}}]
    facts = compare_placements(toy_graph(nodes, edges), tmp_path, "threads", rounds=30)
    assert facts["train_iters"] == 12
