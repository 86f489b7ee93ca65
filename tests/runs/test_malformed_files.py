"""Readers of files: whatever a file holds, the answer is a value, or one line that names the file."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from flowrl.core.checkpoint import read_acting
from flowrl.core.errors import RunError, UsageError
from flowrl.core.json_text import parse_json, parse_object
from flowrl.nodes.env_managers.crash_files import CrashFile
from flowrl.runs.evaluation import _version_warnings
from flowrl.runs.learning_curves import read_run

DEEP = "[" * 100_000
META = {
    "format": "flowrl checkpoint 1",
    "act": {"learner": {"names": ["w"], "command": {}}},
    "learn": {},
    "digests": {"act": "520c9039935c76644a358d1a5aeb95c9ebbc6b9bad4c452db62c73bcb1ad7c59"},
    "version": 3,
    "env_steps": 4,
    "train_iters": 5,
    "info": {"eval_return": 1.0},
}
EVALUATION = {"node": "evaluator", "role": "evaluator", "env_steps": 3, "return_mean": 1.0}
CRASH: dict[str, Any] = {
    "format": "flowrl env crash 2",
    "env": {"$call": "tests.nodes.toy_envs:CountingEnv"},
    "make_index": 0,
    "index": 1,
    "seed": 2,
    "options": {},
    "step": 1,
    "what": "step raised",
    "traceback": "",
    "timeout_s": None,
    "complete": True,
    "dtype": "int64",
    "actions": [0],
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
few = settings(max_examples=25, deadline=None)


def changes_of(content: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The content with one value replaced by another one, or left out."""

    def changed(key: str, value: Any) -> dict[str, Any]:
        return {k: v if k != key else value for k, v in content.items() if k != key or value != ()}

    return st.builds(changed, st.sampled_from(sorted(content)), json_values | st.just(()))


def checkpoint(folder: Path, metadata: str) -> Path:
    path = folder / "c.safetensors"
    save_file({"act/learner/w": np.zeros(2, np.float32)}, path, {"flowrl": metadata})
    return path


def metrics(folder: Path, *lines: str) -> Path:
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_text_that_is_nested_too_deeply_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(DEEP)
    with pytest.raises(ValueError, match="expected an object, not list"):
        parse_object("[]")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (json.dumps({**META, "act": [1]}), "its 'act' is no object"),
        (json.dumps({**META, "act": {"learner": 1}}), "the command of 'learner' is no object"),
        (json.dumps({**META, "act": {}}), "it has no weights"),
        (json.dumps({**META, "env_steps": float("inf")}), "cannot convert float infinity"),
        (json.dumps({**META, "digests": {}}), "it is damaged: the digest of its part 'act'"),
        (json.dumps({**META, "format": "x"}), "its format is 'x'; expected 'flowrl checkpoint 1'"),
        (json.dumps({"format": "flowrl checkpoint 1"}), "it has no 'act'"),
        (DEEP, "nested too deeply"),
        ("[]", "expected an object, not list"),
    ],
)
def test_a_malformed_checkpoint_is_refused(tmp_path: Path, metadata: str, message: str) -> None:
    path = checkpoint(tmp_path, metadata)
    with pytest.raises(RunError, match=f"{path}: is not a checkpoint of flowrl: .*{message}"):
        read_acting(path)


@few
@given(changes_of(META))
def test_a_changed_checkpoint_is_read_or_refused(meta: dict[str, Any]) -> None:
    refusal = ""
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint(Path(folder), json.dumps(meta))
        try:
            state, _ = read_acting(path)
            assert isinstance(state.command, dict)
        except RunError as error:
            refusal = str(error)
    assert refusal.startswith(f"{path}: is not a checkpoint" if refusal else "")


def test_a_malformed_environment_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text(DEEP)
    (warning,) = _version_warnings(tmp_path)
    assert "environment.json: cannot be read: it is nested too deeply" in warning


@pytest.mark.parametrize("line", [DEEP, "[]", "3", "null"])
def test_metrics_that_are_no_objects_are_refused(tmp_path: Path, line: str) -> None:
    run = metrics(tmp_path, line, json.dumps(EVALUATION))
    with pytest.raises(RunError, match=r"metrics.jsonl:1: is not a JSON object; the file is dam"):
        read_run(run)


@pytest.mark.parametrize("text", [b"# \xff\n", b"a: [", b""])
def test_a_resolved_graph_that_is_no_yaml_is_refused(tmp_path: Path, text: bytes) -> None:
    run = metrics(tmp_path, json.dumps(EVALUATION))
    (run / "graph.yaml").write_bytes(text)
    with pytest.raises(RunError, match=r"graph.yaml.*; the file is damaged"):
        read_run(run)


@few
@given(changes_of(EVALUATION))
def test_changed_metrics_are_drawn_or_refused(row: dict[str, Any]) -> None:
    refusal = ""
    with tempfile.TemporaryDirectory() as folder:
        run = metrics(Path(folder), json.dumps(row))
        (run / "summary.json").write_text(DEEP)
        (run / "graph.yaml").write_bytes(b"seed: x\nnodes: 3\nedges: [a -> b, 3, {to: []}]\n")
        try:
            (points,) = read_run(run).curves.values()
            assert all(abs(step) < 1e300 for step, _ in points)
        except RunError as error:
            refusal = str(error)
    assert refusal.startswith(str(run) if refusal else "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, r"seed is -1; expected 0 to 2\^63 - 1"),
        ({"seed": 1.5}, "expected int, not 1.5"),
        ({"actions": 3}, "expected list, not 3"),
        ({"actions": [[1], [1, 2]]}, "its actions are not numbers of the type int64"),
        ({"dtype": "object"}, "its actions of the type object are not finite numbers"),
        ({"dtype": "nonsense"}, "its actions are not numbers of the type nonsense"),
        ({"dtype": "float32", "actions": [float("nan")]}, "are not finite numbers"),
        ({"timeout_s": 0}, "timeout_s is 0; expected null or a number above 0"),
        ({"env": []}, "expected dict"),
        ({"more": 1}, "expected the fields of CrashFile"),
    ],
)
def test_a_malformed_crash_file_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "crash.json"
    path.write_text(json.dumps({**CRASH, **change}))
    with pytest.raises(
        UsageError, match=f"{path}: is neither a tape nor a crash file; .*{message}"
    ):
        CrashFile.read(path)


@pytest.mark.parametrize("content", [DEEP.encode(), b"\xff", b"[]", b"", b"{}"])
def test_what_is_no_json_object_is_no_crash_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "crash.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"{path}: is neither a tape nor a crash file; "):
        CrashFile.read(path)


@few
@given(changes_of(CRASH))
def test_a_changed_crash_file_is_read_or_refused(data: dict[str, Any]) -> None:
    refusal = ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "crash.json"
        path.write_text(json.dumps(data))
        try:
            CrashFile.read(path).action_array()
        except UsageError as error:
            refusal = str(error)
    assert refusal.startswith(f"{path}: is neither a tape nor a crash file; " if refusal else "")
