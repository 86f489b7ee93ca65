"""`python -m bench training` compares the throughput of PPO with another library's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from bench import training
from bench.peers import Contender, Row
from bench.peers.flowrl_training import make_training
from bench.peers.training_protocol import Load, measure
from flowrl.nodes import SerialEnvManager


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_libraries_take_turns_and_their_medians_count(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Sequence[str]]] = []

    def run(self: Contender, task: str, words: Sequence[str], timeout_s: float) -> Row:
        calls.append((self.name, words))
        rate = float(len(calls))
        return {"per_s": rate, "per_cpu_s": 2 * rate}

    monkeypatch.setattr(Contender, "run", run)
    found = training.main(["3", "--seconds", "0.5", "--load", "8x128"])
    assert calls == [("flowrl_serial", ["8x128", "0.5"]), ("sb3_dummy", ["8x128", "0.5"])] * 3
    assert found["8x128"] == {
        "flowrl_serial": {"per_s": 3.0, "per_cpu_s": 6.0},
        "sb3_dummy": {"per_s": 4.0, "per_cpu_s": 8.0},
    }


def test_a_failed_library_has_no_row(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(Contender, "run", lambda *_: {"failed": "no such package"})
    assert training.main(["1", "--load", "64x128"]) == {"64x128": {}}
    assert "sb3_dummy: no such package" in capsys.readouterr().err


def test_flowrl_is_measured_by_its_own_nodes() -> None:
    load = Load(envs=2, minibatch_size=64)
    found = measure(make_training(SerialEnvManager)(load), load.rows, seconds=0.0)
    assert found.keys() == {"per_s", "per_cpu_s"}
