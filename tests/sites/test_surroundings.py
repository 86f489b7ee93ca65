"""Digests do not depend on environment variables, the folder or the locale."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.sites.perturbed_environment import ROOT

GRAPH = "cartpole_ppo"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
SURROUNDINGS: Mapping[str, tuple[dict[str, str | None], list[str], str]] = {
    # variables (None: not set), options of Python, the placement
    "more threads, another locale and time": (
        {
            **dict.fromkeys(THREADS, "2"),
            "LC_ALL": "tr_TR.UTF-8",
            "LANG": "de_DE.UTF-8",
            "TZ": "Asia/Tokyo",
        },
        [],
        "threads",
    ),
    "the C locale, no thread variables, no assertions": (
        {**dict.fromkeys(THREADS), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONHASHSEED": "77"},
        ["-OO"],
        "processes",
    ),
}


def digest(
    folder: Path, variables: Mapping[str, str | None], words: list[str], placement: str, graph: str
) -> str:
    """Run a graph by the command line, and return its digest."""
    folder.mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for name, value in variables.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    run = ["run", graph, "--json", "--quiet", "--seed", "3", "--train-iters", "6"]
    done = subprocess.run(
        [sys.executable, *words, "-m", "flowrl", *run, "--placement", placement, "--out", "rün"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: str = json.loads(done.stdout)["digest"]
    return found


@pytest.mark.slow
def test_the_digest_does_not_depend_on_the_environment(tmp_path: Path) -> None:
    usual = digest(tmp_path / "usual", {}, [], "serial", GRAPH)
    for name, (variables, words, placement) in SURROUNDINGS.items():
        found = digest(tmp_path / f"a folder, {name}", variables, words, placement, GRAPH)
        assert found == usual, name
    again = str(tmp_path / "usual" / "rün" / "graph.yaml")
    assert digest(tmp_path / "again", {}, [], "evaluator=process", again) == usual
