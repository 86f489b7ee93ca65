"""What a run notes of its machine and its project."""

from __future__ import annotations

import subprocess
from pathlib import Path

from flowrl.machine import environment

git_state = environment.git_state.__wrapped__  # tests/conftest.py caches it


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_of_a_project_and_whether_it_has_changes(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None  # nothing is committed yet
    file, below = tmp_path / "graph.yaml", tmp_path / "below"
    file.write_text("seed: 1\n")
    below.mkdir()
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_state(below) == {"commit": commit, "changed": False}
    (tmp_path / "notes.txt").write_text("not tracked\n")
    assert git_state(below) == {"commit": commit, "changed": False}
    file.write_text("seed: 2\n")
    assert git_state(below) == {"commit": commit, "changed": True}
