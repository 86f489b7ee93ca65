"""Crash files: the last episode of a failed env, which `flowrl replay` plays again.

A crash file is JSON. It holds the env part, the seed and options of the episode's reset, and its actions up to the
failure. `replay_crash_file` plays the episode in a process of its own, so that the env may crash or hang without harm,
or in this process under the debugger. The program of that process is `python -m flowrl.nodes.env_managers.crash_files`.
"""

from __future__ import annotations

import bdb
import faulthandler
import json
import math
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.errors import UsageError
from flowrl.core.facts import UnsoundError
from flowrl.core.import_paths import import_object
from flowrl.core.json_text import parse_object
from flowrl.core.plain_data import DataCodec
from flowrl.core.project_modules import importable_modules
from flowrl.nodes.env_managers.env_error import PROCESS_SUBJECT, describe_exit
from flowrl.nodes.envs.output_checks import check_observations, check_rewards
from flowrl.nodes.envs.portable import from_portable, to_portable
from flowrl.nodes.envs.spec import env_columns
from flowrl.nodes.observations import ObsColumns

FORMAT = "flowrl env crash 2"
NOT_PORTABLE = "cannot be made again"  # the key of an env that cannot be encoded
MAX_NUMBER = 2**63 - 1

BeforeCall = Callable[[], Any]  # called before each reset and step


@dataclass(frozen=True, slots=True)
class CrashFile:
    """An env's last episode, up to the failure. The fields are the keys of the file."""

    env: dict[str, Any]  # the encoded env part
    make_index: int  # the env's index among those of all replicas
    index: int
    seed: int
    options: dict[str, float]  # of the reset
    step: int  # 0: the reset
    what: str
    traceback: str
    timeout_s: float | None  # the deadline, if the env exceeded it
    complete: bool  # whether the actions are those of the whole episode
    dtype: str
    actions: tuple[Any, ...]

    @classmethod
    def from_episode(cls, part: Any, actions: Sequence[Array], **others: Any) -> CrashFile:
        """Make a crash file of an env part and the actions of its episode."""
        array = np.array(actions) if len(actions) else np.zeros(0)
        try:
            env = to_portable(part)
        except UnsoundError as error:
            env = {NOT_PORTABLE: str(error)}  # the file still describes the failure
        return cls(env=env, dtype=str(array.dtype), actions=tuple(array.tolist()), **others)

    @classmethod
    def read(cls, path: Path) -> CrashFile:
        """Read a crash file. Whatever is wrong with it is a `UsageError`."""
        try:
            data = parse_object(path.read_text(encoding="utf-8"))
            if data.pop("format", None) != FORMAT:
                raise ValueError("a failed run writes crash-*.json")
            crash = CRASH_FILE.decode(data)
            crash.require_episode()
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(f"{path}: is neither a tape nor a crash file; {error}") from error
        if NOT_PORTABLE in crash.env:
            raise UsageError(f"{path}: {crash.env[NOT_PORTABLE]}")
        return crash

    def require_episode(self) -> None:
        """Raise ValueError if an env cannot be given this seed or these actions."""
        for name in ("make_index", "index", "seed", "step"):
            if not 0 <= getattr(self, name) <= MAX_NUMBER:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 to 2^63 - 1")
        if self.timeout_s is not None and not 0 < self.timeout_s < math.inf:
            raise ValueError(f"timeout_s is {self.timeout_s}; expected null or a number above 0")
        self.action_array()

    def action_array(self) -> Array:
        """The actions of the episode (steps, …)."""
        try:
            array = np.array(self.actions, np.dtype(self.dtype))
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"its actions are not numbers of the type {self.dtype:.40}") from error
        if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
            raise ValueError(f"its actions of the type {self.dtype:.40} are not finite numbers")
        return array

    def text(self) -> str:
        """The text of the file."""
        return json.dumps({"format": FORMAT, **CRASH_FILE.encode(self)}, indent=1) + "\n"


CRASH_FILE = DataCodec[CrashFile](CrashFile)


def replay_crash_file(
    path: str, debug: bool = False, print_line: Callable[[str], Any] = print
) -> bool:
    """Play a crash file's episode again, and return whether it failed again. `debug` stops at the failure.

    A file that cannot be played, because it or its env is wrong, is a `UsageError`.
    """
    crash = CrashFile.read(Path(path))
    print_line(f"env {crash.index}, episode seed {crash.seed}: failed in step {crash.step}")
    first_line = crash.what.partition("\n")[0]
    print_line(f"  {first_line}")
    if not crash.complete:
        print_line("  its first actions are missing, so it may not reach the same state")
    sys.stdout.flush()
    try:
        failure = (
            _replay_in_debugger(path, crash, print_line) if debug else _replay_in_child(path, crash)
        )
    except bdb.BdbQuit:  # the user left the debugger
        return False
    if failure:
        print_line(f"it failed again: {failure}")
    else:
        print_line(f"it did not fail again in {len(crash.actions)} steps")
    return bool(failure)


