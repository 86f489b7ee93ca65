"""The verbs about active runs: ps, why, snapshot and stop."""

from __future__ import annotations

import json
import shlex
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from flowrl.cli.arguments import add_run
from flowrl.core.errors import FlowError
from flowrl.core.json_text import parse_object
from flowrl.core.wording import count_text
from flowrl.runs.folder import SUMMARY_FILE
from flowrl.runs.queries import NoAnswerError, ask, query_status, save_snapshot
from flowrl.runs.registry import RunEntry, is_active, is_alive, killed_entries, live_entries
from flowrl.runs.run_names import find_live_run
from flowrl.runs.top import RUN_ROW, RunRow, ps_text, row_of
from flowrl.runs.why import verdict, wait_graph, why_text
from flowrl.runtime.status import SITE_STATUS, RunStatus

EXPLAIN_AFTER_S = 5.0  # of waiting for a stop, the reason is printed
STOP_TIMEOUT_S, STOP_NOW_TIMEOUT_S = 120.0, 20.0
STOP_POLL_S = 0.05


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
    return RunRow(*about, None, None, None, entry.run_dir)


def _status_or_none(entry: RunEntry) -> RunStatus | None:
    try:
        return query_status(entry)
    except FlowError:
        return None


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
    status, text = ended_run_text(entry)
    print(text)
    return 1 if status in ("failed", "?") else 0


def ended_run_text(entry: RunEntry) -> tuple[str, str]:
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
