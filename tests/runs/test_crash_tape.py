"""A node that fails leaves a tape of its last firing, which is fired again with the same inputs and state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.cli import main
from flowrl.core.batch import Batch
from flowrl.core.errors import NodeError
from flowrl.core.node import Node
from flowrl.core.ports import In, Link, StateIn
from flowrl.core.state import State
from flowrl.runs.tape_file import Tape
from flowrl.runs.tape_replay import fire_again
from flowrl.runs.tape_text import firing_text
from tests.toys.toy_runs import toy_graph


class Overflows(Node):
    """Fails when the sum of its tokens exceeds ten."""

    data = In("samples")

    def setup(self) -> None:
        self.total = np.int64(0)

    def fire(self, data: Batch) -> None:
        if self.total + data["n"].sum() > 10:
            raise OverflowError(f"{self.total} and {data['n'].sum()} exceed 10")
        self.total += data["n"].sum()


class OverflowsWithWeights(Overflows):
    """Takes weights, too, and calls a service."""

    weights = StateIn("weights")
    counter = Link("counter")

    def fire(self, data: Batch, weights: State) -> None:  # type: ignore[override]
        if self.counter.next_number() == 4:
            raise OverflowError(f"version {weights.version}")


class Unsavable(Overflows):
    """Has an attribute that cannot be saved."""

    def setup(self) -> None:
        super().setup()
        self.file = object()


def graph(kind: str, *edges: Any, **nodes: Any) -> dict[str, Any]:
    return toy_graph(
        {"c": "Source", "l": "Learner", "o": f"{__name__}:{kind}", **nodes}, ["c -> l, o", *edges]
    )


def fail(folder: Path, data: dict[str, Any], placement: str = "serial") -> Tape:
    with pytest.raises(NodeError):
        flowrl.load(data).run(out=folder, placement=placement, steps=1000, quiet=True)
    return Tape(folder / "crash-o.tape")


@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_a_failed_firing_fails_again(placement: str, tmp_path: Path) -> None:
    tape = fail(tmp_path / "r", graph("Overflows"), placement)
    assert repr(fire_again(tape).error) == "OverflowError('10 and 5 exceed 10')"
    lines = firing_text(tape).splitlines()
    assert lines[0] == "node 'o', firing 5 (round 5): OverflowError: 10 and 5 exceed 10"
    assert lines[1] == "  data: 1 row of n"
    assert "the node has the state in which it failed" in lines[2]
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["warnings"] == [
        f"`flowrl replay {tmp_path}/r/crash-o.tape` fires 'o' again as it failed"
    ]


def test_a_replica_of_a_group_leaves_no_tape(tmp_path: Path) -> None:
    group = {"type": "GroupLearner", "replicas": 2, "fails_at": 1}
    data = toy_graph({"c": "Source", "w": "Widener", "l": group}, ["c -> w -> l"])
    with pytest.raises(NodeError, match="node 'l#1', firing 1"):
        flowrl.load(data).run(out=tmp_path / "r", steps=1000, quiet=True)
    assert not [*(tmp_path / "r").glob("crash-*")]


def test_services_have_their_state(tmp_path: Path) -> None:
    data = graph("OverflowsWithWeights", "l.weights -> o.weights", "o <-> s", s="CountingService")
    tape = fail(tmp_path / "r", data)
    assert sorted(tape.inputs) == ["data", "weights"]
    assert sorted(tape.parts) == ["node/o", "node/s"]
    # the failed call has been counted by the service
    assert fire_again(tape).error is None


def test_a_node_that_cannot_be_saved_is_as_in_the_beginning(tmp_path: Path) -> None:
    tape = fail(tmp_path / "r", graph("Unsavable"))
    assert tape.parts == {}
    assert "the node's state is not on the tape (it cannot be saved: " in firing_text(tape)
    assert fire_again(tape).error is None


def test_the_command_line_fires_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = fail(tmp_path / "r", graph("Overflows"))
    assert main(["replay", str(tape.path)]) == 0
    out, error = capsys.readouterr()
    assert out.splitlines()[-1] == "it failed again: OverflowError: 10 and 5 exceed 10"
    assert "in fire\n    raise OverflowError" in error
    monkeypatch.setattr(Overflows, "fire", lambda self, data: None)  # a repaired node
    assert main(["replay", str(tape.path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"it did not fail again; with its exact state it may: flowrl record {tmp_path}/r o repeats the run"
    )
    assert main(["replay", str(tape.path), "o"]) == 2
    assert "is of one failed firing, so NODE has no meaning" in capsys.readouterr().err


@pytest.mark.slow
def test_a_node_in_another_process_leaves_a_tape(tmp_path: Path) -> None:
    tape = fail(tmp_path / "r", graph("Overflows"), "processes")
    assert repr(fire_again(tape).error) == "OverflowError('10 and 5 exceed 10')"


def test_inputs_that_are_too_large_leave_no_tape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.runtime.failed_firing.MAX_BYTES", 10)
    with pytest.raises(NodeError):
        flowrl.load(graph("Overflows")).run(out=tmp_path / "r", steps=1000, quiet=True)
    assert not list((tmp_path / "r").glob("crash-*"))


def test_a_run_that_failed_is_recorded_up_to_the_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(tmp_path / "r", graph("Overflows"))
    again = tmp_path / "again"
    assert main(["record", str(tmp_path / "r"), "o", "--out", str(again), "--quiet"]) == 1
    capsys.readouterr()
    assert main(["replay", str(again / "tokens.tape"), "o"]) == 1
    error = capsys.readouterr().err
    assert "in fire\n    raise OverflowError" in error
    assert error.endswith(
        "flowrl: node 'o', firing 5 (round 5): OverflowError: 10 and 5 exceed 10\n"
    )
