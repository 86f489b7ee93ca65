"""The versions of gym that were before 0.26, as they were released: each beside its own envs stepped by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TOOLS = ("pip==23.2.1", "setuptools==65.5.0", "wheel==0.38.4")  # the last that build gym 0.21
HERE = Path(__file__).parents[3]


def pip(into: Path, *wanted: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Install into a folder, with what the environment says of where packages come from."""
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(into)]
    build = ["--no-build-isolation"] if path else []
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [*command, *build, *wanted],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Old tools to build old packages with."""
    folder = tmp_path_factory.mktemp("tools")
    done = pip(folder, *TOOLS)
    if done.returncode:
        pytest.skip(f"no registry of packages can be reached: {done.stderr.strip()[-200:]}")
    return str(folder)


@pytest.mark.parametrize("version", ["0.21.0", "0.22.0", "0.23.1", "0.24.1", "0.25.2"])
def test_envs_of_an_old_gym_give_what_they_give_by_hand(
    version: str, tools: str, tmp_path: Path
) -> None:
    if version == "0.21.0" and sys.version_info >= (3, 12):
        pytest.skip("gym 0.21 reads entry points as Python 3.11 and older tell them")
    built = pip(tmp_path / "gym", f"gym=={version}", path=tools)
    assert built.returncode == 0, built.stderr
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "gym"), str(HERE)])}
    played = subprocess.run(
        [sys.executable, "-m", "tests.nodes.envs.legacy_gym_program", version],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert played.returncode == 0, played.stderr
    assert played.stdout.splitlines()[-1] == "alike"
