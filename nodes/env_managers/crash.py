"""Crash files: what made an env fail, written down so that it can be made to fail again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.node import UnsoundError
from flowrl.nodes.envs.portable import to_portable

FORMAT = "flowrl env crash 1"


@dataclass(frozen=True, slots=True)
class CrashFile:
    """An env's last episode, up to what went wrong."""

    part: Any  # what the env was made of
    make_index: int  # its place among all envs of all replicas
    index: int
    seed: int
    step: int  # 0: the reset
    what: str
    traceback: str
    actions: Sequence[Array]
    complete: bool  # whether the actions are all of the episode
    timeout_s: float | None = None  # where it took longer than that

    def text(self) -> str:
        """The crash file's."""
        actions = np.array(self.actions) if len(self.actions) else np.zeros(0)
        try:
            env: Any = to_portable(self.part)
        except UnsoundError as told:  # the file still says what happened
            env = {"cannot be made again": str(told)}
        data = {
            "format": FORMAT,
            "env": env,
            "make_index": self.make_index,
            "index": self.index,
            "seed": self.seed,
            "step": self.step,
            "what": self.what,
            "traceback": self.traceback,
            "timeout_s": self.timeout_s,
            "complete": self.complete,
            "dtype": str(actions.dtype),
            "actions": actions.tolist(),
        }
        return json.dumps(data, indent=1) + "\n"
