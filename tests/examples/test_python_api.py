"""The example of graphs in Python runs three seeds and compares them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.python_api import main


def test_three_seeds_are_run_and_compared(monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)  # the folder in which runs/ is made
    results = main(train_iters=10)
    assert [(result.seed, result.train_iters) for result in results] == [(0, 10), (1, 10), (2, 10)]
    assert len({result.digest for result in results}) == 3
    assert all(Path(result.run_dir, "summary.json").exists() for result in results)
    printed = capsys.readouterr().out
    assert "sound: True, deterministic: True" in printed
    assert f"median: {results[0].env_steps:,} env steps" in printed
