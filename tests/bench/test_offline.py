"""`python -m bench offline` compares the wall time of learning from data with other libraries'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from bench import offline
from bench.peers import Contender, Row
from bench.peers.flowrl_offline import MAKERS
from bench.peers.offline_protocol import TASKS, measure


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_libraries_take_turns_and_their_medians_count(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Sequence[str]]] = []

    def run(self: Contender, task: str, words: Sequence[str], timeout_s: float) -> Row:
        calls.append((self.name, words))
        return {"seconds": float(len(calls)), "cpu_s": 2.0 * len(calls)}

    monkeypatch.setattr(Contender, "run", run)
    found = offline.main(["3", "--only", "bc", "--share", "0.01"])
    assert calls == [("flowrl_bc", ["10"]), ("imitation_bc", ["10"])] * 3
    assert found["bc"] == {
        "flowrl": {"seconds": 3.0, "cpu_s": 6.0},
        "imitation": {"seconds": 4.0, "cpu_s": 8.0},
    }


def test_a_failed_library_has_no_row(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(Contender, "run", lambda *_: {"failed": "no such package"})
    assert offline.main(["1", "--only", "cql"]) == {"cql": {}}
    assert "d3rlpy_cql: no such package" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_flowrl_learns_each_task_from_its_data(task: str) -> None:
    found = measure(MAKERS[task](TASKS[task]), updates=1)
    assert found.keys() == {"seconds", "cpu_s"}


def test_every_task_has_a_peer() -> None:
    assert offline.PEERS.keys() == TASKS.keys() == MAKERS.keys()
