"""Which hosts may join a run."""

from __future__ import annotations

import pytest

from flowrl.cluster.host_admission import NAME_TAKEN, HostAdmission
from flowrl.cluster.join_file import RunIdentity
from flowrl.cluster.messages import PROTOCOL
from tests.cluster.stub_hosts import FACTS, stub_host


@pytest.mark.parametrize(
    ("run", "epoch", "why"),
    [
        ("cartpole-2", 3, "it was started for another run (cartpole-2; this is cartpole-1)"),
        (
            "cartpole-1",
            2,
            "it was started for epoch 2 of this run, which is in epoch 3 since it was resumed",
        ),
        ("cartpole-1", 3, ""),
        ("", -1, ""),  # by an address that a person has typed
    ],
)
def test_hosts_of_other_runs_and_epochs_are_refused(run: str, epoch: int, why: str) -> None:
    admission = HostAdmission(FACTS, RunIdentity("cartpole-1", 3))
    assert admission.admit(stub_host("late", run=run, epoch=epoch), []) == why
    assert [(offer.name, reason) for offer, reason in admission.unfit] == (
        [("late", why)] if why else []
    )


def test_a_run_without_an_identity_admits_hosts_that_were_started_for_any() -> None:
    assert HostAdmission(FACTS).admit(stub_host("a", run="cartpole-1", epoch=2), []) == ""


def test_another_protocol_is_refused_with_the_reason() -> None:
    why = HostAdmission(FACTS).admit(stub_host("a", protocol=99), [])
    assert why == f"it speaks version 99 of the protocol, and the run {PROTOCOL}"


def test_another_version_is_refused_with_a_remedy() -> None:
    host = stub_host("a", machine={**FACTS, "numpy": "0.1"})
    why = HostAdmission(FACTS).admit(host, [])
    assert why == f"it has numpy 0.1, and the run has {FACTS['numpy']}; install the same versions"


def test_a_name_that_is_taken_is_refused_and_does_not_make_the_host_unfit() -> None:
    admission = HostAdmission(FACTS)
    assert admission.admit(stub_host("a"), ["a"]) == NAME_TAKEN
    assert admission.unfit == []


def test_a_star_becomes_the_smallest_free_number() -> None:
    host = stub_host("cpu-*")
    assert HostAdmission(FACTS).admit(host, ["cpu-0", "cpu-2", "gpu-1"]) == ""
    assert host.name == "cpu-1"
