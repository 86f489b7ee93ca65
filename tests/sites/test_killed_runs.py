"""One of the killed runs of `python -m tests.sites.killed_runs`, which kills all bundled graphs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.sites.killed_runs import KilledCase, compare_killed

pytestmark = pytest.mark.slow


def test_a_killed_run_ends_elsewhere_as_one_without_a_stop(tmp_path: Path) -> None:
    where, difference = compare_killed(KilledCase("cartpole_bc"), tmp_path, random.Random(3))
    assert not difference, where
