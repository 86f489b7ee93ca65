"""The libraries that flowrl is compared with; pip installs each into a virtual environment in `.cache/peers`.

A module of this package that measures a library runs in that library's own Python, and prints its results
as one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VENVS = ROOT / ".cache" / "peers"
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")}

Row = Mapping[str, Any]  # the results of one program, or {"failed": reason}


class InstallError(RuntimeError):
    """pip could not install a peer."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A library to compare with."""

    name: str
    requirements: tuple[str, ...]
    without_dependencies: tuple[str, ...] = ()  # requirements whose dependencies cannot be met

    def python(self) -> Path:
        """The Python of the library's virtual environment, which is made at the first call."""
        folder = VENVS / self.name
        python, done = folder / "bin" / "python", folder / "installed.txt"
        wanted = "\n".join([*self.requirements, *self.without_dependencies])
        if done.exists() and done.read_text() == wanted:
            return python
        print(f"installing {self.name} into {folder.relative_to(ROOT)}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        installs = [list(self.requirements)]
        if self.without_dependencies:
            installs.append(["--no-deps", *self.without_dependencies])
        for words in installs:
            ran = subprocess.run([*pip, *words], capture_output=True, text=True)
            if ran.returncode:
                reason = (ran.stderr.strip().splitlines() or ["pip printed no message"])[-1]
                raise InstallError(f"{self.name} cannot be installed: {reason}")
        done.write_text(wanted)
        return python


def run_program(peer: Peer | None, program: str, words: Sequence[str], timeout_s: float) -> Row:
    """Run `bench.peers.PROGRAM` in a peer's Python (None: in this one), with one thread."""
    try:
        python = sys.executable if peer is None else str(peer.python())
        ran = subprocess.run(
            [python, "-m", f"bench.peers.{program}", *words],
            cwd=ROOT,
            env={**os.environ, **ONE_THREAD},
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except InstallError as error:
        return {"failed": str(error).replace(str(ROOT), ".")}
    except subprocess.TimeoutExpired as error:
        return {"failed": f"timed out after {error.timeout:g} seconds"}
    lines = [] if ran.returncode else [s for s in ran.stdout.splitlines() if s.startswith("{")]
    if not lines:
        return {"failed": (ran.stderr.strip().splitlines() or ["no message"])[-1]}
    row: Row = json.loads(lines[-1])
    return row


@dataclass(frozen=True, slots=True)
class Contender:
    """One of the ways in which a library does what is measured."""

    library: str
    kind: str
    peer: Peer | None = None  # None: this Python has the library
    group: str = ""  # the contenders of a group are compared with each other

    @property
    def name(self) -> str:
        return f"{self.library}_{self.kind}"

    def run(self, task: str, words: Sequence[str], timeout_s: float) -> Row:
        """Run the library's program for this task, `bench.peers.LIBRARY_TASK`."""
        return run_program(self.peer, f"{self.library}_{task}", [self.kind, *words], timeout_s)


TORCH = "torch==2.13.0"  # the same for all libraries, so that torch is not what is compared
ENVS = ("box2d==2.3.10", "mujoco==4.0.0")  # of LunarLander and Hopper
SB3 = Peer("sb3", (TORCH, "stable-baselines3==2.9.2", *ENVS))
ATARI = ("ale-py==0.12.1", "opencv-python-headless==5.0.0.93")  # of stable-baselines3's wrappers
SB3_ATARI = Peer("sb3_atari", (*SB3.requirements, *ATARI))
SBX = Peer("sbx", (TORCH, "stable-baselines3==2.9.2", "sbx-rl==0.28.0", *ENVS))
TIANSHOU = Peer("tianshou", (TORCH, "tianshou==2.0.1", *ENVS))
CPPRB = Peer("cpprb", (TORCH, "cpprb==11.0.0"))
TORCHRL = Peer("torchrl", (TORCH, "torchrl==0.14.1", "tensordict==0.14.3"))
DING_DEPENDENCIES = (
    *("gym==0.25.1", "numpy==1.26.4", "DI-treetensor", "DI-toolkit", "trueskill", "tensorboardX"),
    *("matplotlib", "easydict", "pyyaml", "enum-tools", "cloudpickle", "hickle", "tabulate"),
    *("click", "flask<=2.0.3", "werkzeug<=2.0.3", "requests", "responses", "URLObject", "pynng"),
    *("sniffio", "redis", "mpire", "einops", "wandb<=0.19.0", "yapf==0.29.0", "gymnasium"),
    *("box2d==2.3.10", "mpe2==1.1.1"),
)
# DI-engine itself is installed apart, because it requires setuptools<66.
DING = Peer("ding", (TORCH, *DING_DEPENDENCIES), ("DI-engine==0.5.3",))
BENCHMARL = Peer("benchmarl", (TORCH, "benchmarl==1.5.2", "torchrl==0.11.1", "mpe2==1.1.1"))
# `imitation` is installed apart, because it also requires what its losses do not need, such as `datasets`.
IMITATION_DEPENDENCIES = (
    *("stable-baselines3==2.2.1", "gymnasium==0.29.1", "numpy<2", "tensorboard", "tqdm", "rich"),
    *("scikit-learn", "matplotlib"),
)
IMITATION = Peer("imitation", (TORCH, *IMITATION_DEPENDENCIES), ("imitation==1.0.1",))
D3RLPY = Peer("d3rlpy", (TORCH, "d3rlpy==2.8.1"))
REVERB = Peer("reverb", ("dm-reverb[tensorflow]==0.14.0", "numpy<2"))
