"""Tapes hold what passed the edges of a run, and a node that is replayed against one gives the same bits."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from flowrl.checks.check import check
from flowrl.core.batch import Batch
from flowrl.core.errors import NodeError, RunError, UsageError
from flowrl.core.node import Node
from flowrl.core.ports import In, Out
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.recording import Recording, find_inputs, replayable_nodes
from flowrl.runs.repeated_run import repeated_run
from flowrl.runs.result import RunResult
from flowrl.runs.run import Run
from flowrl.runs.tape_file import FORMAT, FRAME, Tape
from flowrl.runs.tape_replay import replay_part
from flowrl.runs.tape_text import tape_text
from tests.toys.toy_runs import toy_graph

SHIFT = 0  # what `Shifted` adds in the process of the test
ALL = ("c", "x", "b", "l", "e", "d")


class Shifted(Node):
    """Passes its token on, with the sum of all tokens so far."""

    data = In("samples")
    out = Out("samples")

    def setup(self) -> None:
        self.total = 0

    def fire(self, data: Batch) -> Batch:
        self.total += int(data["n"].sum())
        numbers = np.array([self.total, self.total])
        numbers[1] += SHIFT * (self.total > 5)
        return Batch({"n": numbers})


class Unsendable(Node):
    """Gives a token that is no data."""

    data = In("samples")
    out = Out("things")

    def fire(self, data: Batch) -> Any:
        return object()


def graph(**more: Any) -> dict[str, Any]:
    """A graph with a warm-up, feedback, two rates, a state that lags, and a paced node with an output."""
    return toy_graph(
        {
            **{"c": "Source", "x": f"{__name__}:Shifted", "l": "Learner", "e": "Evaluator"},
            **{"b": {"type": "Buffer", "updates": 2}, "d": "Drain"},
        },
        [
            *["c -> x -> b -> l", "l.priorities -> b.priorities", "e.data -> d.data"],
            *[{"l.weights -> c.weights": {"lag": 1}}, {"l.weights -> e": {"every": 4}}],
        ],
        warmup=[{"edges": ["c -> x -> b"], "rounds": 2}],
        **more,
    )


def record(
    folder: Path, *words: str, data: Any = None, placement: str = "serial", **limits: Any
) -> RunResult:
    checked = check(load_data(data or graph())).require_sound()
    run = Run(
        checked, limits=Limits(**(limits or {"train_iters": 13})), out=folder, placement=placement
    )
    run.recording = Recording(find_inputs(checked.graph, words or ALL))
    return run.run()


def tape(folder: Path) -> Tape:
    return Tape(folder / "tokens.tape")


def test_tapes_are_equal_in_every_placement_and_recording_changes_no_bits(tmp_path: Path) -> None:
    checked = check(load_data(graph())).require_sound()
    digests = {Run(checked, limits=Limits(train_iters=13), out=tmp_path / "none").run().digest}
    tapes = set()
    for placement in ("serial", "threads"):
        digests.add(record(tmp_path / placement, placement=placement).digest)
        tapes.add((tmp_path / placement / "tokens.tape").read_bytes())
    assert (len(digests), len(tapes)) == (1, 1)


def test_each_node_gives_the_recorded_tokens_again(tmp_path: Path) -> None:
    record(tmp_path / "r")
    found = {name: replay_part(tape(tmp_path / "r"), [name]) for name in ALL}
    assert [result.difference for result in found.values()] == [""] * len(ALL)
    assert found["c"].equal == {"c.data -> x.data": 9}
    assert [found[name].instances[0].firings for name in "xb"] == [9, 9]
    assert found["b"].equal == {"b.batches -> l.data": 14}
    assert found["l"].equal == {
        **{"l.priorities -> b.priorities": 13, "l.weights -> c.weights": 6},
        "l.weights -> e.weights": 3,
    }
    assert found["e"].equal == {"e.data -> d.data": 3}
    assert str(found["d"]).endswith(
        "none of its outputs was recorded, so there is nothing to compare"
    )


def test_a_part_of_a_graph_is_replayed_with_the_edges_that_lead_into_it(tmp_path: Path) -> None:
    """What goes from one of its nodes to another needs no recording, and is compared where there is one."""
    record(tmp_path / "outer", "x.data", "c.weights")
    result = replay_part(tape(tmp_path / "outer"), ["x", "b", "l"])
    assert (result.difference, result.equal) == ("", {"l.weights -> c.weights": 6})
    assert [(one.instance, one.firings) for one in result.instances] == [
        *[("x", 9), ("l", 13), ("b", 9)]
    ]
    record(tmp_path / "all")
    result = replay_part(tape(tmp_path / "all"), ALL)
    assert (result.difference, result.equal) == (
        "",
        {
            **{"c.data -> x.data": 9, "x.out -> b.data": 9, "b.batches -> l.data": 14},
            **{"l.priorities -> b.priorities": 13, "l.weights -> c.weights": 6},
            **{"l.weights -> e.weights": 3, "e.data -> d.data": 3},
        },
    )


def test_a_part_that_differs_within_is_found_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "r", "x.data", "c.weights")
    monkeypatch.setattr(f"{__name__}.SHIFT", 1)
    result = replay_part(tape(tmp_path / "r"), ["x", "b", "l"])
    assert result.difference.startswith(
        "version 4 of l.weights -> c.weights differs from the recorded one: "
    )


def test_a_part_ends_with_the_round_in_which_the_recording_ended(tmp_path: Path) -> None:
    """`z` fires after the last train iteration."""
    nodes = {"c": "Source", "l": "Learner", "z": f"{__name__}:Shifted", "d": "Drain"}
    record(tmp_path / "r", "z", "d", data=toy_graph(nodes, ["c -> l", "c -> z -> d"]), rounds=3)
    result = replay_part(tape(tmp_path / "r"), ["c", "l", "z"])
    assert (result.difference, result.equal["z.out -> d.data"]) == ("", 3)


def test_a_part_is_replayed_from_a_snapshot(tmp_path: Path) -> None:
    checked = check(load_data(graph(snapshots={"every_rounds": 4}))).require_sound()
    Run(checked, limits=Limits(train_iters=5), out=tmp_path / "run").run()
    repeated = repeated_run(tmp_path / "run", 4, Limits(train_iters=13), out=tmp_path / "again")
    repeated.recording = Recording(find_inputs(repeated.graph, ["b", "l", "e.weights"]))
    repeated.run()
    result = replay_part(tape(tmp_path / "again"), ["b", "l", "e"])
    assert result.difference == ""
    assert [one.first_firing > 0 for one in result.instances] == [True, True, True]
    assert result.equal["l.priorities -> b.priorities"] > 3
    with pytest.raises(
        UsageError, match="begins with a snapshot, and does not have the state of 'x'"
    ):
        replay_part(tape(tmp_path / "again"), ["c", "x", "b", "l"])


def test_replicas_are_replayed_one_by_one(tmp_path: Path) -> None:
    data = graph()
    data["nodes"] |= {"c": {**data["nodes"]["c"], "replicas": 2}}
    record(tmp_path / "r", data=data)
    for name in ("c", "c#1"):
        result = replay_part(tape(tmp_path / "r"), [name])
        assert (result.difference, list(result.equal.values())) == ("", [9])


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [None, 0, pytest.param(4, marks=pytest.mark.slow)])
def test_a_run_is_repeated_from_a_snapshot_or_the_beginning(
    rounds: int | None, tmp_path: Path
) -> None:
    data = graph(snapshots={"every_rounds": 1000})
    checked = check(load_data(data)).require_sound()
    first = Run(checked, limits=Limits(train_iters=5), out=tmp_path / "run").run()
    assert first.snapshot_rounds == 4
    longer = Limits(train_iters=13)
    repeated = repeated_run(tmp_path / "run", rounds, longer, out=tmp_path / "again")
    repeated.recording = Recording(find_inputs(repeated.graph, ALL))
    assert repeated.run().digest == Run(checked, limits=longer, out=tmp_path / "o").run().digest
    begin = tape(tmp_path / "again").facts.rounds
    assert begin == (0 if rounds == 0 else 4)
    for name in ALL:
        result = replay_part(tape(tmp_path / "again"), [name])
        assert result.difference == ""
        assert result.instances[0].first_firing > 0 or begin == 0 or name in ("e", "d")


def test_the_first_difference_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "r")
    monkeypatch.setattr(f"{__name__}.SHIFT", 1)
    result = replay_part(tape(tmp_path / "r"), ["x"])
    assert result.equal == {"x.out -> b.data": 3}
    assert result.difference == (
        "token 3, from firing 3 (round 3), of x.out -> b.data differs from the recorded one: column 'n', row 1: "
        "np.int64(6) -> np.int64(7)"
    )


def test_a_tape_is_described(tmp_path: Path) -> None:
    record(tmp_path / "r", "x", "c.weights")
    lines = tape_text(tape(tmp_path / "r")).splitlines()
    assert lines[0] == "graph, seed 0, from the beginning"
    assert [line.split()[:3] for line in lines[2:5]] == [
        *[["c.data", "->", "x.data"], ["x.out", "->", "b.data"], ["l.weights", "->", "c.weights"]]
    ]
    assert lines[-1] == "nodes that can be replayed: c, x"


@pytest.mark.parametrize(
    ("word", "inputs"),
    [
        *[("x", ["x.data", "b.data"]), ("b.data", ["b.data"]), ("x.out", ["b.data"])],
        *[("x -> b", ["b.data"]), ("l.weights", ["c.weights", "e.weights"])],
    ],
)
def test_edges_are_named_as_elsewhere(word: str, inputs: list[str]) -> None:
    found = find_inputs(check(load_data(graph())).graph, [word])
    assert sorted(found) == sorted(inputs)


def test_what_cannot_be_replayed_is_said(tmp_path: Path) -> None:
    checked = check(load_data(graph()))
    with pytest.raises(UsageError, match="bb: graph has no such edge to record; did you mean 'b'"):
        find_inputs(checked.graph, ["bb"])
    record(tmp_path / "r", "b.data")
    assert replayable_nodes(checked.graph, ["b.data"]) == []
    with pytest.raises(UsageError, match=r"'b' also reads b\.priorities, which the tape does not"):
        replay_part(tape(tmp_path / "r"), ["b"])
    with pytest.raises(UsageError, match="q: there is no such node; known: b, c, d, e, l, x"):
        replay_part(tape(tmp_path / "r"), ["q"])


def test_a_group_is_recorded_and_not_replayed(tmp_path: Path) -> None:
    data = toy_graph(
        {"c": "Source", "w": "Widener", "l": {"type": "GroupLearner", "replicas": 2}},
        ["c -> w -> l"],
    )
    record(tmp_path / "r", "w", "l", data=data, train_iters=3)
    assert replay_part(tape(tmp_path / "r"), ["w"]).equal == {"w.out -> l.data": 6}
    with pytest.raises(
        UsageError, match="the replicas of 'l' exchange values while they fire, which the tape"
    ):
        replay_part(tape(tmp_path / "r"), ["l"])


def test_a_token_that_is_no_data_is_an_error_of_its_node(tmp_path: Path) -> None:
    data = toy_graph(
        {"c": "Source", "l": "Learner", "u": f"{__name__}:Unsendable", "d": "Drain"},
        ["c -> l", "c -> u", "u.out -> d"],
    )
    with pytest.raises(
        NodeError, match=r"node 'u', recording its token: .* cannot send a builtins"
    ):
        record(tmp_path / "r", "d", data=data)


# files


def test_the_tape_of_a_killed_run_can_be_replayed_as_far_as_it_goes(tmp_path: Path) -> None:
    record(tmp_path / "r")
    path = tmp_path / "r" / "tokens.tape"
    whole = path.read_bytes()
    last = None
    for end in range(len(whole) - 1, len(whole) // 2, -len(whole) // 10):
        path.write_bytes(whole[:end])
        cut = Tape(path)
        assert cut.train_iters is None
        assert (
            tape_text(cut)
            .splitlines()[0]
            .endswith("; without an end: the run failed, was killed, or is active")
        )
        result = replay_part(cut, ["x"])
        assert result.difference == ""
        assert last is None or result.instances[0].firings <= last
        last = result.instances[0].firings


def test_a_damaged_tape_is_refused_in_words(tmp_path: Path) -> None:
    record(tmp_path / "r", "x")
    path = tmp_path / "r" / "tokens.tape"
    whole = path.read_bytes()
    lengths = frame_heads(whole)
    for at in range(len(FORMAT), len(whole), 41):
        if any(head <= at < head + 8 for head in lengths):
            continue  # a length that is too large is that of the frame that a killed run leaves
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 8]) + whole[at + 1 :])
        with pytest.raises(RunError, match=r"the tape is damaged: .*; record it again"):
            Tape(path)
    path.write_bytes(b"x" + whole)
    with pytest.raises(UsageError, match="is not a tape that this version reads"):
        Tape(path)


def frame_heads(whole: bytes) -> list[int]:
    heads, at = [], len(FORMAT)
    while at < len(whole):
        heads.append(at)
        at += FRAME.size + FRAME.unpack_from(whole, at)[0]
    return heads


def framed(*frames: Any) -> bytes:
    bodies = [frame if isinstance(frame, bytes) else msgpack.packb(frame) for frame in frames]
    return FORMAT + b"".join(FRAME.pack(len(b), zlib.crc32(b)) + b for b in bodies)


HOSTILE: list[Callable[[bytes, list[Any]], list[Any]]] = [
    lambda facts, token: [["facts", "{}"]],
    lambda facts, token: [["facts", "x" * 100]],
    lambda facts, token: [["token", [0], 0, -1, b"", b""]],
    lambda facts, token: [facts, ["token", *token[1:2], 10**6, *token[3:]]],
    lambda facts, token: [facts, ["token", *token[1:2], -1, *token[3:]]],
    lambda facts, token: [facts, ["token", [], *token[2:]]],
    lambda facts, token: [facts, ["token", ["0"], *token[2:]]],
    lambda facts, token: [facts, ["part", "node/x", msgpack.packb([[99], b""])]],
    lambda facts, token: [facts, ["part", "node/x", b"\x80\x04K\x01."]],  # a pickle
    lambda facts, token: [facts, ["part", "node/x", msgpack.packb(msgpack.ExtType(1, b"x"))]],
    lambda facts, token: [facts, ["code", "import os"]],
    lambda facts, token: [facts, ["end", 3], token],
    lambda facts, token: [facts, ["end", 3, 4]],
    lambda facts, token: [facts, {"end": 3}],
    lambda facts, token: [facts, b"\xc1"],
]


@pytest.mark.parametrize("make", HOSTILE)
def test_a_hostile_tape_is_refused_in_words(
    make: Callable[[Any, Any], list[Any]], tmp_path: Path
) -> None:
    record(tmp_path / "r", "x")
    whole = (tmp_path / "r" / "tokens.tape").read_bytes()
    heads = frame_heads(whole)
    bodies = [whole[h + FRAME.size :][: FRAME.unpack_from(whole, h)[0]] for h in heads[:2]]
    path = tmp_path / "hostile"
    path.write_bytes(framed(*make(bodies[0], msgpack.unpackb(bodies[1]))))
    with pytest.raises(RunError, match="the tape is damaged: "):
        Tape(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cartpole_dqn", "cartpole_ppo"])
def test_each_node_of_a_bundled_graph_is_replayed_bit_for_bit(name: str, tmp_path: Path) -> None:
    from flowrl.graph.loading import load_graph

    checked = check(load_graph(name)).require_sound()
    nodes = ("collector", "buffer", "learner", "evaluator")
    words = [node for node in nodes if node in checked.graph.nodes]
    tapes = set()
    for placement in ("serial", "processes"):
        limits = Limits(train_iters=12 if name == "cartpole_ppo" else 100)
        run = Run(checked, limits=limits, out=tmp_path / placement, placement=placement)
        run.recording = Recording(find_inputs(checked.graph, words))
        run.run()
        tapes.add((tmp_path / placement / "tokens.tape").read_bytes())
    assert len(tapes) == 1
    for word in words:
        result = replay_part(tape(tmp_path / "serial"), [word])
        assert result.difference == ""
        assert result.instances[0].firings >= 1
        assert result.equal or word == "evaluator"
