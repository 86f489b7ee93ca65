"""The verb `run`."""

from __future__ import annotations

import json
import sys
import traceback
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path

from flowrl.cli.graphs import read
from flowrl.cli.output import ours_alone
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.errors import FlowError, NodeError, UsageError
from flowrl.graph.model import Limits
from flowrl.graph.sections import parse_seconds
from flowrl.runs.display import watcher_for
from flowrl.runs.result import RunResult
from flowrl.runs.result_text import result_text
from flowrl.runs.run import Run


def run(arguments: Namespace) -> int:
    """`flowrl run`."""
    checked = read(arguments).require_sound()
    for warning in () if arguments.quiet else checked.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    made = Run(
        checked,
        seed=arguments.seed,
        limits=_limits(arguments, checked.graph.limits),
        out=arguments.out,
        placement=arguments.placement or "serial",
        rendezvous=_meeting(arguments),
        hash_tokens=arguments.hash_tokens,
        watcher=watcher_for(quiet=arguments.quiet or arguments.json),
    )
    try:
        with ours_alone() if arguments.json else nullcontext():
            result = made.run()
        return _ended(arguments, result)
    except (UsageError, OSError):
        raise  # what a node or the folder meets comes as another error: this is our own output
    except KeyboardInterrupt:
        return _ended(arguments, made.ended or made.result("interrupted", "stopped at once"))
    except Exception as error:
        _tell(error)
        return _ended(arguments, made.ended or made.result("failed", str(error)))


def _meeting(arguments: Namespace) -> Rendezvous | None:
    if arguments.listen is None:
        given = arguments.key is not None or arguments.hosts > 1
        if given:
            raise UsageError("--key and --hosts are for hosts, which join at --listen ADDRESS")
        return None
    within_s = seconds_of("--hosts-within", arguments.hosts_within)
    key = Path(arguments.key) if arguments.key is not None else None
    return Rendezvous(arguments.listen, key, arguments.hosts, within_s)


def _limits(arguments: Namespace, of_graph: Limits) -> Limits:
    time_s = None if arguments.time is None else seconds_of("--time", arguments.time)
    return of_graph.overridden_by(
        steps=arguments.steps, train_iters=arguments.train_iters, time_s=time_s
    )


def seconds_of(option: str, text: str) -> float:
    """An option that is a time."""
    found = parse_seconds(text)
    if found is None:
        raise UsageError(f"{option} {text}: expected a time such as 30s, 10m or 2h")
    return found


def _ended(arguments: Namespace, result: RunResult) -> int:
    if arguments.json:
        print(json.dumps(result.as_dict()), flush=True)
    elif result.run_dir and not arguments.quiet:  # else it could not even make its folder
        print(result_text(result))
    return {"failed": 1, "interrupted": 130}.get(result.status, 0)


def _tell(error: Exception) -> None:
    """The first cause: where it was raised, and then in a line what it means."""
    cause = error.__cause__ if isinstance(error, NodeError) else error
    if cause is not None and not isinstance(cause, FlowError):
        while cause.__cause__ is not None:  # what was made of it on the way is in error.txt
            cause = cause.__cause__
        print("".join(traceback.format_exception(cause)), file=sys.stderr, end="")
    print(f"flowrl: {error}", file=sys.stderr)