def _read_env(path: str, crash: CrashFile) -> tuple[Any, ObsColumns]:
    """The env part of a crash file, and its columns. An env that cannot be made at all is a `UsageError`."""
    try:
        part = from_portable(crash.env, import_object)
        obs_columns, _ = env_columns(part)
    except (Exception, SystemExit) as error:  # the data may be of any form, and name any code
        what = error if isinstance(error, UnsoundError) else f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{path}: its env cannot be made: {what}; replay it where the run's env can be imported"
        ) from error
    return part, obs_columns


@importable_modules([Path()])  # envs in the working directory are found, as in graphs
def _play_episode(
    path: str, crash: CrashFile, before_call: BeforeCall, debug_last_call: bool = False
) -> None:
    """Reset and step the env, with the checks of a run; optionally make the last call in the debugger."""
    part, obs_columns = _read_env(path, crash)
    env = part.make(crash.make_index)
    calls = [
        partial(
            env.reset, seed=crash.seed, **({"options": crash.options} if crash.options else {})
        ),
        *(partial(env.step, action) for action in crash.action_array()),
    ]
    for number, call in enumerate(calls):
        before_call()
        result = _call_in_debugger(call) if debug_last_call and call is calls[-1] else call()
        if number == 0:
            obs, _ = result
        else:
            obs, reward, _, _, _ = result
            check_rewards([reward])
        check_observations([obs], obs_columns, np.dtype(obs_columns.dtype))
    env.close()


# in a child process


def _replay_in_child(path: str, crash: CrashFile) -> str:
    """Play the episode in a process that may crash or hang. Return the failure; empty if there was none."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result"
        command = [sys.executable, "-m", "flowrl.nodes.env_managers.crash_files", path, str(result)]
        status = subprocess.run(command, check=False).returncode
        if result.exists():
            found = json.loads(result.read_text(encoding="utf-8"))
            if "refused" in found:
                raise UsageError(found["refused"])
            return str(found["failure"])
    if crash.timeout_s and status == 1:  # the exit status of faulthandler's deadline
        return f"it took longer than {crash.timeout_s:g} s; the traceback shows where"
    return describe_exit(status)


def main() -> None:
    """Play the episode in this process, and write what happened to the result file."""
    path, result = sys.argv[1:]
    crash = CrashFile.read(Path(path))
    faulthandler.enable()
    found = {"failure": ""}
    before_call: BeforeCall = int
    if crash.timeout_s:
        before_call = partial(faulthandler.dump_traceback_later, crash.timeout_s, exit=True)
    try:
        _play_episode(path, crash, before_call)
    except UsageError as error:
        found = {"refused": str(error)}
    except Exception as error:
        traceback.print_exception(error)
        found = {"failure": f"{type(error).__name__}: {error}"}
    faulthandler.cancel_dump_traceback_later()
    Path(result).write_text(json.dumps(found), encoding="utf-8")


# in the debugger


def _replay_in_debugger(path: str, crash: CrashFile, print_line: Callable[[str], Any]) -> str:
    """Play the episode, and debug its exception. If it ended its process, debug the call that does so."""
    import pdb

    faulthandler.enable(sys.__stderr__ or sys.stderr)
    ends_process = crash.what.startswith(PROCESS_SUBJECT)
    if ends_process:
        print_line("  nothing remains after this failure: the debugger stops before the call")
    limit_s = crash.timeout_s
    before_call: BeforeCall = (
        partial(signal.setitimer, signal.ITIMER_REAL, limit_s) if limit_s else int
    )
    handler = signal.signal(signal.SIGALRM, _raise_timeout)
    try:
        _play_episode(path, crash, before_call, debug_last_call=ends_process)
    except (bdb.BdbQuit, UsageError):
        raise
    except (Exception, SystemExit) as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        traceback.print_exception(error)
        pdb.post_mortem(error.__traceback__)
        return f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    return ""


def _call_in_debugger(call: partial[Any]) -> Any:
    import pdb

    result: Any = pdb.Pdb().runcall(call)
    if result is None:
        raise bdb.BdbQuit
    return result


def _raise_timeout(*_: Any) -> None:
    raise TimeoutError("it exceeds the deadline that it exceeded in the run")


if __name__ == "__main__":
    main()
