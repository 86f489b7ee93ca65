"""Standard output has the requested output, and nothing that envs or libraries print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHATTERING = ["--set", "env.id=tests.nodes.env_managers.failing_envs:PrintingEnv"]
SAID = ("hello from Python", "hello from C")


def flowrl(*words: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process with real streams."""
    called = [sys.executable, "-m", "flowrl", *words, *CHATTERING]
    return subprocess.run(called, capture_output=True, text=True, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["serial", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_runs_json_is_all_of_its_output_whatever_envs_print(
    placement: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "run")
    where = ["--placement", placement, "--out", out, "--train-iters", "2"]
    done = flowrl("run", "cartpole_dqn", "--json", *where)
    assert json.loads(done.stdout)["status"] == "finished"
    if placement == "serial":
        assert [text for text in SAID if text not in done.stderr] == []


@pytest.mark.slow
def test_an_env_that_changes_the_working_folder_takes_no_run_with_it(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "flowrl", "run", "cartpole_dqn", "--json", "--out", "there"]
    env = [
        "--set",
        "env.id=tests.nodes.env_managers.failing_envs:FolderChangingEnv",
        "--train-iters",
        "2",
    ]
    path = os.pathsep.join(map(os.path.abspath, filter(None, [os.curdir, *sys.path])))
    found = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([*words, *env], capture_output=True, text=True, cwd=tmp_path, env=found)
    assert json.loads(done.stdout)["status"] == "finished", done.stderr
    assert json.loads((tmp_path / "there" / "summary.json").read_text())["run_dir"] == "there"
    assert (tmp_path / "there" / "checkpoints" / "last.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "begins"), [(("check", "--json"), '{"ok": true'), (("draw",), "digraph")]
)
def test_the_output_of_reading_a_graph_is_only_the_answer(
    words: tuple[str, ...], begins: str
) -> None:
    done = flowrl(words[0], "cartpole_dqn", *words[1:])
    assert done.stdout.startswith(begins)
    assert [text for text in SAID if text in done.stdout or text not in done.stderr] == []
