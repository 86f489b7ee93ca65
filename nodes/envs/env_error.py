"""The error of an env: which one, in which episode, at which step, after which actions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


class InWorker(Exception):
    """Where an error was raised in a worker; or what the worker printed before it ended."""
