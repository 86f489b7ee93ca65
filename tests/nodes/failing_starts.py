"""Envs that cannot be begun, or take their time."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from tests.nodes.failing_envs import Failing

TEST = os.getpid()  # of whoever imports this first: a worker has its own


class Dying(Failing):
    """Ends every worker that makes it."""

    def __init__(self) -> None:
        super().__init__()
        if "flowrl.nodes.envs.server" in sys.modules and os.getppid() != 1 and is_worker():
            print("I cannot live here", flush=True)
            os._exit(7)


class Slow(Failing):
    """An action of 1 takes a while."""

    def step(self, action: Any) -> Any:
        if action:
            time.sleep(0.15)
        return super().step(action)


def is_worker() -> bool:
    """Whether this is a worker's process."""
    return "pytest" not in sys.modules
