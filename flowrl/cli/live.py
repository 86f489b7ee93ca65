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
from flowrl.runs.queries import Silent, ask, find_live, look
from flowrl.runs.registry import Entry, entries, lives
from flowrl.runs.run_status import Look
from flowrl.runs.top import ps_text, rates, top_text
from flowrl.runs.why import reason_of, verdict, why_text

BETWEEN_S = 0.5  # two looks, for rates
REFRESH_S = 1.0
SOON_S = 5.0  # a stop that takes longer is explained
STOP_S, NOW_S = 120.0, 20.0  # after which a stop is given up
HOME, REST, BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
OTHER_SCREEN, USUAL_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def ps(arguments: Namespace) -> int:
    """`flowrl ps`."""
    found = entries()
    before = {e.socket: one for e in found if (one := _look_or_none(e))}
    if before:
        time.sleep(BETWEEN_S)
    rows = [_row(e, before.get(e.socket)) for e in found if lives(e)]
    if arguments.json:
        keys = ("pid", "graph", "placement", "status", "wall_s", "env_steps", "train_iters",
                "env_steps_per_s", "run_dir")  # fmt: skip
        print(json.dumps([{key: row[key] for key in keys} for row in rows]))
    else:
        print(ps_text(rows) if rows else "no run is going on")
    return 0


def _row(entry: Entry, before: Look | None) -> Look:
    after = _look_or_none(entry) if before else None
    if before and after:
        return rates(before, after)
    said = {"graph": entry.graph, "placement": entry.placement, "run_dir": entry.run_dir}
    silent = {"env_steps": 0, "train_iters": 0, "env_steps_per_s": None, "status": "silent"}
    return {**said, **silent, "pid": entry.pid, "wall_s": time.time() - entry.begun_at}


def _look_or_none(entry: Entry) -> Look | None:
    try:
        return look(entry)
    except FlowError:
        return None


def top(arguments: Namespace) -> int:
    """`flowrl top`."""
    entry = find_live(arguments.run)
    before = look(entry)
    if arguments.once or arguments.json or not sys.stdout.isatty():
        time.sleep(BETWEEN_S)
        found = rates(before, look(entry))
        print(json.dumps(found) if arguments.json else top_text(found, _width()))
        return 0
    with _screen() as wait_for_q:
        pause_s = BETWEEN_S
        while not wait_for_q(pause_s):
            try:
                after = look(entry)
            except Silent:
                if not lives(entry) or not Path(entry.socket).exists():
                    break
                raise
            _draw(top_text(rates(before, after), _width()))
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
    found = look(find_live(arguments.run))
    if not arguments.json:
        print(why_text(found))
        return 0
    reason = reason_of(found)
    told = {
        "run_dir": found["run_dir"],
        "status": found["status"],
        "verdict": verdict(found),
        "sites": [{**s, "waits_for": reason.waits_for[s["site"]]} for s in reason.sites],
        "cycle": [s["site"] for s in reason.cycle],
    }
    print(json.dumps(told))
    return 0


def stop(arguments: Namespace) -> int:
    """`flowrl stop`."""
    entry = find_live(arguments.run)
    if arguments.now:
        ask(entry, ask="stop", now=True)
    else:
        ask(entry, ask="stop")
        print(f"{Path(entry.run_dir).name} stops at its next cut", flush=True)
    began, told = time.monotonic(), False
    while lives(entry) and Path(entry.socket).exists():
        passed_s = time.monotonic() - began
        if passed_s > (NOW_S if arguments.now else STOP_S):
            hint = f"kill -9 {entry.pid}" if arguments.now else f"flowrl stop {entry.pid} --now"
            raise FlowError(f"{entry.run_dir}: has not stopped in {passed_s:.0f} s; try: {hint}")
        if passed_s > SOON_S and not told and (seen := _look_or_none(entry)):
            told = True
            print(f"not yet: {verdict(seen)}; --now stops at once", file=sys.stderr, flush=True)
        time.sleep(0.05)
    status, text = _ended(entry)
    print(text)
    return 1 if status in ("failed", "?") else 0


def _ended(entry: Entry) -> tuple[str, str]:
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
