"""Metrics as TensorBoard reads them; without threads, which a full disk would block for ever."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FLUSH_EVERY_S = 2.0


class Board:
    """One file of events."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX.event_file_writer import EventsWriter  # loads torch

        self._writer: Any = EventsWriter(str(folder / "events"))
        self._flushed_s = 0.0

    def add(self, node: str, step: int, values: Mapping[str, float]) -> None:
        """What a node measured after so many env steps."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        now_s = time.time()
        scalars = [Summary.Value(tag=f"{node}/{k}", simple_value=v) for k, v in values.items()]
        self._writer.write_event(Event(wall_time=now_s, step=step, summary=Summary(value=scalars)))
        if now_s - self._flushed_s >= FLUSH_EVERY_S:
            self._flushed_s = now_s
            self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
