"""`python -m bench`."""

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
    """A benchmark called `quick`, whose arguments are noted, and an empty folder of results."""
    calls: list[list[str]] = []
    module = ModuleType("bench.quick")
    module.main = lambda arguments: calls.append(arguments) or {"rate": 7}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bench.quick", module)
    monkeypatch.setattr(command, "names", lambda: ["loop", "quick"])
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    return calls


def test_every_benchmark_has_a_main() -> None:
    assert {"envs", "firing", "loop", "solve"} <= set(command.names())
    for name in command.names():
        assert callable(importlib.import_module(f"bench.{name}").main)


def test_a_full_benchmark_is_written_down_with_what_it_ran_on(quick: Any, tmp_path: Path) -> None:
    assert command.main(["quick"]) is None
    text = (tmp_path / "results" / "quick.json").read_text()
    result = json.loads(text)
    assert result["found"] == {"rate": 7}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", result["date"])
    assert result["packages"]["torch"]
    assert {"cpu", "git", "python", "took_s"} <= set(result)


def test_a_result_names_no_path_and_no_machine(quick: Any, tmp_path: Path) -> None:
    command.main(["quick"])
    text = (tmp_path / "results" / "quick.json").read_text()
    assert str(Path(__file__).parents[2]) not in text
    assert command.environment(Path(__file__).parent)["platform"] not in text


def test_a_trial_is_not_written_down(quick: list[list[str]], tmp_path: Path) -> None:
    assert command.main(["quick", "3", "x"]) is None
    assert quick == [["3", "x"]]
    assert not (tmp_path / "results").exists()


def test_an_unknown_benchmark_is_told_with_the_nearest(quick: Any) -> None:
    assert command.main(["quik"]) == "bench: no benchmark 'quik'; did you mean 'quick'?"
    assert command.main(["zzz"]) == "bench: no benchmark 'zzz'; there are loop, quick"


def test_all_are_run_and_those_that_failed_are_named(quick: Any, monkeypatch: Any) -> None:
    ran: list[str] = []

    def run(words: list[str], **_: Any) -> Any:
        ran.append(words[-1])
        return type("Done", (), {"returncode": int(words[-1] == "loop")})

    monkeypatch.setattr(command.subprocess, "run", run)
    assert command.main([]) == "failed: loop"
    assert ran == ["loop", "quick"]
