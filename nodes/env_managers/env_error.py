"""Errors of envs, and their descriptions in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from flowrl.core.tracebacks import TextTraceback, user_traceback
from flowrl.machine.child_process import exit_text
from flowrl.nodes.envs.output_checks import InvalidOutputError
from flowrl.nodes.envs.spec import CALLING_PACKAGES

# What an env's code may raise. An env that calls sys.exit() has failed, too.
ENV_EXCEPTIONS = (Exception, SystemExit)

SHOWN_ACTIONS = 10  # in the message; the crash file has the whole episode


class EnvError(RuntimeError):
    """An env failed and had no attempt left. It raised, returned what its spaces do not allow, or ended its process.

    `files` maps the name of a crash file, which `flowrl replay` plays again, to its text. The engine writes the
    file to the run's folder. Without the engine, `save` does. `needs_traceback` is false if no code of the env
    raised: then the message says everything.
    """

    def __init__(
        self,
        env: str,
        index: int,
        seed: int,
        step: int,
        actions: Sequence[Any],
        what: str,
        files: dict[str, str] | None = None,
        needs_traceback: bool = True,
    ) -> None:
        self.needs_traceback = needs_traceback
        self.env, self.index, self.seed, self.step = env, index, seed, step
        self.actions = tuple(actions)[-SHOWN_ACTIONS:]
        self.files = files or {}
        shown = ", ".join(map(str, self.actions)) or "none"
        super().__init__(
            f"env {index} ({env}), episode seed {seed}, step {step}: {what}; last actions: {shown}"
        )

    def save(self, folder: str | Path) -> list[Path]:
        """Write the crash file to a folder, and return its path."""
        paths = [Path(folder) / name for name in self.files]
        for path, text in zip(paths, self.files.values(), strict=True):
            path.write_text(text, encoding="utf-8")
        return paths


class EnvCloseError(RuntimeError):
    """An env raised or hung when it was closed. All other envs are closed, and the run's results are valid."""


class WorkerTraceback(TextTraceback):
    """The traceback of an error in a worker, or the end of the output of a worker that ended."""

    def __init__(self, text: str) -> None:
        super().__init__(text, text)


OLD_GYM_HINT = "envs of the old gym package take `type: gym`"
EXPECTED_RESULTS = {
    "step": f"a step returns (observation, reward, terminated, truncated, info); {OLD_GYM_HINT}",
    "reset": f"a reset returns (observation, info); {OLD_GYM_HINT}",
}


def describe_failure(call: str, error: BaseException) -> str:
    """Describe the failure of an env's `step`, `reset` or `close`, with a hint if the env has the old gym interface."""
    if isinstance(error, InvalidOutputError):
        return str(error)
    hint = _interface_hint(call, error)
    text = f"{_text_of(error)}; {hint}" if hint else _text_of(error)
    return f"{call} raised {type(error).__name__}: {text}"


def env_traceback(call: str, error: BaseException) -> str:
    """The traceback of an error that the env's own code raised; empty if the caller found a result invalid."""
    if isinstance(error, InvalidOutputError):
        return ""
    if _interface_hint(call, error) and _raised_by_caller(error):
        return ""
    return user_traceback(error)


def _interface_hint(call: str, error: BaseException) -> str:
    """What `step` and `reset` take and return, if the env seems to do otherwise."""
    text = _text_of(error)
    if "got an unexpected keyword argument 'seed'" in text:
        return f"a reset takes a seed; {OLD_GYM_HINT}"
    if "unpack" in text and _raised_by_caller(error):
        return EXPECTED_RESULTS[call]
    return ""


def _raised_by_caller(error: BaseException) -> bool:
    return _raising_module(error).partition(".")[0] in CALLING_PACKAGES


PROCESS_SUBJECT = (
    "its process"  # how the description of an ended process begins, also in crash files
)


def describe_exit(status: int) -> str:
    """Describe how a worker process ended, by its exit status."""
    return f"{PROCESS_SUBJECT} {exit_text(status)}"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as other:
        return f"(no text: formatting the error raised {type(other).__name__})"


def _raising_module(error: BaseException) -> str:
    """The name of the module that raised the error."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return str(frame.tb_frame.f_globals.get("__name__", "")) if frame else ""
