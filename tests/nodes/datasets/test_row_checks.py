"""Demonstrations are checked against the spaces of the env when they are read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.errors import NodeError
from flowrl.core.facts import UnsoundError
from flowrl.nodes.datasets.dataset_reader import DatasetReader
from flowrl.nodes.datasets.metadata import ARRAY_NAME
from flowrl.nodes.datasets.npz import read, read_schema, write
from flowrl.nodes.datasets.row_checks import require_valid_rows
from flowrl.nodes.envs.gymnasium import Gymnasium

CARTPOLE = {"obs": Column("float32", (4,)), "action": Column("int64", n=2)}


def table(rows: int = 5, **columns: Any) -> Batch:
    """Rows of CartPole, with some columns replaced."""
    zeros = {
        "obs": np.zeros((rows, 4), np.float32),
        "next_obs": np.zeros((rows, 4), np.float32),
        "action": np.zeros(rows, np.int64),
        "reward": np.ones(rows, np.float32),
        "terminated": np.zeros(rows, np.bool_),
        "last": np.ones(rows, np.bool_),
    }
    return Batch({**zeros, **columns})


def with_value(name: str, row: int, value: float) -> Batch:
    array = table()[name].copy()
    array[row] = value
    return table(**{name: array})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (with_value("action", 3, 2), "'action' has 2 in row 3; expected 0 to 1"),
        (with_value("action", 1, -1), "'action' has -1 in row 1; expected 0 to 1"),
        (with_value("obs", 2, np.nan), "'obs' has [nan nan nan nan] in row 2; expected finite num"),
        (with_value("next_obs", 4, np.inf), "'next_obs' has [inf inf inf inf] in row 4; expected"),
        (with_value("reward", 0, np.nan), "'reward' has nan in row 0; expected finite numbers, al"),
        (table(obs=np.zeros((5, 3))), "'obs' is float64[3]; the space of the env is float32[4]"),
    ],
)
def test_the_first_wrong_row_is_named(tmp_path: Path, rows: Batch, message: str) -> None:
    path = tmp_path / "demos.npz"
    write(path, rows)
    with pytest.raises(UnsoundError, match=re.escape(f"'{path}': the column {message}")):
        DatasetReader(path=str(path), env=Gymnasium(id="CartPole-v1"))


def test_choices_are_within_their_bounds_and_real_actions_are_finite(tmp_path: Path) -> None:
    choices = {"action": Column("int64", (2,), low=(0.0, 0.0), high=(2.0, 4.0))}
    require_valid_rows(tmp_path, Batch({"action": np.array([[2, 4]])}), choices)
    with pytest.raises(UnsoundError, match=r"'action' has \[3 0\] in row 1; expected 0 to 4"):
        require_valid_rows(tmp_path, Batch({"action": np.array([[2, 4], [3, 0]])}), choices)
    torques = {"action": Column("float32", (1,), low=(-2.0,), high=(2.0,))}
    require_valid_rows(tmp_path, Batch({"action": np.array([[9.0]])}), torques)
    with pytest.raises(UnsoundError, match=r"'action' has \[nan\] in row 0; expected finite num"):
        require_valid_rows(tmp_path, Batch({"action": np.array([[np.nan]])}), torques)


@given(st.lists(st.integers(-2, 3), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_the_first_row_outside_of_the_space_is_found(actions: list[int]) -> None:
    wrong = [k for k, action in enumerate(actions) if not 0 <= action < 2]
    rows = table(len(actions), action=np.array(actions))
    if not wrong:
        require_valid_rows(Path("f"), rows, CARTPOLE)
        return
    with pytest.raises(UnsoundError, match=rf"in row {wrong[0]}; expected 0 to 1"):
        require_valid_rows(Path("f"), rows, CARTPOLE)


def test_without_an_env_numbers_are_finite(tmp_path: Path) -> None:
    path = tmp_path / "demos.npz"
    write(path, with_value("action", 3, 7))
    assert DatasetReader(path=str(path)).fire()["action"].max() == 7
    write(path, with_value("obs", 3, np.nan))
    with pytest.raises(UnsoundError, match="in row 3; expected finite numbers"):
        DatasetReader(path=str(path))


def test_impossible_actions_end_a_run_before_its_first_step(tmp_path: Path) -> None:
    rows = table(40, action=np.full(40, 7), truncated=np.zeros(40, np.bool_))
    write(tmp_path / "bad.npz", rows)
    graph = flowrl.load("cartpole_dqn_demos", {"demos.path": str(tmp_path / "bad.npz")})
    with pytest.raises(NodeError, match=r"node 'demos'.*'action' has 7 in row 0; expected 0 to 1"):
        graph.run(train_iters=1, out=tmp_path / "run", quiet=True)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] == 0


@pytest.mark.parametrize(
    "metadata",
    [
        b"[" * 100_000,
        b"\xff",
        b"{}",
        json.dumps({"columns": [], "rows": {}}).encode(),
        json.dumps({"columns": {"action": {"n": "two"}}, "rows": {}}).encode(),
        json.dumps({"columns": {"action": 3}, "rows": {}}).encode(),
        json.dumps({"columns": {}, "rows": {"nstep": "three"}}).encode(),
    ],
)
def test_malformed_metadata_is_refused(tmp_path: Path, metadata: bytes) -> None:
    path = tmp_path / "demos.npz"
    np.savez(path, action=np.zeros(3, np.int64), **{ARRAY_NAME: np.frombuffer(metadata, np.uint8)})
    with pytest.raises(UnsoundError, match=f"'{path}' cannot be read: "):
        read_schema(path)


@given(st.integers(0, 1500), st.binary(min_size=1, max_size=8))
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, place: int, damage: bytes) -> None:
    path = tmp_path / "demos.npz"
    write(path, table())
    whole = path.read_bytes()
    path.write_bytes(whole[:place] + damage + whole[place + len(damage) :])
    try:
        read(path)
    except UnsoundError as error:
        refusal = str(error)
        assert str(path) in refusal
