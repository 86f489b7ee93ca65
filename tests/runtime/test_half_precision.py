"""An edge with `dtype: float16` rounds float32 numbers, in every placement, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.checks.check import check
from flowrl.core.batch import Batch
from flowrl.core.errors import NodeError
from flowrl.core.saved_state import SavedState
from flowrl.core.state import State
from flowrl.graph.loading import load_data
from flowrl.graph.model import Edge, Limits, PortRef
from flowrl.graph.yaml_text import SourceLocation
from flowrl.runs.run import Run
from flowrl.runs.tape_replay import replay_part
from flowrl.runtime.half_precision import EdgeRounding, rounded
from tests.runs.test_record import record, tape
from tests.runtime.number_nodes import FRACTIONS
from tests.sites.test_same_bits import HALF, with_fractions
from tests.toys.toy_runs import run

THIRD = np.array([1 / 3, -1 / 3, 65504, 1e-9, np.inf], np.float32)
HALF_THIRD = THIRD.astype(np.float16).astype(np.float32)
EXACT: dict[str, Any] = {}


def bits(*arrays: Any) -> list[bytes]:
    return [array.tobytes() for array in arrays]


def test_only_float32_numbers_are_rounded_and_their_dtype_stays() -> None:
    columns = {
        "single": THIRD,
        "double": THIRD.astype(np.float64) / 3,
        "half": HALF_THIRD.astype(np.float16),
        "whole": np.arange(5) + 70_000,
        "flag": np.arange(5) % 2 == 0,
        "image": np.arange(5, dtype=np.uint8),
    }
    found = rounded(Batch(columns))
    assert found.schema == Batch(columns).schema
    assert bits(found["single"]) == bits(HALF_THIRD)
    others = [name for name in columns if name != "single"]
    assert bits(*(found[n] for n in others)) == bits(*(columns[n] for n in others))
    assert not found["single"].flags.writeable


def test_arrays_within_other_values_are_rounded_too() -> None:
    one, (two, three) = rounded([{"x": THIRD}, (THIRD, "text")])
    assert bits(one["x"], two) == bits(HALF_THIRD, HALF_THIRD)
    assert three == "text"


def test_the_order_of_axes_in_memory_stays() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T / 7
    assert rounded(array).strides == array.strides


def test_of_a_state_the_arrays_are_rounded_and_the_rest_is_exact() -> None:
    whole = SavedState({"w": THIRD}, "{}")
    state = State({"w": THIRD}, {"third": 1 / 3}, 7, whole=whole)
    found = rounded(state)
    assert bits(found.arrays["w"]) == bits(HALF_THIRD)
    assert (found.command, found.version, found.whole) == (state.command, 7, whole)


def test_a_state_that_several_consumers_read_is_rounded_once() -> None:
    ends = (PortRef("l", "weights"),), PortRef("c", "weights")
    rounding = EdgeRounding(Edge("state", *ends, SourceLocation("g"), dtype="float16"))
    state = State({"w": THIRD})
    assert rounding.rounded_state(state) is rounding.rounded_state(state)


@pytest.mark.parametrize("number", [65519.0, -65519.0])
def test_numbers_below_the_largest_one_of_half_precision_are_rounded_to_it(number: float) -> None:
    assert abs(rounded(np.array([number], np.float32))[0]) == 65504


@pytest.mark.parametrize("number", [65520.0, -1e30])
def test_a_number_that_half_precision_cannot_hold_is_an_error(number: float) -> None:
    words = f"'x' holds {number:g}, and float16 holds at most 65504; remove `dtype: float16`"
    with pytest.raises(ValueError, match=re.escape(words)):
        rounded(Batch({"x": np.array([1, number], np.float32)}))


def logs(*options: dict[str, Any], lag: int = 1) -> tuple[list[str], list[str], list[str]]:
    """Return what the collector, the learner and the evaluator have read."""
    trace = run(with_fractions(*options, lag=lag), rounds=6)[1]
    return trace.lines_of("c"), trace.lines_of("l"), trace.lines_of("e")


@pytest.mark.parametrize("lag", [0, 2])
def test_each_edge_rounds_for_itself(lag: int) -> None:
    collector, learner, evaluator = logs(EXACT, EXACT, EXACT, lag=lag)
    assert [*logs(EXACT, EXACT, HALF, lag=lag)][:2] == [collector, learner]
    lines = logs(EXACT, EXACT, HALF, lag=lag)[2]
    for line, exact in zip(lines, evaluator, strict=True):
        read, expected = line.split(), exact.split()
        assert read[0] == half_of(expected[0])
        assert read[1:] == expected[1:]
    assert lines != evaluator
    read = logs(EXACT, HALF, EXACT, lag=lag)[0][: lag + 2]
    assert [line.split()[0] for line in read] == [
        half_of(line.split()[0]) for line in collector[: lag + 2]
    ]
    first = logs(HALF, EXACT, EXACT, lag=lag)[1][0].split()
    assert first == [half_of(learner[0].split()[0]), *learner[0].split()[1:]]


def half_of(text: str) -> str:
    """Return the hexadecimal bytes of the rounded float32 numbers."""
    numbers = np.frombuffer(bytes.fromhex(text), np.float32)
    return numbers.astype(np.float16).astype(np.float32).tobytes().hex()


@pytest.mark.parametrize("placement", ["serial", "threads"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((HALF, EXACT, EXACT), "node 'c', giving what c.data -> l.data carries: ValueError: 'x'"),
        ((EXACT, HALF, EXACT), "node 'l', giving what l.weights -> c.weights carries: "),
        ((EXACT, EXACT, HALF), "node 'l', giving what l.weights -> e.weights carries: "),
    ],
    ids=["stream", "lagged", "paced"],
)
def test_a_number_that_is_too_large_names_the_edge_in_every_placement(
    placement: str, options: Any, words: str, tmp_path: Path
) -> None:
    graph = with_fractions(*options)
    graph["nodes"]["c"]["scale"] = 1e5
    limits = Limits(train_iters=9)
    with pytest.raises(NodeError, match=re.escape(words)):
        Run(check(load_data(graph)), placement=placement, out=tmp_path / "r", limits=limits).run()


@pytest.mark.parametrize("node", ["c", "l", "e"])
def test_a_node_is_replayed_with_what_its_edges_have_rounded(node: str, tmp_path: Path) -> None:
    record(tmp_path, *"cle", data=with_fractions(HALF, HALF, HALF), train_iters=7)
    result = replay_part(tape(tmp_path), [node])
    assert not result.difference
    assert result.instances[0].firings > 1
    assert list(result.equal) == {"c": ["c.data -> l.data"], "e": []}.get(
        node, ["l.weights -> c.weights", "l.weights -> e.weights"]
    )


def test_the_columns_of_the_nodes_cover_the_kinds_of_numbers() -> None:
    assert {column.dtype for column in FRACTIONS.values()} == {"float32", "float64", "int64"}
