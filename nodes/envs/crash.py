"""Crash files: what made an env fail, written down so that it can be made to fail again."""

from __future__ import annotations

import faulthandler
import json
import pdb
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.batch import Array
from flowrl.errors import RunError, UsageError
from flowrl.node import Unsound
from flowrl.nodes.envs.checks import observations, rewards
from flowrl.nodes.envs.portable import portable, whole
from flowrl.nodes.envs.spec import columns_of

FORMAT = "flowrl env crash 1"


@dataclass(frozen=True, slots=True)
class Crash:
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
            env: Any = portable(self.part)
        except Unsound as told:  # the file still says what happened
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


def replay(path: str, debug: bool = False, say: Any = print) -> bool:
    """Play a crash file's episode again; whether it failed again. `debug` stops where it does."""
    told = _read(Path(path))
    say(f"env {told['index']}, episode seed {told['seed']}: failed in step {told['step']}")
    say(f"  {told['what'].splitlines()[0]}")
    if not told["complete"]:
        say("  the beginning of its actions is missing: it may not come to the same state")
    faulthandler.enable(sys.__stderr__ or sys.stderr)
    if told["timeout_s"]:
        faulthandler.dump_traceback_later(told["timeout_s"], True, sys.__stderr__ or sys.stderr)
    try:
        _play(told)
    except Exception as error:
        traceback.print_exception(error)
        if debug:
            pdb.post_mortem(error.__traceback__)
        say(f"it failed again: {type(error).__name__}: {error}")
        return True
    finally:
        faulthandler.cancel_dump_traceback_later()
    say(f"it did not fail again in {len(told['actions'])} steps")
    return False


def _read(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path}: is not a crash file: {error}") from error
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise UsageError(f"{path}: is not a crash file; a failed run writes crash-*.json")
    if "cannot be made again" in told["env"]:
        raise RunError(f"{path}: {told['env']['cannot be made again']}")
    return told


def _play(told: dict[str, Any]) -> None:
    sys.path.insert(0, "")  # envs beside the caller, as with every graph
    part = whole(told["env"])
    observed, _ = columns_of(part)
    env = part.make(told["make_index"])
    obs, _ = env.reset(seed=told["seed"])
    observations([obs], observed, np.dtype(observed.dtype))
    for action in np.array(told["actions"], told["dtype"]):
        obs, reward, _, _, _ = env.step(action)
        observations([obs], observed, np.dtype(observed.dtype))
        rewards([reward])
    env.close()
