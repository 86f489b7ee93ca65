"""Executes a run for a verb: prints where it begins, how it ends, and returns the exit status."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from contextlib import nullcontext
from typing import TYPE_CHECKING

from flowrl.cli.streams import stdout_to_stderr
from flowrl.core.errors import LOADING_STATE, NodeError, UsageError, needs_traceback
from flowrl.core.tracebacks import first_cause_traceback
from flowrl.machine.resource_limits import address_space_shortage
from flowrl.runs.result import RunResult, result_text
from flowrl.runs.run import Run

if TYPE_CHECKING:
    from flowrl.runs.snapshot_files import StoredSnapshot

EXIT_STATUSES = {"failed": 1, "interrupted": 130}  # by the status of a run; otherwise 0


def print_beginning(
    arguments: Namespace, verb: str, stored: StoredSnapshot, difference: str
) -> None:
    """Print from which snapshot a run begins, and what was changed."""
    for line in stored.damaged:
        print(f"warning: a damaged snapshot is passed over: {line}", file=sys.stderr)
    if arguments.quiet or arguments.json:
        return
    if difference:
        print(difference)
    counts = stored.snapshot.counts
    print(
        f"{verb} after {counts.env_steps:,} env steps and {counts.train_iters:,} train iterations "
        f"(state {stored.state_digest[:16]})"
    )


def execute(arguments: Namespace, run: Run) -> int:
    """Run, print the result, and return the exit status."""
    try:
        with stdout_to_stderr() if arguments.json else nullcontext():
            result = run.run()
        return _print_result(arguments, result)
    except (UsageError, OSError):
        raise  # from our own output: errors of nodes and of the folder have other types
    except KeyboardInterrupt:
        return _print_result(arguments, run.ended or run.result("interrupted", run.why_without_cut))
    except Exception as error:
        is_unfit = run.is_fork and isinstance(error, NodeError) and error.doing == LOADING_STATE
        _print_error(error, with_traceback=not is_unfit)
        return _print_result(arguments, run.ended or run.result("failed", str(error)))


def _print_result(arguments: Namespace, result: RunResult) -> int:
    """Print the result, and return the exit status."""
    if arguments.json:
        print(json.dumps(result.as_dict()), flush=True)
    elif result.run_dir and not arguments.quiet:  # without a folder, the error was all
        print(result_text(result))
    return EXIT_STATUSES.get(result.status, 0)


def _print_error(error: Exception, with_traceback: bool = True) -> None:
    """Print the traceback of the first cause, unless its message says everything, and then the error in one line."""
    shortage = address_space_shortage(error)
    if shortage:
        print(f"flowrl: {error}; {shortage}", file=sys.stderr)
        return
    cause = error.__cause__ if isinstance(error, NodeError) else error
    if with_traceback and cause is not None and needs_traceback(cause):
        # the errors that it was turned into, and flowrl's own calls, are in error.txt
        print(first_cause_traceback(cause), file=sys.stderr, end="")
    print(f"flowrl: {error}", file=sys.stderr)
