"""Released versions of gym before 0.26: an env manager gives the same steps as stepping the envs directly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.exhaustive  # they download packages

# The last versions that build gym 0.21.
TOOLS = ("pip==23.2.1", "setuptools==65.5.0", "wheel==0.38.4")
REPOSITORY = Path(__file__).parents[3]


def pip(into: Path, *wanted: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Install packages into a folder."""
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
    """A folder with old build tools."""
    folder = tmp_path_factory.mktemp("tools")
    done = pip(folder, *TOOLS)
    if done.returncode:
        pytest.skip(f"no package registry can be reached: {done.stderr.strip()[-200:]}")
    return str(folder)


@pytest.mark.parametrize("version", ["0.21.0", "0.22.0", "0.23.1", "0.24.1", "0.25.2"])
def test_envs_of_an_old_gym_give_the_same_steps_as_directly(
    version: str, tools: str, tmp_path: Path
) -> None:
    if version == "0.21.0" and sys.version_info >= (3, 12):
        pytest.skip("gym 0.21 needs the entry points of Python 3.11 or older")
    built = pip(tmp_path / "gym", f"gym=={version}", path=tools)
    assert built.returncode == 0, built.stderr
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "gym"), str(REPOSITORY)]),
    }
    process = subprocess.run(
        [sys.executable, "-m", "tests.nodes.envs.legacy_gym_program", version],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == "equal"
