"""Leases: how far sites may go, and who is waited for."""

from __future__ import annotations

from flowrl.sites.leases import LEAST_LEASE, Leases


def all_told(leases: Leases, **rounds: int) -> None:
    for name, number in rounds.items():
        leases.told(name, number)


def test_the_first_lease_is_granted_at_once_and_no_news_is_not_told() -> None:
    leases = Leases("ab")
    assert leases.grant(0.0) == LEAST_LEASE
    assert leases.grant(0.0) is None


def test_a_lease_is_renewed_when_the_slowest_has_used_half_of_it() -> None:
    leases = Leases("ab")
    leases.grant(0.0)
    all_told(leases, a=8, b=3)
    assert leases.grant(100.0) is None
    all_told(leases, b=4)
    assert leases.grant(100.0) == 4 + LEAST_LEASE


def test_whoever_has_used_up_a_lease_is_granted_more() -> None:
    leases = Leases("ab")
    for _ in range(20):
        granted = leases.grant(1e-3)
        assert granted is not None
        all_told(leases, a=granted, b=granted)


def test_a_lease_is_half_a_second_of_work() -> None:
    leases = Leases("ab")
    all_told(leases, a=1200, b=1000)
    assert leases.grant(2.0) == 1000 + 250


def test_sites_that_are_paced_may_be_behind() -> None:
    leases = Leases("ab", paced="b", behind=20)
    all_told(leases, a=15, b=2)
    assert (leases.final, leases.fired) == (2, 15)
    assert leases.grant(100.0) == 2 + 20


def test_sites_that_fire_when_they_can_are_waited_for_in_the_warm_up_only() -> None:
    leases = Leases("ab", free="b", warm_rounds=3)
    all_told(leases, a=9, b=2)
    assert leases.final == 2
    all_told(leases, b=3)
    assert leases.final == 9
