"""What nodes write outside of the run's folder: where it is, and that trial runs write it elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.core.errors import UsageError
from flowrl.graph.model import Graph
from flowrl.graph.output_paths import output_paths, refuse_shared_outputs, with_outputs_in

GRAPH: dict[str, Any] = {
    "extends": "cartpole_dqn",
    "nodes": {
        "buffer": {"size": 5000, "storage": {"type": "mapped", "path": "replay"}},
        "rows": {"type": "npz_writer", "path": "data/rows.h5", "rows": 100},
        "evaluator": None,
    },
    "edges": ["collector -> rows"],
}


def graph() -> Graph:
    return flowrl.load(GRAPH).check().require_sound().graph


def test_the_paths_of_parts_and_nodes_are_found() -> None:
    assert output_paths(graph()) == {"buffer.storage.path": "replay", "rows.path": "data/rows.h5"}
    assert output_paths(flowrl.load("cartpole_dqn_demos").check(envs="never").graph) == {}


def test_outputs_in_a_folder_keep_their_names_and_everything_else(tmp_path: Path) -> None:
    given = graph()
    moved = with_outputs_in(given, tmp_path)
    found = output_paths(moved)
    assert {key: Path(path).name for key, path in found.items()} == {
        "buffer.storage.path": "replay",
        "rows.path": "rows.h5",
    }
    assert all(Path(path).is_relative_to(tmp_path) for path in found.values())
    assert len({Path(path).parent for path in found.values()}) == len(found)
    assert [name for name in given.nodes if moved.nodes[name] != given.nodes[name]] == [
        "buffer",
        "rows",
    ]


def test_runs_that_would_write_the_same_files_are_refused() -> None:
    what = r"--seeds: all runs would write the same 'replay' \(buffer.storage.path\)"
    with pytest.raises(UsageError, match=what):
        refuse_shared_outputs(graph(), "--seeds")
    with pytest.raises(UsageError, match=what):
        flowrl.load(GRAPH).run_seeds(2, quiet=True)


@pytest.mark.slow
def test_two_trial_runs_do_not_meet_in_the_files_that_they_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "replay").write_text("somebody's file")
    found = flowrl.load(GRAPH).check_twice(train_iters=16)
    assert found.is_exact, found
    assert found.is_continued_exactly, found
    assert [path.name for path in tmp_path.iterdir()] == ["replay"]
