"""A coordinator with sites that speak with it as real ones do, and execute nothing (`bench coordinator`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.coordinator import run_of
from flowrl.runs.watcher import Watcher


@pytest.mark.slow
def test_a_run_on_stub_sites_counts_what_they_report_and_ends(tmp_path: Path) -> None:
    sites, rounds = 12, 40
    result = run_of(sites, rounds, 0.0, tmp_path / "r", Watcher()).run()
    assert (result.status, result.train_iters) == ("finished", rounds)
    assert result.env_steps == (sites - 1) * rounds
    metrics = (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["train_iters"] for line in metrics] == [*range(1, rounds + 1)]
