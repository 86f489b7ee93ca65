"""Some of the disturbed runs of `python -m tests.sites.chaos` (`make chaos` has 200)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.network import network, why_not
from tests.quick_selection import exhaustive_except
from tests.sites.chaos import disturb_hosts, disturb_processes, undisturbed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc"),
]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return undisturbed(tmp_path_factory.mktemp("chaos") / "whole")


@pytest.mark.parametrize("seed", exhaustive_except([(0,), (1,)], range(6)))
def test_a_disturbed_run_over_processes_ends_as_an_undisturbed_one(
    seed: int, expected: dict[str, Any], tmp_path: Path
) -> None:
    disturb_processes(tmp_path / "run", random.Random(seed), expected)


@pytest.mark.needs("ip")
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("seed", exhaustive_except([(0,)], range(3)))
def test_a_disturbed_run_over_two_hosts_ends_as_an_undisturbed_one(
    seed: int, expected: dict[str, Any], tmp_path: Path
) -> None:
    with network() as net:
        disturb_hosts(net, tmp_path / "run", random.Random(seed), expected)
