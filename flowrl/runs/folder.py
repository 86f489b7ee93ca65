"""The run folder: every file that a run writes. Each file can be read at any moment of the run.

graph.yaml         the resolved graph, which is enough to repeat the run
graph.dot          the graph as a DOT picture
environment.json   versions, git state, CPU, seed, command
params.yaml        the type and the parameters of each node
metrics.jsonl      the metrics of the nodes, in the order of the serial program
timings.jsonl      where the time went
summary.json       how the run ended (and error.txt, if it failed)
checkpoints/       best.safetensors, last.safetensors
checkpoints.jsonl  the files of the checkpoints that nodes have written, in their order
logs/              a log for each instance
league/            of a league: its players, their weights, and the results of matches
snapshots/         the whole state of the run, if it saves snapshots
crash-NODE.tape    the last firing of a node that failed
tokens.bin         hashes of all tokens, with `run --hash-tokens`
tb/                the metrics and histograms for TensorBoard
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from flowrl.core.checkpoint import SUFFIX, checkpoint_bytes
from flowrl.core.errors import RunError
from flowrl.core.histogram import Histogram
from flowrl.core.json_text import parse_object
from flowrl.core.records import (
    CHECKPOINTS,
    CheckpointRecord,
    HistogramsRecord,
    LinesRecord,
    MetricsRecord,
    Record,
    VerdictRecord,
)
from flowrl.core.state import State
from flowrl.graph.model import Graph
from flowrl.graph.settings import Setting
from flowrl.runs.disk_errors import explain_disk_errors
from flowrl.runs.folder_lock import lock_folder
from flowrl.runs.tensorboard import TensorBoardWriter
from flowrl.runs.token_file import TOKEN_FILE, TokenWriter
from flowrl.runtime.records import RecordSource
from flowrl.runtime.token_hashing import TokenHash, TokenHashSink

ENVIRONMENT_FILE, SUMMARY_FILE, ERROR_FILE = "environment.json", "summary.json", "error.txt"
METRICS_FILE = "metrics.jsonl"
CHECKPOINT_LOG = "checkpoints.jsonl"
SPEEDS = ("env_steps", "train_iters")  # counts whose speed TensorBoard shows
TIMINGS_EVERY_S = 1.0
TOKEN_BUFFER_BYTES = 1 << 16


class RunFolder:
    """Writes the files of one run. It is locked meanwhile, as two processes would write over each other's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.absolute_path = path.absolute()  # an env may change the working folder
        self.facts: Mapping[str, Any] = {}  # of the run, which every checkpoint has
        self._files: dict[str, TextIO] = {}
        self._tensorboard: TensorBoardWriter | None = None
        self._token_file: BinaryIO | None = None
        self._last_timings: Mapping[str, Any] = {"wall_s": 0.0, **dict.fromkeys(SPEEDS, 0)}
        with explain_disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(path)
            for name in ("checkpoints", "logs", "tb"):
                (path / name).mkdir(exist_ok=True)

    def open_tensorboard(
        self, settings: Mapping[str, Setting], continue_after: int | None = None
    ) -> None:
        """Write the settings of the graph for TensorBoard, and metrics and speeds from now on.

        A run that continues has written its settings, and replaces what it wrote after this number of env steps.
        """
        with explain_disk_errors(self.path):
            self._tensorboard = TensorBoardWriter(self.absolute_path / "tb")
            if continue_after is None:
                self._tensorboard.begin_session(settings)
            else:
                self._tensorboard.replace_after(continue_after)

    def replace_in_tensorboard(self, after: int) -> None:
        """Let TensorBoard hide what it was given after this number of env steps, because the run goes on from there."""
        with explain_disk_errors(self.path):
            if self._tensorboard is not None:
                self._tensorboard.replace_after(after)

    def end_tensorboard(self, success: bool) -> None:
        """Write for TensorBoard how the run has ended."""
        with explain_disk_errors(self.path):
            if self._tensorboard is not None:
                self._tensorboard.end_session(success)

    def mark(self) -> dict[str, int]:
        """Return the sizes of the files of records, which are written up to now."""
        with explain_disk_errors(self.path):
            if self._token_file is not None:
                self._token_file.flush()
            paths = {name: self.absolute_path / name for name in self._record_files()}
            return {name: path.stat().st_size for name, path in paths.items() if path.exists()}

    def continue_after(self, mark: Mapping[str, int]) -> list[str]:
        """Continue the files of records from a mark: what was written after it will be written again.

        Checkpoints that nodes wrote only after it are removed, because the run may now end earlier than before. Return
        the files that lack something from before the mark, because somebody has removed or changed them.
        """
        self._close_token_file()  # which may hold unwritten hashes
        with explain_disk_errors(self.path):
            for file in self._checkpoints_after(int(mark.get(CHECKPOINT_LOG, 0))):
                self._remove(file)
            for name in self._record_files():
                path = self.absolute_path / name
                if path.exists():
                    os.truncate(path, min(int(mark.get(name, 0)), path.stat().st_size))
            paths = {name: self.absolute_path / name for name in mark}
            sizes = {name: p.stat().st_size if p.exists() else 0 for name, p in paths.items()}
        return [name for name, size in sizes.items() if size < int(mark[name])]

    def _checkpoints_after(self, mark: int) -> set[str]:
        """Return the checkpoints that the log names after this many bytes only."""
        path = self.absolute_path / CHECKPOINT_LOG
        content = path.read_bytes() if path.exists() else b""
        end = content.rfind(b"\n") + 1  # a run that was killed may have written half a line
        whole = content[:end]
        try:
            before, after = (
                {str(json.loads(line)) for line in part.splitlines()}
                for part in (whole[:mark], whole[mark:])
            )
        except ValueError as error:
            what = f"{path}: is damaged ({error}); remove it, and the run goes on with the checkpoints that are there"
            raise RunError(what) from error
        return after - before

    def remove_end(self) -> None:
        """Remove what says how the run has ended, because it goes on."""
        with explain_disk_errors(self.path):
            for name in (SUMMARY_FILE, ERROR_FILE):
                (self.absolute_path / name).unlink(missing_ok=True)

    def _record_files(self) -> list[str]:
        """Return the names of the files that grow with the run's records, and do not depend on its speed."""
        logs = sorted((self.absolute_path / "logs").glob("*.log"))
        lines = sorted(self.absolute_path.glob("*/*.jsonl"))
        return [
            METRICS_FILE,
            CHECKPOINT_LOG,
            TOKEN_FILE,
            *(f"logs/{path.name}" for path in logs),
            *(f"{path.parent.name}/{path.name}" for path in lines),
        ]

    def write_text(self, name: str, text: str) -> None:
        self._write_atomically(name, text.encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        self._write_atomically(name, content)

    def create_log(self, instance: str) -> None:
        """Create the empty log of an instance, so that it can be followed before the first line is there."""
        self.write_text(_log_name(instance), "")

    def append_log(self, instance: str, text: str) -> None:
        self.append_line(_log_name(instance), text)

    def open_token_file(self, graph: Graph) -> TokenHashSink:
        """Open or continue the file of token hashes, and return the function that appends a hash to it."""
        with explain_disk_errors(self.path):
            path = self.absolute_path / TOKEN_FILE
            self._token_file = path.open("ab", buffering=TOKEN_BUFFER_BYTES)
            writer = TokenWriter(self._token_file, graph)

        def note(hashed: TokenHash) -> None:
            with explain_disk_errors(self.path):
                writer.write(hashed)

        return note

    def write_json(self, name: str, value: Any) -> None:
        self.write_text(name, json.dumps(value, indent=2) + "\n")

    def append_line(self, name: str, text: str) -> None:
        """Append a line and hand it to the operating system, so that other processes see it."""
        with explain_disk_errors(self.path):
            if name not in self._files:
                self._files[name] = (self.absolute_path / name).open("a", encoding="utf-8")
            file = self._files[name]
            file.write(text + "\n")
            file.flush()

    def write_record(self, source: RecordSource, record: Record) -> None:
        """Write a record to the file for records of its kind."""
        if isinstance(record, MetricsRecord):
            self._append_metrics(source, record.values)
        elif isinstance(record, HistogramsRecord):
            self._add_histograms(source, record.histograms)
        elif isinstance(record, CheckpointRecord):
            states = {
                f"{source.key}.{name}" if name else source.key: state
                for name, state in record.states.items()
            }
            self.write_checkpoint(record.name, states, dict(record.info), record.folder)
            self.append_line(
                CHECKPOINT_LOG, json.dumps(_checkpoint_file(record.name, record.folder))
            )
            if record.replaces:
                self._remove(_checkpoint_file(record.replaces, record.folder))
        elif isinstance(record, LinesRecord):
            self._create_folder_of(record.file)
            self.append_line(record.file, "\n".join(record.lines))
        else:
            text = record.reason if isinstance(record, VerdictRecord) else record
            self.append_log(source.key, f"[{source.fired}] {text}")

    def _append_metrics(self, source: RecordSource, values: Mapping[str, float]) -> None:
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
        self.append_line(METRICS_FILE, json.dumps(row))
        with explain_disk_errors(self.path):
            if self._tensorboard is not None:
                self._tensorboard.add(source.key, total.env_steps, values)

    def _add_histograms(self, source: RecordSource, histograms: Mapping[str, Histogram]) -> None:
        with explain_disk_errors(self.path):
            if self._tensorboard is not None:
                self._tensorboard.add_histograms(source.key, source.total.env_steps, histograms)

    def append_timings(
        self, wall_s: float, row: Callable[[], Mapping[str, Any]], now: bool = False
    ) -> None:
        """Append the timings, at most once a second unless `now`."""
        if not now and wall_s - self._last_timings["wall_s"] < TIMINGS_EVERY_S:
            return
        timings, before = row(), self._last_timings
        self._last_timings = timings
        self.append_line("timings.jsonl", json.dumps(timings))
        seconds = timings["wall_s"] - before["wall_s"]
        if self._tensorboard is not None and seconds > 0:
            done = {k: max(0, timings[k] - before[k]) for k in SPEEDS}  # a cut may take some back
            speeds = {f"{k}_per_s": n / seconds for k, n in done.items()}
            with explain_disk_errors(self.path):
                self._tensorboard.add("speed", timings["env_steps"], speeds)

    def write_checkpoint(
        self,
        name: str,
        states: Mapping[str, State],
        info: Mapping[str, Any],
        folder: str = CHECKPOINTS,
    ) -> None:
        content = checkpoint_bytes(states, info, self.facts)
        file = _checkpoint_file(name, folder)
        self._create_folder_of(file)
        self._write_atomically(file, content)

    def _remove(self, file: str) -> None:
        self._path_of(file).unlink(missing_ok=True)

    def _create_folder_of(self, name: str) -> None:
        with explain_disk_errors(self.path):
            self._path_of(name).parent.mkdir(parents=True, exist_ok=True)

    def _path_of(self, name: str) -> Path:
        """Return the path of a file that a node names. It is below the folder of the run."""
        path = self.absolute_path / name
        if not path.resolve().is_relative_to(self.absolute_path.resolve()):
            raise RunError(
                f"{path}: is not in the folder of the run; a node named the file '{name}'"
            )
        return path

    def _write_atomically(self, name: str, content: bytes) -> None:
        """Write to a temporary file and rename it, so that no reader sees a partial file."""
        path = self.absolute_path / name
        partial = path.with_name(f".{path.name}.part")
        with explain_disk_errors(self.path):
            try:
                partial.write_bytes(content)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)

    def close(self) -> None:
        """Close all files. Errors are ignored, as the write that failed has raised already."""
        self._close_token_file()
        with contextlib.suppress(OSError):
            if self._tensorboard is not None:
                self._tensorboard.close()
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()
        if self._lock is not None:
            os.close(self._lock)  # which gives the folder free
            self._lock = None

    def _close_token_file(self) -> None:
        file, self._token_file = self._token_file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file. The run may be writing it, so an incomplete last line is skipped."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}; is this a run folder?") from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                rows.append(parse_object(line))
        except ValueError:
            if number < len(lines):
                raise RunError(
                    f"{path}:{number}: is not a JSON object; the file is damaged"
                ) from None
    return rows


def _number(value: float) -> float | str:
    """A number as JSON can hold it: `nan` and `inf` become strings."""
    number = float(value)
    return number if math.isfinite(number) else repr(number)


def _checkpoint_file(name: str, folder: str) -> str:
    return f"{folder}/{name}{SUFFIX}"


def _log_name(instance: str) -> str:
    return f"logs/{instance.replace('/', '__')}.log"


def instance_of_log(path: Path) -> str:
    """The instance that wrote a log file: the inverse of `_log_name`."""
    return path.stem.replace("__", "/")
