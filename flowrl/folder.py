"""The run folder: everything that is written down of a run, readable at any moment.

graph.yaml         the resolved graph: alone it repeats the run     metrics.jsonl   what nodes measured, in
graph.dot          the same as a picture                                            the program's order
environment.json   versions, git, CPU, seed, command                timings.jsonl   where time went
summary.json       how it ended                                     tb/             metrics for TensorBoard
checkpoints/       best.safetensors, last.safetensors               logs/           a log for each node
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from flowrl.context import Keep, Metrics, Record, Verdict
from flowrl.errors import RunError, UsageError
from flowrl.runner import Runner
from flowrl.state import State

TIMINGS_EVERY_S = 1.0


def new_folder(graph: str, out: str | Path | None) -> Path:
    """Make the folder of a new run: `out`, or runs/<graph>-<time>."""
    if out is not None:
        path = Path(out)
        if (path / "graph.yaml").exists():
            raise UsageError(
                f"--out {path}: there is a run in it already; give another folder, or remove it"
            )
        with told(path):
            path.mkdir(parents=True, exist_ok=True)
        return path
    stem = f"{graph}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 10_000):
        path = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        with told(path), contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise RunError(f"runs/{stem}: no free name is left; remove old runs")


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """A failing disk is told as what it is."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written: {error.strerror or error}; free space or choose another --out"
        ) from error


class RunFolder:
    """Writes down what happens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.latest: dict[str, Mapping[str, float]] = {}  # by node, its last metrics
        self._files: dict[str, TextIO] = {}
        self._board: Any = None
        self._last_timing_s = 0.0
        with told(path):
            for name in ("checkpoints", "logs", "tb"):
                (path / name).mkdir(parents=True, exist_ok=True)

    def text(self, name: str, text: str) -> None:
        """A whole file, written aside and renamed."""
        with told(self.path):
            aside = self.path / f".{name}.part"
            aside.write_text(text, encoding="utf-8")
            aside.replace(self.path / name)

    def json(self, name: str, value: Any) -> None:
        """A whole JSON file."""
        self.text(name, json.dumps(value, indent=2) + "\n")

    def line(self, name: str, text: str) -> None:
        """A line at the end of a file, on disk when this returns to the system."""
        with told(self.path):
            if name not in self._files:
                self._files[name] = (self.path / name).open("a", encoding="utf-8")
            file = self._files[name]
            file.write(text + "\n")
            file.flush()

    def record(self, runner: Runner, record: Record) -> None:
        """What a node tells in a firing."""
        if isinstance(record, Metrics):
            self._metrics(runner, record.values)
        elif isinstance(record, Keep):
            self.checkpoint(record.name, {f"{runner.key}": record.state}, dict(record.info))
        else:
            text = record.reason if isinstance(record, Verdict) else record
            self.line(f"logs/{_file_name(runner.key)}.log", f"[{runner.fired}] {text}")

    def _metrics(self, runner: Runner, values: Mapping[str, float]) -> None:
        total = runner.ctx.clock.total
        self.latest[runner.key] = values
        row = {
            "node": runner.key,
            "firing": runner.fired,
            "env_steps": total.env_steps,
            "episodes": total.episodes,
            "train_iters": total.train_iters,
            **{k: _number(v) for k, v in values.items()},
        }
        self.line("metrics.jsonl", json.dumps(row))
        board = self._tensorboard()
        for name, value in values.items():
            board.add_scalar(f"{runner.key}/{name}", value, total.env_steps)

    def _tensorboard(self) -> Any:
        if self._board is None:
            from tensorboardX import (
                SummaryWriter,
            )  # loads torch: not before there is something to show

            with told(self.path):
                self._board = SummaryWriter(str(self.path / "tb"), flush_secs=5)
        return self._board

    def timings(self, wall_s: float, busy_s: Mapping[str, float], now: bool = False) -> None:
        """Where time went so far, about once a second."""
        if now or wall_s - self._last_timing_s >= TIMINGS_EVERY_S:
            self._last_timing_s = wall_s
            row = {
                "wall_s": round(wall_s, 6),
                "busy_s": {k: round(v, 6) for k, v in busy_s.items()},
            }
            self.line("timings.jsonl", json.dumps(row))

    def checkpoint(self, name: str, states: Mapping[str, State], info: Mapping[str, Any]) -> None:
        """States as one safetensors file: arrays by `node/name`, settings and counters in its metadata."""
        from safetensors.numpy import save

        arrays = {
            f"{key}/{n}": a.copy() for key, state in states.items() for n, a in state.arrays.items()
        }
        first = next(iter(states.values()))
        meta = {
            "command": json.dumps({key: dict(s.command) for key, s in states.items()}),
            "version": str(first.version),
            "env_steps": str(first.clock.total.env_steps),
            "train_iters": str(first.clock.total.train_iters),
            "info": json.dumps(info),
        }
        path = self.path / "checkpoints" / f"{name}.safetensors"
        with told(self.path):
            aside = path.with_name(f".{path.name}.part")
            aside.write_bytes(save(arrays, meta))
            os.replace(aside, path)

    def close(self) -> None:
        """Close all files."""
        if self._board is not None:
            self._board.close()
        for file in self._files.values():
            with contextlib.suppress(
                OSError
            ):  # what could not be written was told when it was written
                file.close()


def read_checkpoint(path: Path) -> tuple[State, dict[str, Any]]:
    """The state of a checkpoint's first node, and what was noted beside it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            meta = file.metadata()
            names = list(file.keys())
            keys = {name.rpartition("/")[0] if "/" in name else "" for name in names}
            first = min(keys)
            arrays = {
                n.removeprefix(f"{first}/"): file.get_tensor(n)
                for n in names
                if n.startswith(f"{first}/")
            }
    except FileNotFoundError:
        raise RunError(
            f"{path}: there is no such checkpoint; the run has not kept one yet"
        ) from None
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path}: is not a checkpoint: {error}") from error
    commands = json.loads(meta["command"])
    state = State(arrays, next(iter(commands.values()), {}), int(meta["version"]))
    return state, {
        **json.loads(meta["info"]),
        "env_steps": int(meta["env_steps"]),
        "train_iters": int(meta["train_iters"]),
    }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file; a last line cut short by a crash is left out."""
    rows = []
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}; is this a run folder?") from None
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number < len(lines) - 1:
                raise RunError(f"{path}:{number + 1}: is not JSON") from None
    return rows


def _number(value: float) -> float | str:
    """A number as JSON knows it; nan and inf by name."""
    number = float(value)
    return number if math.isfinite(number) else repr(number)


def _file_name(key: str) -> str:
    return key.replace("/", "__")
