"""A checkout that is not installed, run from its root."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages with their compiled modules, so that Python does not compile all of them again."""
    at = tmp_path_factory.mktemp("checkout")
    for name in ("flowrl", "nodes", "graphs"):
        shutil.copytree(ROOT / name, at / name)
    return at


def python(at: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`-S` leaves .pth files (and so the editable install) out; packages come by PYTHONPATH."""
    env = {**os.environ, "PYTHONPATH": sysconfig.get_paths()["purelib"]}
    return subprocess.run(
        [sys.executable, "-S", *words],
        cwd=at,
        env=env,
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )


def test_nothing_of_the_installed_package_is_seen(checkout: Path) -> None:
    code = (
        "import flowrl, flowrl.nodes, flowrl.graphs as g; print(flowrl.nodes.__file__, g.__file__)"
    )
    done = python(checkout, "-c", code)
    assert done.stdout.split() == [
        str(checkout / "nodes" / "__init__.py"),
        str(checkout / "graphs" / "__init__.py"),
    ], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["check", "cartpole_dqn"], "cartpole_dqn: sound. "),
        (["graphs"], "cartpole_ppo"),
        (["nodes", "learner"], "learner"),
        (["run", "cartpole_dqn", "--train-iters", "3"], "finished: 3 train iterations"),
    ],
)
def test_it_works_from_its_root(words: list[str], text: str, checkout: Path) -> None:
    done = python(checkout, "-m", "flowrl", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert text in done.stdout
