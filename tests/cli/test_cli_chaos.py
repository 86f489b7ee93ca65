"""`flowrl chaos` disturbs a run on purpose, and says whether its bits are those of an undisturbed one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowrl.core.errors import UsageError
from flowrl.runs.chaos import Fault, read_fault
from flowrl.runs.repetition import Repetition, has_equal_rounds
from flowrl.runs.result import RunResult
from tests.cli.conftest import Called, one_line, write

Flowrl = Callable[..., Called]
SLEEPS = {"s": {"type": "tests.sites.fault_nodes:SleepingNode", "sleep_s": 0.01}}


@pytest.mark.slow
def test_a_run_that_is_killed_and_stopped_has_the_bits_of_one_that_is_not(
    flowrl: Flowrl, folder: Path
) -> None:
    write(folder / "s.yaml", SLEEPS, ["c -> s"])
    faults = ("--kill", "s@0.3s", "--stop", "c@1,0.2", "--kill", "l@10h")
    status, out, err = flowrl("chaos", "s.yaml", "--train-iters", "200", *faults, "--json")
    assert status == 0, err
    found = one_line(out)
    assert found["equal"]
    assert found["faults"] == ["0.3 s: killed s", "1 s: stopped c for 0.2 s"]
    assert found["missed"] == ["36000 s: killed l"]
    assert found["recoveries"] == 1
    assert "site 'process:s' has ended: its process was killed by SIGKILL" in found["happened"][0]
    assert [run["placement"] for run in found["runs"]] == ["serial", "processes"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "nothing is to happen; add a fault, such as --kill collector@5s"),
        (("--kill", "c"), "--kill c: expected NODE@30s"),
        (("--kill", "c@5s,2s"), "--kill c@5s,2s: expected NODE@30s"),
        (("--stop", "c@5s"), "--stop c@5s: expected NODE@30s,10s"),
        (("--disconnect", "a@x,1"), "--disconnect a@x,1: expected HOST@30s,10s"),
        (("--disconnect", "a@1s,2s"), "--disconnect a: the run has no hosts; say where they join"),
        (("--kill", "cc@5s"), "--kill cc: the graph has no such node; did you mean 'c'?"),
        (
            ("--kill", "c@5s", "--placement", "threads"),
            "--kill c: under `--placement threads` it is in the process of the whole run",
        ),
    ],
)
def test_faults_that_cannot_be_made_are_refused(
    flowrl: Flowrl, words: tuple[str, ...], told: str
) -> None:
    status, _, err = flowrl("chaos", "g.yaml", "--train-iters", "2", *words)
    assert (status, told in err) == (2, True), err


def test_snapshots_of_different_rounds_are_not_compared() -> None:
    def result(rounds: int) -> RunResult:
        counts: dict[str, Any] = dict.fromkeys(["env_steps", "train_iters", "episodes"], 1)
        times = {"wall_s": 1.0, "env_steps_per_s": 1.0, "eval_return": None, "best_return": None}
        return RunResult(
            **{"graph": "g", "run_dir": "", "placement": "serial", "status": "solved"},
            **{"deterministic": True, "bottleneck": "", "digest": "d", **counts, **times},
            **{"snapshot_rounds": rounds, "state_digest": f"of {rounds}"},
        )

    assert has_equal_rounds(result(5), result(5))
    assert not has_equal_rounds(result(5), result(6))
    assert "whole state" in Repetition((result(5), result(5)), ()).verdict
    assert "whole state" not in Repetition((result(5), result(6)), ()).verdict


def test_times_of_faults_are_read_like_other_times() -> None:
    assert read_fault("stop", "a/b#1@1m,0.5") == Fault("stop", "a/b#1", 60.0, 0.5)
    with pytest.raises(UsageError, match="expected NODE@30s"):
        read_fault("kill", "@3")
