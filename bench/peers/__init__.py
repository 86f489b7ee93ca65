"""Other libraries, each in a virtual environment of its own below `.cache/peers`, made by pip."""

from __future__ import annotations

import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENVS = ROOT / ".cache" / "peers"


class NotInstalled(RuntimeError):
    """pip could not install a peer."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A library to compare with, by what pip installs."""

    name: str
    requirements: tuple[str, ...]
    alone: tuple[str, ...] = ()  # installed without what they ask for, where that cannot be met

    def python(self) -> Path:
        """The Python that has it; installs it where that has not been done."""
        folder = VENVS / self.name
        python, done = folder / "bin" / "python", folder / "installed.txt"
        wanted = "\n".join([*self.requirements, *self.alone])
        if not done.exists() or done.read_text() != wanted:
            print(f"installing {self.name} into {folder.relative_to(ROOT)}", file=sys.stderr)
            venv.create(folder, with_pip=True, clear=True)
            pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            apart = [["--no-deps", *self.alone]] if self.alone else []
            for words in [[*self.requirements], *apart]:
                ran = subprocess.run([*pip, *words], capture_output=True, text=True)
                if ran.returncode:
                    why = (ran.stderr.strip().splitlines() or ["pip said nothing"])[-1]
                    raise NotInstalled(f"{self.name} cannot be installed: {why}")
            done.write_text(wanted)
        return python


TORCH = "torch==2.13.0"  # the same for all: what is compared is what is built on it
SB3 = Peer("sb3", (TORCH, "stable-baselines3==2.9.2"))
TIANSHOU = Peer("tianshou", (TORCH, "tianshou==2.0.1"))
CPPRB = Peer("cpprb", (TORCH, "cpprb==11.0.0"))
TORCHRL = Peer("torchrl", (TORCH, "torchrl==0.14.1", "tensordict==0.14.3"))
DING_NEEDS = (
    *("gym==0.25.1", "numpy==1.26.4", "DI-treetensor", "DI-toolkit", "trueskill", "tensorboardX"),
    *("matplotlib", "easydict", "pyyaml", "enum-tools", "cloudpickle", "hickle", "tabulate"),
    *("click", "flask<=2.0.3", "werkzeug<=2.0.3", "requests", "responses", "URLObject", "pynng"),
    *("sniffio", "redis", "mpire", "einops", "wandb<=0.19.0", "yapf==0.29.0", "gymnasium"),
)
DING = Peer("ding", (TORCH, *DING_NEEDS), ("DI-engine==0.5.3",))  # it asks for setuptools<66
REVERB = Peer("reverb", ("dm-reverb[tensorflow]==0.14.0", "numpy<2"))
