"""A user's program is checked by mypy as a user checks it: with flowrl as it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PROGRAM = """\
import numpy as np

import flowrl
from flowrl import Batch, In, Link, Node, Out, param
from flowrl.nodes import Dqn, Gymnasium, Learner, Mlp, SampleCollector, SerialEnvManager


class Bonus(Node):
    data = In("samples")
    other = Link("other", optional=True)
    out = Out("samples")

    class Config(flowrl.Config):
        weight: float = param(0.1, "of the bonus")

    def fire(self, data: Batch) -> Batch:
        return data


class MyDqn(Dqn):
    class Config(Dqn.Config):
        more: int = param(1, "of it")


result: flowrl.RunResult = flowrl.load("cartpole_dqn", {"policy.lr": 1e-3}).run(quiet=True)
returns: np.ndarray = result.metrics()["evaluator"]["return_mean"]
result.policy().act(np.zeros(4))
envs = SerialEnvManager(env=Gymnasium(id="CartPole-v1"), count=8, seed=0)
policy = MyDqn(obs=envs.spec().obs, action=envs.spec().action, model=Mlp(hidden=[8]), more=2)
collector = SampleCollector(envs=envs, policy=policy, n_sample=96, seed=0)
Learner(policy=policy).train(collector.collect())
Bonus(weight=0.5, other=None)

Dqn(obs=1, action=2, gama=0.9)  # wrong: Unexpected keyword argument "gama" for "Dqn"
Dqn(obs=1, action=2, gamma="0.9")  # wrong: incompatible type "str"; expected "float"
Dqn(gamma=0.9)  # wrong: Missing named argument
MyDqn(obs=1, action=2, most=2)  # wrong: Unexpected keyword argument "most" for "MyDqn"
Learner(policy)  # wrong: Too many positional arguments
Learner(policy=policy, log_every_iters=None)  # wrong: incompatible type "None"; expected "int"
Bonus(wait=0.5)  # wrong: Unexpected keyword argument "wait" for "Bonus"
flowrl.load("x").run(step=5)  # wrong: Unexpected keyword argument "step" for "run"
flowrl.laod("x")  # wrong: Module has no attribute "laod"
"""


WRONG = {
    number: line.partition("# wrong: ")[2]
    for number, line in enumerate(PROGRAM.splitlines(), 1)
    if "# wrong: " in line
}


def check_program(folder: Path, *arguments: str, mypy_path: str = "") -> None:
    """Let mypy check the program, and compare what it reports."""
    (folder / "program.py").write_text(PROGRAM)
    (folder / "mypy.ini").write_text(
        f"[mypy]\nstrict = true\nplugins = flowrl.mypy_plugin\nmypy_path = {mypy_path}\n"
        "[mypy-flowrl.*]\nfollow_imports = silent\n"
    )
    command = [sys.executable, "-m", "mypy", *arguments, "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    reported: dict[int, str] = {}
    for line in done.stdout.splitlines():
        if found := re.match(r"program\.py:(\d+): error: (.*)", line):
            reported[int(found[1])] = reported.get(int(found[1]), "") + found[2]
    assert reported.keys() == WRONG.keys(), done.stdout + done.stderr
    for number, expected in WRONG.items():
        assert expected in reported[number]


@pytest.mark.slow
def test_mypy_sees_the_keywords_of_nodes_and_parts(tmp_path: Path) -> None:
    packages = tmp_path / "site" / "flowrl"  # links in the places where a wheel puts its packages
    packages.mkdir(parents=True)
    for path in (*(ROOT / "flowrl").iterdir(), ROOT / "nodes", ROOT / "graphs"):
        (packages / path.name).symlink_to(path)
    check_program(tmp_path, mypy_path="site")


@pytest.mark.slow
def test_mypy_sees_an_editable_install(tmp_path: Path) -> None:
    checkout, env = tmp_path / "checkout", tmp_path / "env"
    checkout.mkdir()
    for name in ("flowrl", "nodes", "graphs", "docs", "README.md", "LICENSE"):
        (checkout / name).symlink_to(ROOT / name)
    for name in ("setup.py", "setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    build = "import setuptools.build_meta as b; b.build_editable('dist')"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=checkout, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr

    venv.create(env)
    python = env / "bin" / "python"
    (site,) = env.glob("lib/python3*/site-packages")
    with zipfile.ZipFile(next((checkout / "dist").glob("*.whl"))) as wheel:
        wheel.extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    imported = subprocess.run(
        [python, "-c", "import flowrl.nodes; print(flowrl.__file__, flowrl.nodes.__file__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    files = [Path(path).relative_to(ROOT) for path in imported.stdout.split()]
    assert files == [Path("flowrl/__init__.py"), Path("nodes/__init__.py")]
    check_program(tmp_path, "--python-executable", str(python))
