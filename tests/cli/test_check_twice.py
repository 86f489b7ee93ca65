"""`check --twice` runs a graph in one thread and in processes, and says whether the runs are equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flowrl.core.batch import Batch
from flowrl.core.node import Node
from flowrl.core.ports import In, Out
from tests.cli.conftest import Called, one_line, write
from tests.toys.toy_nodes import table

Flowrl = Callable[..., Called]

IS_TEST_PROCESS = False


class Placed(Node):
    """Gives another token in the process of the test than in processes of sites."""

    data = In("samples")
    out = Out("samples")

    def fire(self, data: Batch) -> Batch:
        return table(1 if IS_TEST_PROCESS else 2)


@pytest.mark.slow
def test_equal_runs_are_told_with_their_digests(flowrl: Flowrl, folder: Path) -> None:
    status, out, _ = flowrl("check", "g.yaml", "--twice", "--train-iters", "9")
    assert status == 0
    serial, processes, verdict, continued = out.splitlines()[-4:]
    assert serial.startswith("serial: 9 train iterations, ")
    assert processes == serial.replace("serial", "processes")
    assert verdict == "equal: all tokens and the weights, and the whole state at the end"
    assert continued.startswith("continued in processes after ")
    assert continued.endswith(" rounds: equal")


@pytest.mark.slow
def test_a_difference_is_told_with_its_first_token_and_its_cause(
    flowrl: Flowrl, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.IS_TEST_PROCESS", True)
    write(folder / "x.yaml", {"x": f"{__name__}:Placed", "d": "Drain"}, ["c -> x -> d"])
    status, out, _ = flowrl("check", "x.yaml", "--twice", "--rounds", "3", "--json")
    assert status == 1
    twice = one_line(out)["twice"]
    assert not twice["equal"]
    assert (
        "tokens: the first that differs is token 0 of x.out -> d.data, from firing 0 of x (round 0)"
        in twice["differences"]
    )
    assert twice["differences"][-1] == (
        "two runs on one site are equal, so the difference is that of the placement"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--twice", "--no-envs"), "--twice runs the graph, which needs its envs; leave"),
        (("--twice", "--placement", "threads"), "leave --placement out"),
        (("--rounds", "3"), "--train-iters and --rounds are the length of the runs of --twice"),
    ],
)
def test_contradictions_are_refused(words: tuple[str, ...], told: str, flowrl: Flowrl) -> None:
    status, _, error = flowrl("check", "g.yaml", *words)
    assert status == 2
    assert told in error


def test_a_graph_that_is_not_deterministic_is_not_run(flowrl: Flowrl, folder: Path) -> None:
    write(folder / "x.yaml", {"d": "Drain"}, [{"c -> d": {"when_full": "drop_oldest"}}])
    status, _, error = flowrl("check", "x.yaml", "--twice")
    assert status == 2
    assert "check --twice: two runs of x may differ: " in error


class OpensAFile(Placed):
    """Has an attribute that cannot be saved."""

    def setup(self) -> None:
        self.file = object()


class MakesAnObject(Placed):
    """Has an attribute that a new node could not load."""

    def fire(self, data: Batch) -> Batch:
        self.seen = data
        return table(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("OpensAFile", "opensafile.file is a object, which a checkpoint cannot hold"),
        ("MakesAnObject", "makesanobject.seen is data, and was not there after `setup`"),
    ],
)
def test_a_state_that_cannot_be_saved_is_told(
    kind: str, told: str, flowrl: Flowrl, folder: Path
) -> None:
    write(folder / "s.yaml", {"s": f"{__name__}:{kind}", "d": "Drain"}, ["c -> s -> d"])
    words = ("check", "s.yaml", "--twice", "--rounds", "3")
    status, out, _ = flowrl(*words)
    assert status == 1
    *_, verdict, unsaved = out.splitlines()
    assert verdict == "equal: all tokens and the weights"
    assert unsaved.startswith("no snapshot was saved: node 's', saving its state: ")
    assert told in unsaved
    if kind == "OpensAFile":
        assert flowrl(*words, "--set", "snapshots=false")[0] == 0


class ForgetsItsCount(Placed):
    """Gives numbers that depend on an attribute that is not saved."""

    unsaved = ("fired",)

    def setup(self) -> None:
        self.fired = 0

    def fire(self, data: Batch) -> Batch:
        self.fired += 1
        return table(self.fired)


@pytest.mark.slow
def test_a_state_that_was_not_saved_is_found_by_continuing(flowrl: Flowrl, folder: Path) -> None:
    write(folder / "s.yaml", {"s": f"{__name__}:ForgetsItsCount", "d": "Drain"}, ["c -> s -> d"])
    words = ("check", "s.yaml", "--twice", "--rounds", "5")
    status, out, _ = flowrl(*words, "--json")
    twice = one_line(out)["twice"]
    assert (status, twice["equal"], twice["unsaved"]) == (1, True, [])
    assert twice["continued"]["after_rounds"] == 2
    assert twice["continued"]["differences"][0] == (
        "tokens: the first that differs is token 2 of s.out -> d.data, from firing 2 of s (round 2)"
    )
    _, out, _ = flowrl(*words)
    assert "continued in processes after 2 rounds: different; something that changes is not" in out
    assert flowrl(*words, "--set", "snapshots=false")[0] == 0
