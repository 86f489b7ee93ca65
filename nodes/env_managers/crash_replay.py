"""The episode of a crash file, played again: in a process of its own, or here in the debugger."""

from __future__ import annotations

import bdb
import faulthandler
import json
import pdb
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.core.errors import RunError, UsageError
from flowrl.nodes.env_managers.crash import FORMAT
from flowrl.nodes.env_managers.env_error import PROCESS_SUBJECT, describe_exit
from flowrl.nodes.envs.output_checks import check_observations, check_rewards
from flowrl.nodes.envs.portable import from_portable
from flowrl.nodes.envs.spec import env_columns

Begin = Callable[[], Any]  # called before each reset and step: sets its deadline


def replay(path: str, debug: bool = False, say: Callable[[str], Any] = print) -> bool:
    """Play a crash file's episode again; whether it failed again. `debug` stops where it does."""
    told = _read(Path(path))
    say(f"env {told['index']}, episode seed {told['seed']}: failed in step {told['step']}")
    say(f"  {told['what'].splitlines()[0]}")
    if not told["complete"]:
        say("  the beginning of its actions is missing: it may not come to the same state")
    sys.stdout.flush()
    try:
        what = _debugged(told, say) if debug else _apart(path, told)
    except bdb.BdbQuit:
        return False  # whoever left the debugger knows
    if what:
        say(f"it failed again: {what}")
    else:
        say(f"it did not fail again in {len(told['actions'])} steps")
    return bool(what)


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


def _play(told: dict[str, Any], begin: Begin, stop: bool = False) -> None:
    """Reset and steps, each looked at as in a run; `stop`: in the debugger before the last."""
    sys.path.insert(0, "")  # envs beside the caller, as with every graph
    part = from_portable(told["env"])
    observed, _ = env_columns(part)
    env = part.make(told["make_index"])
    actions = np.array(told["actions"], told["dtype"])
    calls = [partial(env.reset, seed=told["seed"]), *(partial(env.step, a) for a in actions)]
    for number, call in enumerate(calls):
        begin()
        result = _stepped_into(call) if stop and call is calls[-1] else call()
        if number == 0:
            obs, _ = result
        else:
            obs, reward, _, _, _ = result
            check_rewards([reward])
        check_observations([obs], observed, np.dtype(observed.dtype))
    env.close()


def _stepped_into(call: partial[Any]) -> Any:
    result: Any = pdb.Pdb().runcall(call)
    if result is None:
        raise bdb.BdbQuit
    return result


def _apart(path: str, told: dict[str, Any]) -> str:
    """What went wrong in a process that may end, or hang, as it likes; empty: nothing."""
    with tempfile.TemporaryDirectory() as folder:
        verdict = Path(folder) / "verdict"
        words = [sys.executable, "-m", "flowrl.nodes.env_managers.crash_replay", path, str(verdict)]
        status = subprocess.run(words, check=False).returncode
        if verdict.exists():
            return verdict.read_text(encoding="utf-8")
    if told["timeout_s"] and status == 1:  # faulthandler's
        return f"it took longer than {told['timeout_s']:g} s, and was where this shows"
    return describe_exit(status)


def main() -> None:
    """In that process: play, and write down what Python saw go wrong."""
    path, verdict = sys.argv[1:]
    told = _read(Path(path))
    faulthandler.enable()
    limit_s, what = told["timeout_s"], ""
    begin: Begin = int
    if limit_s:
        begin = partial(faulthandler.dump_traceback_later, limit_s, exit=True)
    try:
        _play(told, begin)
    except Exception as error:
        traceback.print_exception(error)
        what = f"{type(error).__name__}: {error}"
    faulthandler.cancel_dump_traceback_later()
    Path(verdict).write_text(what, encoding="utf-8", errors="backslashreplace")


def _debugged(told: dict[str, Any], say: Callable[[str], Any]) -> str:
    """What went wrong here, looked at where it did; where nobody could look then, right before."""
    faulthandler.enable(sys.__stderr__ or sys.stderr)
    ends = told["what"].startswith(PROCESS_SUBJECT)
    if ends:
        say("  that leaves nothing to look at: the debugger stops before the call that does it")
    limit_s = told["timeout_s"]
    begin: Begin = partial(signal.setitimer, signal.ITIMER_REAL, limit_s) if limit_s else int
    handler = signal.signal(signal.SIGALRM, _too_late)
    try:
        _play(told, begin, ends)
    except bdb.BdbQuit:
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


def _too_late(*_: Any) -> None:
    raise TimeoutError("it takes longer than it did in the run, where that was a failure")


if __name__ == "__main__":
    main()
