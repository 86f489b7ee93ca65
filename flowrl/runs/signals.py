"""Ctrl-C and SIGTERM, while somebody wants to hear of them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def signals_to(hear: Callable[[str], None]) -> Iterator[None]:
    """Call this with the signal's name; outside of the main thread Python hears no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:
        hear(signal.Signals(number).name)

    before = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
