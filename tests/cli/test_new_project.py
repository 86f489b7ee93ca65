"""The starting project."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flowrl.checks.check import check
from flowrl.cli.new_project import FILES, create_project
from flowrl.core.errors import UsageError
from flowrl.graph.loading import load_graph
from flowrl.graph.model import Limits
from flowrl.runs.run import Run


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project as it is written. The schema of all types takes most of the time."""
    folder = tmp_path_factory.mktemp("written") / "mine"
    create_project(folder)
    return folder


@pytest.fixture
def project(written: Path, tmp_path: Path) -> Path:
    """A copy of the project."""
    return shutil.copytree(written, tmp_path / "mine")


@pytest.mark.slow
def test_the_project_is_four_files(project: Path) -> None:
    assert sorted(p.name for p in project.iterdir()) == sorted(FILES)


@pytest.mark.slow
def test_the_next_steps_are_printed(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert create_project(folder) == (
        f"{folder}: graph.yaml, my_nodes.py, README.md, flowrl.schema.json\n\n  cd {folder}\n  flowrl run graph.yaml"
    )


def test_the_project_checks_as_written(project: Path) -> None:
    checked = check(load_graph(project / "graph.yaml"))
    assert [*checked.problems, *checked.warnings, *checked.reasons] == []


def test_the_project_runs_as_written(project: Path, tmp_path: Path) -> None:
    checked = check(load_graph(project / "graph.yaml"))
    result = Run(checked, limits=Limits(steps=4096), out=tmp_path / "run").run()
    assert result.status in ("finished", "solved")
    assert result.env_steps == 4096
    assert '"node": "upright"' in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_both_nodes_of_ones_own_change_rewards(project: Path) -> None:
    import numpy as np

    from flowrl.core.batch import Batch

    types = {n: s.cls for n, s in load_graph(project / "graph.yaml").graph.nodes.items()}
    obs = np.zeros((2, 4), np.float32)
    obs[1, 2] = 0.2  # the second row's pole leans
    rows = Batch({"reward": np.ones(2, np.float32), "next_obs": obs})
    assert types["scale"](factor=0.5).fire(rows)["reward"].tolist() == [0.5, 0.5]
    rewarded = types["upright"](weight=0.5).fire(rows)["reward"]
    assert rewarded.tolist() == pytest.approx([1.0, 0.9])
    assert rewarded.dtype == np.float32


def test_the_commands_of_the_readme_name_what_is_there(project: Path) -> None:
    block = (project / "README.md").read_text().split("```")[1]
    commands = [line.split("#")[0].split() for line in block.splitlines()[1:]]
    assert [c[:3] for c in commands] == [
        ["flowrl", verb, "graph.yaml"] for verb in ("check", "draw", "run")
    ]


@pytest.mark.slow
def test_an_existing_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    create_project(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {*FILES, "notes.txt"}


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError) as error:
        create_project(tmp_path)
    assert str(error.value) == (
        f"new: {tmp_path / name} exists already; choose another folder, or remove it"
    )
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {name: "mine"}


def test_a_file_of_that_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(UsageError) as error:
        create_project(tmp_path / "mine")
    assert str(error.value) == f"new: {tmp_path / 'mine'} is a file; give the name of a folder"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(UsageError) as error:
        create_project(tmp_path / "mine" / "below")
    assert str(error.value) == (
        f"new: {tmp_path / 'mine' / 'below'} cannot be written: Not a directory"
    )
