"""The verbs about active runs: ps, top, why, snapshot, stop; and logs, which also reads those of ended runs."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowrl.cli.arguments import add_run
from flowrl.core.errors import FlowError, UsageError, spelling_hint
from flowrl.core.json_text import parse_object
from flowrl.core.wording import count_text
from flowrl.runs.folder import SUMMARY_FILE, instance_of_log
from flowrl.runs.queries import NoAnswerError, ask, query_status, save_snapshot
from flowrl.runs.registry import RunEntry, is_active, is_alive, killed_entries, live_entries
from flowrl.runs.run_names import find_live_run, find_run_folder
from flowrl.runs.top import (
    RUN_RATES,
    RUN_ROW,
    RunRates,
    RunRow,
    StatusWindow,
    ps_text,
    row_of,
    top_text,
)
from flowrl.runs.why import verdict, wait_graph, why_text
from flowrl.runtime.status import SITE_STATUS, RunStatus

INTERVAL_S = 0.5  # between two statuses, from which rates are computed
REFRESH_S = 1.0  # of top
ONCE_S = 5.0  # at most, to see some rounds
EXPLAIN_AFTER_S = 5.0  # of waiting for a stop, the reason is printed
STOP_TIMEOUT_S, STOP_NOW_TIMEOUT_S = 120.0, 20.0
STOP_POLL_S, LOG_POLL_S = 0.05, 0.2
LOG_LINE_BYTES = 1 << 20  # a longer line is printed in several
CURSOR_HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
ALTERNATE_SCREEN, MAIN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def ps_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one line of JSON: a list")


def ps(arguments: Namespace) -> int:
    rows = [row for entry in live_entries() if (row := _row(entry)) is not None]
    killed = killed_entries()
    if arguments.json:
        rows += [_row_without_status(entry, "killed") for entry in killed]
        print(json.dumps([RUN_ROW.encode(row) for row in rows]))
        return 0
    print(ps_text(rows) if rows else "no run is active")
    if killed:
        print("\nkilled, and can be continued:")
        for entry in killed:
            print(f"  flowrl resume {shlex.quote(entry.run_dir)}")
    return 0


def _row(entry: RunEntry) -> RunRow | None:
    """The row of a run; None if it has just ended."""
    status = _status_or_none(entry)
    if status is not None:
        return row_of(status)
    if not is_alive(entry):
        return None
    return _row_without_status(entry, "silent")


def _row_without_status(entry: RunEntry, status: str) -> RunRow:
    wall_s = time.time() - entry.begun_at
    about = (entry.pid, entry.graph, entry.placement, status, wall_s)
    return RunRow(*about, 0, 0, None, entry.run_dir)


def _status_or_none(entry: RunEntry) -> RunStatus | None:
    try:
        return query_status(entry)
    except FlowError:
        return None


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
        print(_summary(entry)[1])
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


def why_arguments(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="one line of JSON")


def why(arguments: Namespace) -> int:
    found = query_status(find_live_run(arguments.run))
    if not arguments.json:
        print(why_text(found))
        return 0
    waits = wait_graph(found)
    answer = {
        "run_dir": found.run_dir,
        "status": found.status,
        "verdict": verdict(found),
        "sites": [
            {**SITE_STATUS.encode(site), "waits_for": waits.waits_for[site.site]}
            for site in waits.sites
        ],
        "cycle": [site.site for site in waits.cycle],
    }
    print(json.dumps(answer))
    return 0


def stop_arguments(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--now", action="store_true", help="at once, as a second Ctrl-C does")


def stop(arguments: Namespace) -> int:
    entry = find_live_run(arguments.run)
    when = "at once" if arguments.now else "at its next cut"
    print(f"stopping {entry.run_dir} (pid {entry.pid}) {when}", flush=True)
    try:
        ask(entry, ask="stop", now=arguments.now)
    except NoAnswerError:
        if is_active(entry):
            raise
    start_s, explained = time.monotonic(), False
    while is_active(entry):
        passed_s = time.monotonic() - start_s
        if passed_s > (STOP_NOW_TIMEOUT_S if arguments.now else STOP_TIMEOUT_S):
            hint = f"kill -9 {entry.pid}" if arguments.now else f"flowrl stop {entry.pid} --now"
            raise FlowError(f"{entry.run_dir}: has not stopped in {passed_s:.0f} s; try: {hint}")
        if passed_s > EXPLAIN_AFTER_S and not explained and (found := _status_or_none(entry)):
            explained = True
            print(f"not yet: {verdict(found)}; --now stops at once", file=sys.stderr, flush=True)
        time.sleep(STOP_POLL_S)
    status, text = _summary(entry)
    print(text)
    return 1 if status in ("failed", "?") else 0


def _summary(entry: RunEntry) -> tuple[str, str]:
    """The status of an ended run, and its summary in words."""
    path = Path(entry.run_dir) / SUMMARY_FILE
    try:
        summary = parse_object(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "?", f"{entry.run_dir}: process {entry.pid} has ended without a summary"
    again = f"\nto repeat: {summary['repeat']}" if summary.get("repeat") else ""
    done = count_text(summary["env_steps"], "env step")
    done = f"{done}, {count_text(summary['train_iters'], 'train iteration')}"
    return summary["status"], f"{summary['status']}: {summary['why']}\n{done}{again}"


def snapshot_arguments(parser: ArgumentParser) -> None:
    add_run(parser)


def snapshot(arguments: Namespace) -> int:
    """Let a run save a snapshot, and wait until it is written."""
    entry = find_live_run(arguments.run)
    rounds = save_snapshot(entry)
    print(
        f"saved after {count_text(rounds, 'round')}; when the run has ended, "
        f"`flowrl resume {entry.run_dir}` continues from there"
    )
    return 0


def logs_arguments(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "node", nargs="?", metavar="NODE", help="only the lines of this node and its replicas"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="until the run ends")


def logs(arguments: Namespace) -> int:
    folder, entry = find_run_folder(arguments.run)
    readers = list(_log_readers(folder / "logs", arguments.node))
    width = max((len(log.node) for log in readers), default=0) if arguments.node is None else 0
    has_lines = False
    try:
        while True:
            active = arguments.follow and entry is not None and is_active(entry)
            for log in readers:
                for line in log.new_lines():
                    has_lines = True
                    print(f"{log.node:<{width}} | {line}" if width else line, flush=True)
            if not active:
                if not has_lines:
                    print(f"{folder.name}: its nodes have logged nothing", file=sys.stderr)
                return 0
            time.sleep(LOG_POLL_S)
    except KeyboardInterrupt:
        return 0


class LogReader:
    """Reads the new lines of a log file that may still grow."""

    def __init__(self, node: str, path: Path) -> None:
        self.node, self._path = node, path
        self._offset = 0

    def new_lines(self) -> Iterator[str]:
        """The complete lines since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while line := file.readline(LOG_LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < LOG_LINE_BYTES:
                    break  # still being written
                self._offset += len(line)
                yield line.decode(errors="replace").rstrip("\n")


def _log_readers(folder: Path, node: str | None) -> Iterator[LogReader]:
    """The logs of one node's replicas, or of all nodes."""
    found = {instance_of_log(path): path for path in sorted(folder.glob("*.log"))}
    if node is not None:
        matching = {k: p for k, p in found.items() if node in (k, k.partition("#")[0])}
        if not matching:
            hint = spelling_hint(node, found)
            raise UsageError(f"{node}: {folder.parent.name} has no log of this node; {hint}")
        found = matching
    yield from (LogReader(key, path) for key, path in found.items())
