"""`python -m bench envs`: what is asked for is measured, and the table is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from bench import envs


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, Sequence[str]]]:
    """Contenders that only note what they were asked for; each is faster than the one before."""
    calls: list[tuple[str, float, Sequence[str]]] = []

    def run(self: Any, seconds: float, loads: Sequence[str]) -> Mapping[str, float]:
        calls.append((self.name, seconds, loads))
        return {load: 100.0 * len(calls) for load in loads}

    monkeypatch.setattr(envs.Contender, "run", run)
    return calls


def test_all_is_measured_by_default(asked: Any) -> None:
    found = envs.main(["1"])["env_steps_per_s"]
    assert list(found) == [contender.name for contender in envs.CONTENDERS]
    assert {len(loads) for _, _, loads in asked} == {len(envs.LOADS)}


def test_some_contenders_and_loads_take_turns(asked: Any, capsys: Any) -> None:
    words = ["2", "--seconds", "0.5", "--load", "cartpole_8"]
    told = envs.main([*words, "--contender", "flowrl_base", "gymnasium_sync"])
    assert (
        asked == [("flowrl_base", 0.5, ["cartpole_8"]), ("gymnasium_sync", 0.5, ["cartpole_8"])] * 2
    )
    assert told["env_steps_per_s"]["flowrl_base"] == {"cartpole_8": 200.0}
    assert told["ahead"] == {"flowrl_base": {"cartpole_8": 0.67}}
    assert "flowrl_base" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--contender", "sb3"], ["--load", "pong"], ["many"]])
def test_what_is_not_known_is_refused(asked: Any, capsys: Any, words: list[str]) -> None:
    with pytest.raises(SystemExit):
        envs.main(words)
    assert words[-1] in capsys.readouterr().err
    assert asked == []
