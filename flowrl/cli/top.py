"""The verb `top`: shows where the time of an active run goes, again and again."""

from __future__ import annotations

import json
import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flowrl.cli.arguments import add_run
from flowrl.cli.live_runs import ended_run_text
from flowrl.core.errors import FlowError
from flowrl.runs.queries import NoAnswerError, query_status
from flowrl.runs.registry import RunEntry, is_active
from flowrl.runs.run_names import find_live_run
from flowrl.runs.status_rates import RUN_RATES, RunRates, StatusWindow
from flowrl.runs.top import top_text

INTERVAL_S = 0.5  # between two statuses, from which rates are computed
REFRESH_S = 1.0  # of top
ONCE_S = 5.0  # at most, to see some rounds
CURSOR_HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
ALTERNATE_SCREEN, MAIN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def top_arguments(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--once", action="store_true", help="print it once; otherwise q ends it")
    parser.add_argument("--json", action="store_true", help="one line of JSON, once")


def top(arguments: Namespace) -> int:
    entry = find_live_run(arguments.run)
    window = StatusWindow(query_status(entry))
    if arguments.once or arguments.json or not sys.stdout.isatty():
        found = _rates_once(entry, window)
        print(json.dumps(RUN_RATES.encode(found)) if arguments.json else top_text(found, _width()))
        return 0
    with _alternate_screen() as wait_for_q:
        pause_s = INTERVAL_S
        while not wait_for_q(pause_s):
            try:
                after = query_status(entry)
            except NoAnswerError:
                if is_active(entry):
                    raise
                break
            _redraw(top_text(window.rates_until(after), _width()))
            pause_s = REFRESH_S
    if not is_active(entry):
        print(ended_run_text(entry)[1])
    return 0


def _rates_once(entry: RunEntry, window: StatusWindow) -> RunRates:
    """The rates over half a second, or over some rounds if they take longer, for a few seconds at most."""
    begun_s = time.monotonic()
    while True:
        time.sleep(INTERVAL_S)
        try:
            found = window.rates_until(query_status(entry))
        except NoAnswerError:
            if is_active(entry):
                raise
            raise FlowError(f"{entry.run_dir}: the run has just ended") from None
        if window.has_rounds or time.monotonic() - begun_s > ONCE_S:
            return found


def _width() -> int:
    return shutil.get_terminal_size((80, 24)).columns


def _redraw(text: str) -> None:
    rows = shutil.get_terminal_size((80, 24)).lines - 1
    lines = [f"{line}{CLEAR_LINE}" for line in text.splitlines()[:rows]]
    sys.stdout.write(CURSOR_HOME + "\r\n".join(lines) + "\r\n" + CLEAR_BELOW)
    sys.stdout.flush()


@contextmanager
def _alternate_screen() -> Iterator[Any]:
    """Use the terminal's alternate screen. Yields a function that waits for a `q`, at most the given seconds."""
    import select
    import termios
    import tty

    keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = termios.tcgetattr(keyboard) if keyboard is not None else None

    def wait_for_q(timeout_s: float) -> bool:
        if keyboard is None:
            time.sleep(timeout_s)
            return False
        ready, _, _ = select.select([keyboard], [], [], timeout_s)
        return bool(ready) and sys.stdin.read(1) in ("q", "Q")

    sys.stdout.write(ALTERNATE_SCREEN)
    try:
        if keyboard is not None:
            tty.setcbreak(keyboard)
        yield wait_for_q
    except KeyboardInterrupt:
        pass
    finally:
        if keyboard is not None and before is not None:
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        sys.stdout.write(MAIN_SCREEN)
        sys.stdout.flush()
