"""`python -m bench envs` measures the chosen contenders and workloads, and compares them with the best peer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bench import envs
from bench.peers import Contender, Row


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Sequence[str]]]:
    """The calls of contenders that measure nothing; each call is faster than the one before."""
    calls: list[tuple[str, Sequence[str]]] = []

    def run(self: Contender, task: str, words: Sequence[str], timeout_s: float) -> Row:
        assert task == "envs"
        calls.append((self.name, words))
        return {workload: 100.0 * len(calls) for workload in words[1:]}

    monkeypatch.setattr(Contender, "run", run)
    return calls


def test_all_contenders_and_workloads_are_measured_by_default(calls: Any) -> None:
    rates = envs.main(["1"])["env_steps_per_s"]
    assert list(rates) == [contender.name for contender in envs.CONTENDERS]
    assert {len(words) for _, words in calls} == {1 + len(envs.WORKLOADS)}


def test_chosen_contenders_take_turns(calls: Any, capsys: Any) -> None:
    words = ["2", "--seconds", "0.5", "--workload", "cartpole_8"]
    results = envs.main([*words, "--contender", "flowrl_serial", "gymnasium_sync"])
    one_turn = [("flowrl_serial", ["0.5", "cartpole_8"]), ("gymnasium_sync", ["0.5", "cartpole_8"])]
    assert calls == one_turn * 2
    assert results["env_steps_per_s"]["flowrl_serial"] == {"cartpole_8": 200.0}
    assert results["ratio_to_best_peer"] == {"flowrl_serial": {"cartpole_8": 0.67}}
    assert "flowrl_serial" in capsys.readouterr().out


def test_a_failed_run_is_printed_and_has_no_rates(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(Contender, "run", lambda *_: {"failed": "no such package"})
    assert envs.measure(envs.CONTENDERS[0], 1.0, ["cartpole_8"]) == {}
    assert capsys.readouterr().err == "  gymnasium_bare_loop: no such package\n"


@pytest.mark.parametrize("words", [["--contender", "sb3"], ["--workload", "pong"], ["many"]])
def test_unknown_words_are_refused(calls: Any, capsys: Any, words: list[str]) -> None:
    with pytest.raises(SystemExit):
        envs.main(words)
    assert words[-1] in capsys.readouterr().err
    assert calls == []
