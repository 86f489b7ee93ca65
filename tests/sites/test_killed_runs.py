"""One of the killed runs of `python -m tests.sites.killed_runs`, which kills all bundled graphs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from flowrl.graph.bundled import bundled_graphs
from tests.sites.killed_runs import KilledCase, compare_killed

pytestmark = pytest.mark.slow


def test_a_killed_run_ends_elsewhere_as_one_without_a_stop(tmp_path: Path) -> None:
    where, difference = compare_killed(KilledCase("cartpole_bc"), tmp_path, random.Random(3))
    assert not difference, where


def test_every_bundled_graph_can_be_killed() -> None:
    for name in bundled_graphs():
        case = KilledCase(name)
        assert case.flow.check(envs="skip").ok, name
        assert case.sets["snapshots.every_rounds"] == 1
