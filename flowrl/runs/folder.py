"""The run folder: everything that is written down of a run, readable at any moment.

graph.yaml         the resolved graph: alone it repeats the run
graph.dot          the same as a picture
environment.json   versions, git, CPU, seed, command
metrics.jsonl      what nodes measured, in the order of the program
timings.jsonl      where time went
summary.json       how it ended; error.txt, if it failed
checkpoints/       best.safetensors, last.safetensors
logs/              a log for each node that has something to say
tokens.bin         hashes of all tokens, if they were asked for
tb/                the metrics for TensorBoard
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from flowrl.core.context import CheckpointRecord, MetricsRecord, Record, VerdictRecord
from flowrl.core.errors import RunError, UsageError
from flowrl.core.state import State
from flowrl.graph.model import Graph
from flowrl.runs.checkpoint import checkpoint_bytes
from flowrl.runs.tensorboard import Board
from flowrl.runs.token_file import NAME, TokenWriter
from flowrl.runtime.records import RecordSource
from flowrl.runtime.token_hashing import Note, TokenHash

TIMINGS_EVERY_S = 1.0
TOKENS_BYTES = 1 << 16  # written at once


def new_folder(graph: str, out: str | Path | None) -> Path:
    """Make the folder of a new run: `out`, or runs/<graph>-<time>."""
    if out is not None:
        path = Path(out)
        with told(path):
            path.mkdir(parents=True, exist_ok=True)
            try:
                (path / "graph.yaml").touch(exist_ok=False)  # of two runs at once, one gets it
            except FileExistsError:
                raise UsageError(
                    f"--out {path}: there is a run in it already; give another folder, or remove it"
                ) from None
        return path
    stem = f"{graph}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 10_000):
        path = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        with told(path):
            path.parent.mkdir(exist_ok=True)
            if _mkdir(path):
                return path
    raise RunError(f"runs/{stem}: no free name is left; remove old runs")


def _mkdir(path: Path) -> bool:
    """Make a folder that another run cannot have got first."""
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """A failing disk is told as what it is."""
    try:
        yield
    except OSError as error:
        mend = "free some space, or" if error.errno == errno.ENOSPC else "mend that, or"
        why = error.strerror or str(error)
        raise RunError(f"{path}: cannot be written: {why}; {mend} choose another --out") from error


class RunFolder:
    """Writes down what happens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.home = path.absolute()  # an env of this process may change the working folder
        self._files: dict[str, TextIO] = {}
        self._board: Board | None = None
        self._tokens: BinaryIO | None = None
        self._last_timing_s = 0.0
        with told(path):
            for name in ("checkpoints", "logs", "tb"):
                (path / name).mkdir(parents=True, exist_ok=True)

    def open_board(self) -> None:
        """Metrics are written for TensorBoard, too, from now on."""
        with told(self.path):
            self._board = Board(self.home / "tb")

    def text(self, name: str, text: str) -> None:
        """A whole file."""
        self._whole(name, text.encode())

    def log(self, key: str, text: str) -> None:
        """A line of a node's log."""
        self.line(f"logs/{_file_name(key)}.log", text)

    def hash_tokens(self, graph: Graph) -> Note:
        """Begin the file of token hashes; what it is given is written as the run goes."""
        with told(self.path):
            self._tokens = (self.home / NAME).open("wb", buffering=TOKENS_BYTES)
            writer = TokenWriter(self._tokens, graph)

        def note(hashed: TokenHash) -> None:
            with told(self.path):
                writer.write(hashed)

        return note

    def json(self, name: str, value: Any) -> None:
        """A whole JSON file."""
        self.text(name, json.dumps(value, indent=2) + "\n")

    def line(self, name: str, text: str) -> None:
        """A line at the end of a file, on disk when this returns to the system."""
        with told(self.path):
            if name not in self._files:
                self._files[name] = (self.home / name).open("a", encoding="utf-8")
            file = self._files[name]
            file.write(text + "\n")
            file.flush()

    def record(self, source: RecordSource, record: Record) -> None:
        """What a node tells in a firing."""
        if isinstance(record, MetricsRecord):
            self._metrics(source, record.values)
        elif isinstance(record, CheckpointRecord):
            self.checkpoint(record.name, {source.key: record.state}, dict(record.info))
        else:
            text = record.reason if isinstance(record, VerdictRecord) else record
            self.log(source.key, f"[{source.fired}] {text}")

    def _metrics(self, source: RecordSource, values: Mapping[str, float]) -> None:
        total = source.total
        row = {
            "node": source.key,
            "role": source.role,
            "firing": source.fired,
            "env_steps": total.env_steps,
            "episodes": total.episodes,
            "train_iters": total.train_iters,
            **{k: _number(v) for k, v in values.items()},
        }
        self.line("metrics.jsonl", json.dumps(row))
        with told(self.path):
            if self._board is not None:
                self._board.add(source.key, total.env_steps, values)

    def timings(
        self, wall_s: float, row: Callable[[], Mapping[str, Any]], now: bool = False
    ) -> None:
        """Where time went so far, about once a second."""
        if now or wall_s - self._last_timing_s >= TIMINGS_EVERY_S:
            self._last_timing_s = wall_s
            self.line("timings.jsonl", json.dumps(row()))

    def checkpoint(self, name: str, states: Mapping[str, State], info: Mapping[str, Any]) -> None:
        """States, in a file that is whole at any moment."""
        self._whole(f"checkpoints/{name}.safetensors", checkpoint_bytes(states, info))

    def _whole(self, name: str, content: bytes) -> None:
        """Written aside and renamed: nobody sees half of it."""
        path = self.home / name
        aside = path.with_name(f".{path.name}.part")
        with told(self.path):
            try:
                aside.write_bytes(content)
                aside.replace(path)
            finally:
                aside.unlink(missing_ok=True)

    def close(self) -> None:
        """Close all files; what could not be written was told when it was written."""
        if self._tokens is not None:
            with contextlib.suppress(OSError):
                self._tokens.close()
        with contextlib.suppress(OSError):
            if self._board is not None:
                self._board.close()
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file that may be written just now: a last line may be cut short."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}; is this a run folder?") from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                rows.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise RunError(f"{path}:{number}: is not JSON; the file is damaged") from None
    return rows


def _number(value: float) -> float | str:
    """A number as JSON knows it; nan and inf by name."""
    number = float(value)
    return number if math.isfinite(number) else repr(number)


def _file_name(key: str) -> str:
    return key.replace("/", "__")


def log_name(path: Path) -> str:
    """The instance whose log a file is."""
    return path.stem.replace("__", "/")
