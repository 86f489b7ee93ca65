"""`python -m bench` runs benchmarks, and writes the results of those that ran in full."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

command = importlib.import_module("bench.__main__")


@pytest.fixture
def quick(monkeypatch: Any, tmp_path: Path) -> list[list[str]]:
    """The calls of a benchmark called `quick`; the folder of results is empty."""
    calls: list[list[str]] = []
    module = ModuleType("bench.quick")
    module.main = lambda arguments: calls.append(arguments) or {"rate": 7}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bench.quick", module)
    monkeypatch.setattr(command, "benchmark_names", lambda: ["loop", "quick"])
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    return calls


@pytest.mark.parametrize("name", command.benchmark_names())
def test_the_help_of_a_benchmark_begins_with_what_it_measures(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"bench.{name}")
    with pytest.raises(SystemExit) as ended:
        module.main(["--help"])
    assert not ended.value.code
    text = capsys.readouterr().out
    assert text.startswith(f"usage: python -m bench {name} ")
    assert f"\n\n{module.__doc__}" in text


def test_the_help_of_the_command_lists_all_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help"]) is None
    text = capsys.readouterr().out
    assert text.startswith("`python -m bench` runs all benchmarks")
    assert (
        f"  loop          {importlib.import_module('bench.loop').__doc__.splitlines()[0]}\n" in text
    )
    assert text.count("\n  ") == len(command.benchmark_names())


def test_a_misspelt_name_is_refused_with_the_nearest_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        importlib.import_module("bench.solve").main(["1", "60", "sb3_cartpole_pp"])
    assert "unknown 'sb3_cartpole_pp'; did you mean 'sb3_cartpole_ppo'?" in capsys.readouterr().err


def test_the_results_of_a_full_benchmark_are_written_with_its_environment(
    quick: Any, tmp_path: Path
) -> None:
    assert command.main(["quick"]) is None
    text = (tmp_path / "results" / "quick.json").read_text()
    result = json.loads(text)
    assert result["results"] == {"rate": 7}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", result["date"])
    assert result["packages"]["torch"]
    assert {"cpu", "git", "python", "duration_s"} <= set(result)


def test_written_results_name_no_path_and_no_machine(quick: Any, tmp_path: Path) -> None:
    command.main(["quick"])
    text = (tmp_path / "results" / "quick.json").read_text()
    assert str(Path(__file__).parents[2]) not in text
    assert command.environment(Path(__file__).parent)["platform"] not in text


def test_the_results_of_a_trial_are_not_written(quick: list[list[str]], tmp_path: Path) -> None:
    assert command.main(["quick", "3", "x"]) is None
    assert quick == [["3", "x"]]
    assert not (tmp_path / "results").exists()


def test_the_results_of_a_trial_are_written_on_demand_with_its_command(
    quick: list[list[str]], tmp_path: Path
) -> None:
    assert command.main(["quick", "--rows", "3", "--write"]) is None
    assert quick == [["--rows", "3"]]
    result = json.loads((tmp_path / "results" / "quick.json").read_text())
    assert result["command"] == "python -m bench quick --rows 3"


def test_an_unknown_benchmark_is_refused_with_the_nearest_name(quick: Any) -> None:
    assert command.main(["quik"]) == "bench: no benchmark 'quik'; did you mean 'quick'?"
    assert command.main(["zzz"]) == "bench: no benchmark 'zzz'; the benchmarks are loop, quick"


def test_all_benchmarks_run_and_the_failed_ones_are_named(quick: Any, monkeypatch: Any) -> None:
    ran: list[str] = []

    def run(words: list[str], **_: Any) -> Any:
        ran.append(words[-1])
        return type("Done", (), {"returncode": int(words[-1] == "loop")})

    monkeypatch.setattr(command.subprocess, "run", run)
    assert command.main([]) == "failed: loop"
    assert ran == ["loop", "quick"]


@pytest.mark.slow
def test_a_small_buffer_is_saved_loaded_and_measured() -> None:
    snapshots = importlib.import_module("bench.snapshots")
    results = snapshots.main(["--rows", "6400", "--only", "flowrl", "flowrl-mapped"])
    for row in results.values():
        assert row["later"]["bytes"] > 0
        assert row["load_s"] > 0
