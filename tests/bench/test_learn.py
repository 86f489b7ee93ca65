"""`python -m bench learn`: which runs it does, in which order, what it stores, and its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import learn
from bench.peers import Contender

FLOWRL, SB3 = (Contender(name, "cartpole_a2c", learn.LIBRARIES[name]) for name in ("flowrl", "sb3"))


def run_of(wall_s: float = 4.0, solved: bool = True) -> dict[str, Any]:
    return {
        "solved": solved,
        "wall_s": wall_s,
        "eval_s": 1.0,
        "env_steps": 20_000,
        "curve": [[10_000, 40.0], [20_000, 480.0]],
        "versions": {"flowrl": "0.1.0", "stable-baselines3": "2.9.2"},
    }


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str, int]]:
    """The runs that are done; results are stored in a folder of the test."""
    done: list[tuple[str, str, int]] = []

    def run_once(job: learn.Job) -> dict[str, Any]:
        done.append((job.row, job.contender.library, job.seed))
        return run_of()

    monkeypatch.setattr(learn, "run_once", run_once)
    monkeypatch.setattr(learn, "RESULTS", tmp_path / "learn")
    monkeypatch.setattr(learn, "PAGE", tmp_path / "learn.md")
    return done


def test_the_libraries_of_a_row_take_turns_with_each_seed(runs: Any) -> None:
    learn.main(["cartpole_a2c", "--seeds", "2"])
    libraries = learn.ROWS["cartpole_a2c"]
    assert runs == [("cartpole_a2c", name, seed) for seed in (0, 1) for name in libraries]


def test_stored_runs_are_not_repeated(runs: Any) -> None:
    learn.main(["cartpole_a2c", "--only", "flowrl", "sb3", "--seeds", "1"])
    learn.main(["cartpole_a2c", "--only", "flowrl", "sb3", "--seeds", "2"])
    assert runs == [("cartpole_a2c", name, seed) for seed in (0, 1) for name in ("flowrl", "sb3")]


def test_the_runs_of_a_library_are_dropped_when_what_they_depend_on_has_changed(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn.main(["cartpole_a2c", "--only", "flowrl", "sb3", "--seeds", "2"])
    identity = learn.identity
    monkeypatch.setattr(learn, "identity", lambda c: identity(c) + "!" * (c.library == "sb3"))
    runs.clear()
    learn.main(["cartpole_a2c", "--only", "flowrl", "sb3", "--seeds", "1"])
    assert runs == [("cartpole_a2c", "sb3", 0)]
    record = learn.stored_results()["cartpole_a2c"]
    assert {name: list(found["runs"]) for name, found in record.items()} == {
        "flowrl": ["0", "1"],
        "sb3": ["0"],
    }


def test_the_identity_of_runs_depends_on_the_graph_and_on_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = learn.identity(FLOWRL), learn.identity(SB3)
    monkeypatch.setattr(learn, "graph_hash", lambda graph: "another")
    assert learn.identity(FLOWRL) != before[0]
    assert learn.identity(SB3) == before[1]
    assert len({*before, learn.identity(Contender("sb3", "cartpole_dqn", SB3.peer))}) == 3


def test_failed_runs_are_repeated_on_demand_only(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn, "run_once", lambda job: {"failed": "no such version"})
    words = ["cartpole_a2c", "--only", "sb3", "--seeds", "1"]
    learn.main(words)
    assert "failed: no such version" in learn.page(learn.stored_results())
    monkeypatch.setattr(learn, "run_once", lambda job: run_of())
    learn.main(words)
    assert "failed" in learn.stored_results()["cartpole_a2c"]["sb3"]["runs"]["0"]
    learn.main([*words, "--retry"])
    assert learn.stored_results()["cartpole_a2c"]["sb3"]["runs"]["0"] == run_of()


def test_each_run_is_stored_as_a_line_as_soon_as_it_ends(runs: Any) -> None:
    job = learn.Job("cartpole_a2c", SB3, 3)
    learn.store(job, run_of())
    text = (learn.RESULTS / "cartpole_a2c.json").read_text()
    assert json.dumps(run_of()) in text.splitlines()[1]
    assert json.loads(text)["sb3"]["runs"] == {"3": run_of()}


def test_the_page_names_versions_and_marks_numbers_with_unsolved_runs(runs: Any) -> None:
    learn.store(learn.Job("cartpole_a2c", FLOWRL, 0), run_of())
    learn.store(learn.Job("cartpole_a2c", SB3, 0), run_of())
    learn.store(learn.Job("cartpole_a2c", SB3, 1), run_of(8.0, solved=False))
    hopper = Contender("flowrl", "hopper_sac")
    learn.store(learn.Job("hopper_sac", hopper, 0), run_of(solved=False))
    assert learn.page(learn.stored_results()).splitlines()[-3:] == [
        "| `cartpole_a2c` | flowrl 0.1.0 | 1/1 | 3.0 | 4.0 | 20,000 | 480 |",
        "| `cartpole_a2c` | sb3 2.9.2 | 1/2 | ≥ 5.0 | ≥ 6.0 | ≥ 20,000 | 480 |",
        "| `hopper_sac` | flowrl 0.1.0 |  | 3.0 | 4.0 | 20,000 | 480 |",
    ]


def test_every_contender_has_a_program_and_flowrl_a_graph() -> None:
    peers = Path(learn.__file__).parent / "peers"
    for row, libraries in learn.ROWS.items():
        assert libraries[0] == "flowrl"
        assert learn.identity(Contender("flowrl", row))
        for library in libraries:
            program = "sb3" if library == "sbx" else library
            text = (peers / f"{program}_solve.py").read_text()
            assert library == "flowrl" or f'"{row}"' in text
