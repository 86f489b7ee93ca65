"""Envs that differ when their episodes are replayed, or whose episodes depend on earlier ones."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

from tests.nodes.toy_envs import CountingEnv


class ChangedByFile(CountingEnv):
    """Behaves differently once a file exists."""

    def __init__(self, mark: str) -> None:
        super().__init__(length=50)
        self.mark = Path(mark)


class ChangedReward(ChangedByFile):
    """The reward of the third step changes."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        obs, reward, *rest = super().step(action)
        return obs, reward + (self.t == 3 and self.mark.exists()), *rest


class ChangedObservation(ChangedByFile):
    """Every observation changes."""

    def _obs(self) -> Any:
        obs = super()._obs()
        return obs + np.array([0.5, 0], np.float32) if self.mark.exists() else obs


class ChangedLength(ChangedByFile):
    """Episodes end in their third step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        obs, reward, *_ = super().step(action)
        return obs, reward, self.t > 2 and self.mark.exists(), False, {}


class RaisesOnce(ChangedByFile):
    """The first third step raises."""

    has_raised = False

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        stepped = super().step(action)
        if self.t == 3 and self.mark.exists() and not self.has_raised:
            self.has_raised = True
            raise ZeroDivisionError("the simulator fell over")
        return stepped


class KilledOnce(ChangedByFile):
    """The first process that takes its third step deletes the file and is killed."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        if self.t == 2 and self.mark.exists():
            with contextlib.suppress(FileNotFoundError):  # another process deleted it
                self.mark.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class KilledTwice(CountingEnv):
    """Kills its process in its fifth step, and the next process in its second."""

    def __init__(self, kills: str) -> None:
        super().__init__(length=20)
        self.kills = Path(kills)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        kills = int(self.kills.read_text())
        if (kills, self.t) in ((0, 4), (1, 1)):
            self.kills.write_text(str(kills + 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class CarriesData(CountingEnv):
    """Carries data from one episode to the next."""

    def get_carry_over(self) -> int:
        return 1

    def set_carry_over(self, data: int) -> None:
        assert data == 1
