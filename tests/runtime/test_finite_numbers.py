"""NaN and infinite numbers are told where they first appear, and in-place writes say what to do instead."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.checks.check import check
from flowrl.core.batch import Batch
from flowrl.core.errors import NodeError
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.run import Run
from flowrl.runtime.finite_numbers import check_finite_columns, check_no_nan
from tests.toys.toy_runs import run, toy_graph

NODES = "tests.runtime.number_nodes:"


def spoiled(learner: dict[str, Any] | None = None, **spoiler: Any) -> dict[str, Any]:
    """Rows pass a node that spoils them and a node that passes them on, on their way to a learner."""
    nodes = {
        "c": f"{NODES}Rows",
        "s": {"type": f"{NODES}Spoiler", **spoiler},
        "r": {"type": f"{NODES}Spoiler", "firing": 99},
        "l": {"type": f"{NODES}RowLearner", **(learner or {})},
        "e": "Evaluator",
    }
    return toy_graph(nodes, ["c -> s -> r -> l", {"l.weights -> e": {"every": 2}}])


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("column", ["reward", "obs"])
def test_the_node_firing_and_column_are_named(column: str, value: str) -> None:
    words = (
        f"node 's', firing 3 (round 3): InvalidResultError: output 'out': the column '{column}' holds {value} in 1 of "
        "4 rows (the first: row 2), and a learner learns from this column; "
    )
    with pytest.raises(NodeError, match=re.escape(words)):
        run(spoiled(column=column, value=value), rounds=9)


@pytest.mark.parametrize(
    "placement", ["threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_they_are_named_in_every_placement(placement: str, tmp_path: Path) -> None:
    out, limits = tmp_path / "r", Limits(train_iters=9)
    with pytest.raises(NodeError, match=r"node 's', firing 3 \(round 3\): .*'reward' holds nan"):
        Run(check(load_data(spoiled())), placement=placement, out=out, limits=limits).run()


def test_columns_that_no_learner_learns_from_may_hold_anything() -> None:
    run(spoiled(column="note", value="inf"), rounds=9)


def test_a_node_that_states_to_make_no_numbers_is_not_checked() -> None:
    with pytest.raises(NodeError, match="node 'r', firing 3"):
        run(spoiled(passes_on=True), rounds=9)


def test_the_first_firing_is_checked_too() -> None:
    with pytest.raises(NodeError, match="node 's', firing 0"):
        run(spoiled(firing=0), rounds=9)


def test_weights_that_become_nan_are_told_with_their_version() -> None:
    words = (
        "node 'l', giving its state 'weights': InvalidResultError: learning has diverged: in version 4, 1 of 2 weights "
        "hold nan (the first: 'mean'), and version 2 held none; take a lower `lr`"
    )
    with pytest.raises(NodeError, match=re.escape(words)):
        run(spoiled({"diverges_in": 3}, firing=99), rounds=9)


def test_large_numbers_whose_squares_are_infinite_are_finite() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        large = np.full((5, 3), np.finfo(dtype).max, dtype)
        check_finite_columns("out", Batch({"x": large, "y": np.asfortranarray(large)}), ["x", "y"])
        check_no_nan({"x": np.full(3, np.inf, dtype), "n": np.zeros(2, np.int64)}, 1, 0)


@pytest.mark.parametrize("size", [2, 500, 501, 4000])
def test_infinite_numbers_of_both_signs_are_not_nan_but_not_finite(size: int) -> None:
    numbers = np.zeros(size, np.float32)
    numbers[0], numbers[-1] = np.inf, -np.inf
    check_no_nan({"x": numbers}, 1, 0)
    with pytest.raises(ValueError, match="holds inf in 2 of"):
        check_finite_columns("out", Batch({"x": numbers.copy()}), ["x"])
    numbers[-1] = np.nan
    with pytest.raises(ValueError, match="1 of 1 weights hold nan"):
        check_no_nan({"x": numbers}, 1, 0)


def test_tokens_without_rows_are_finite() -> None:
    check_finite_columns("out", Batch({"x": np.zeros((0, 3), np.float32)}), ["x", "other"])


def test_an_in_place_write_says_what_to_do_instead() -> None:
    nodes = {"c": f"{NODES}Rows", "h": f"{NODES}halve_in_place", "d": "Drain"}
    graph = toy_graph(nodes, ["c -> h -> d"])
    words = (
        "node 'h', firing 0 (round 0): ValueError: output array is read-only; the arrays of batches"
    )
    with pytest.raises(NodeError, match=rf"{re.escape(words)}.*`batch.replace\(name=array\)`"):
        run(graph, rounds=1)
