"""The verbs that look at runs while they go on, and stop them: ps, top, why, stop; and logs."""

from __future__ import annotations

import json
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowrl.core.errors import FlowError
from flowrl.core.wording import count_text
from flowrl.runs.queries import NoAnswerError, ask, find_live_run, query_status
from flowrl.runs.registry import RunEntry, is_alive, live_entries
from flowrl.runs.top import (
    RUN_RATES,
    RUN_ROW,
    RunRow,
    ps_text,
    rates_between,
    row_of,
    top_text,
)
from flowrl.runs.why import verdict, wait_graph, why_text
from flowrl.runtime.status import SITE_STATUS, RunStatus

BETWEEN_S = 0.5  # two looks, for rates
REFRESH_S = 1.0
SOON_S = 5.0  # a stop that takes longer is explained
STOP_S, NOW_S = 120.0, 20.0  # after which a stop is given up
HOME, REST, BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
OTHER_SCREEN, USUAL_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def ps(arguments: Namespace) -> int:
    """`flowrl ps`."""
    found = live_entries()
    before = {e.socket: one for e in found if (one := _status_or_none(e))}
    if before:
        time.sleep(BETWEEN_S)
    rows = [_row(e, before.get(e.socket)) for e in found if is_alive(e)]
    if arguments.json:
        print(json.dumps([RUN_ROW.encode(row) for row in rows]))
    else:
        print(ps_text(rows) if rows else "no run is going on")
    return 0


def _row(entry: RunEntry, before: RunStatus | None) -> RunRow:
    after = _status_or_none(entry) if before else None
    if before and after:
        return row_of(rates_between(before, after))
    wall_s = time.time() - entry.begun_at
    about = (entry.pid, entry.graph, entry.placement, "silent", wall_s)
    return RunRow(*about, 0, 0, None, entry.run_dir)


def _status_or_none(entry: RunEntry) -> RunStatus | None:
    try:
        return query_status(entry)
    except FlowError:
        return None


def top(arguments: Namespace) -> int:
    """`flowrl top`."""
    entry = find_live_run(arguments.run)
    before = query_status(entry)
    if arguments.once or arguments.json or not sys.stdout.isatty():
        time.sleep(BETWEEN_S)
        found = rates_between(before, query_status(entry))
        print(json.dumps(RUN_RATES.encode(found)) if arguments.json else top_text(found, _width()))
        return 0
    with _screen() as wait_for_q:
        pause_s = BETWEEN_S
        while not wait_for_q(pause_s):
            try:
                after = query_status(entry)
            except NoAnswerError:
                if not is_alive(entry) or not Path(entry.socket).exists():
                    break
                raise
            _draw(top_text(rates_between(before, after), _width()))
            before, pause_s = after, REFRESH_S
    if not Path(entry.socket).exists():
        print(_ended(entry)[1])
    return 0


def _width() -> int:
    return shutil.get_terminal_size((80, 24)).columns


def _draw(text: str) -> None:
    rows = shutil.get_terminal_size((80, 24)).lines - 1
    lines = [f"{line}{REST}" for line in text.splitlines()[:rows]]
    sys.stdout.write(HOME + "\r\n".join(lines) + "\r\n" + BELOW)
    sys.stdout.flush()


@contextmanager
def _screen() -> Iterator[Any]:
    """A screen of its own, as it was afterwards; gives what waits for a `q`, so many seconds."""
    import select
    import termios
    import tty

    keys = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = termios.tcgetattr(keys) if keys is not None else None

    def wait_for_q(s: float) -> bool:
        if keys is None:
            time.sleep(s)
            return False
        ready, _, _ = select.select([keys], [], [], s)
        return bool(ready) and sys.stdin.read(1) in ("q", "Q")

    sys.stdout.write(OTHER_SCREEN)
    try:
        if keys is not None:
            tty.setcbreak(keys)
        yield wait_for_q
    except KeyboardInterrupt:
        pass
    finally:
        if keys is not None and before is not None:
            termios.tcsetattr(keys, termios.TCSADRAIN, before)
        sys.stdout.write(USUAL_SCREEN)
        sys.stdout.flush()


def why(arguments: Namespace) -> int:
    """`flowrl why`."""
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


def stop(arguments: Namespace) -> int:
    """`flowrl stop`."""
    entry = find_live_run(arguments.run)
    if arguments.now:
        ask(entry, ask="stop", now=True)
    else:
        ask(entry, ask="stop")
        print(f"{Path(entry.run_dir).name} stops at its next cut", flush=True)
    began, told = time.monotonic(), False
    while is_alive(entry) and Path(entry.socket).exists():
        passed_s = time.monotonic() - began
        if passed_s > (NOW_S if arguments.now else STOP_S):
            hint = f"kill -9 {entry.pid}" if arguments.now else f"flowrl stop {entry.pid} --now"
            raise FlowError(f"{entry.run_dir}: has not stopped in {passed_s:.0f} s; try: {hint}")
        if passed_s > SOON_S and not told and (seen := _status_or_none(entry)):
            told = True
            print(f"not yet: {verdict(seen)}; --now stops at once", file=sys.stderr, flush=True)
        time.sleep(0.05)
    status, text = _ended(entry)
    print(text)
    return 1 if status in ("failed", "?") else 0


def _ended(entry: RunEntry) -> tuple[str, str]:
    """How a run ended, by its folder."""
    path = Path(entry.run_dir) / "summary.json"
    try:
        summary = json.loads(path.read_text())
    except (OSError, ValueError):
        return "?", f"{entry.run_dir}: process {entry.pid} has ended without a summary"
    again = f"\nthe same again: {summary['repeat']}" if summary.get("repeat") else ""
    done = count_text(summary["env_steps"], "env step")
    done = f"{done}, {count_text(summary['train_iters'], 'train iteration')}"
    return summary["status"], f"{summary['status']}: {summary['why']}\n{done}{again}"
