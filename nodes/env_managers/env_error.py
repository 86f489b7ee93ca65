"""The error of an env: which one, in which episode, at which step, after which actions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from flowrl.machine.child_process import exit_text
from flowrl.nodes.envs.output_checks import InvalidOutputError

SHOWN = 10  # actions in the message; the crash file has all of the episode


class EnvError(RuntimeError):
    """An env raised, or gave something that its spaces do not allow, and was not tried again.

    `files` maps a name to the text of a crash file, which `flowrl replay` runs again. The engine
    writes it into the run's folder; by hand, `save` does.
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
    ) -> None:
        self.env, self.index, self.seed, self.step = env, index, seed, step
        self.actions = tuple(actions)[-SHOWN:]
        self.files = files or {}
        shown = ", ".join(map(str, self.actions)) or "none"
        super().__init__(
            f"env {index} ({env}), episode seed {seed}, step {step}: {what}; last actions: {shown}"
        )

    def save(self, folder: str | Path) -> list[Path]:
        """Write the crash file into a folder; where it is."""
        paths = [Path(folder) / name for name in self.files]
        for path, text in zip(paths, self.files.values(), strict=True):
            path.write_text(text, encoding="utf-8")
        return paths


class EnvCloseError(RuntimeError):
    """An env raised, or hung, when it was closed. All others are closed, and all that was played counts."""


class WorkerTraceback(Exception):
    """Where an error was raised in a worker; or what the worker printed before it ended."""


OLD_GYM = "envs of the old gym package take `type: gym`"
GIVES = {
    "step": f"a step gives (observation, reward, terminated, truncated, info); {OLD_GYM}",
    "reset": f"a reset gives (observation, info); {OLD_GYM}",
}
CALLERS = ("flowrl", "gymnasium")  # packages whose code calls an env's


def describe_failure(doing: str, error: BaseException) -> str:
    """What an env's `step` or `reset` did, in words; what its interface asks for, if it was that."""
    if isinstance(error, InvalidOutputError):
        return str(error)
    text = _text(error)
    if "got an unexpected keyword argument 'seed'" in text:
        text += f"; a reset takes a seed; {OLD_GYM}"
    elif "unpack" in text and _raised_by(error.__traceback__).partition(".")[0] in CALLERS:
        text += f"; {GIVES[doing]}"
    return f"{doing} raised {type(error).__name__}: {text}"


PROCESS_SUBJECT = "its process"


def describe_exit(status: int) -> str:
    """How a process came to its end, which had a debt of results."""
    return f"{PROCESS_SUBJECT} {exit_text(status)}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as other:  # whoever words an error may make another
        return f"(its text cannot be had: {type(other).__name__})"


def _raised_by(traced: TracebackType | None) -> str:
    """The name of the module that an error comes from."""
    while traced is not None and traced.tb_next is not None:
        traced = traced.tb_next
    return str(traced.tb_frame.f_globals.get("__name__", "")) if traced else ""
