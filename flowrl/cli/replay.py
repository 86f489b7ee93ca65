"""The verb `replay`: runs nodes against a tape, or a crashed env from its crash file."""

from __future__ import annotations

import importlib
import shlex
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flowrl.core.errors import NodeError, UsageError
from flowrl.graph.tree import display_path

if TYPE_CHECKING:
    from flowrl.runs.tape_file import Tape


def replay_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a tape of `flowrl record`, or a crash file of a failed run's folder",
    )
    parser.add_argument(
        "nodes",
        nargs="*",
        default=[],  # without it, argparse would call NODE required
        metavar="NODE",
        help="the node, or replica, that is run against the tape, or several; without one, the tape is described",
    )
    parser.add_argument("--pdb", action="store_true", help="stop in the debugger where it fails")


def replay(arguments: Namespace) -> int:
    from flowrl.runs.tape_file import is_tape

    if is_tape(Path(arguments.file)):
        return _replay_tape(arguments)
    if arguments.nodes:
        raise UsageError(f"{arguments.file}: is no tape, so NODE has no meaning; leave it out")
    return _replay_crash_file(arguments)


def _replay_tape(arguments: Namespace) -> int:
    """Describe a tape, or run a node against it. The status is 1 if it gave something else than what was recorded."""
    from flowrl.runs.tape_file import Tape
    from flowrl.runs.tape_replay import replay_part
    from flowrl.runs.tape_text import replay_notes, tape_text

    tape = Tape(Path(arguments.file))
    if tape.facts.firing is not None:
        if arguments.nodes:
            raise UsageError(
                f"{tape.path}: is of one failed firing, so NODE has no meaning; leave it out"
            )
        return _fire_again(arguments, tape)
    if not arguments.nodes:
        print(tape_text(tape))
        return 0
    for note in replay_notes(tape):
        print(note, file=sys.stderr)
    with showing_failures(arguments.pdb):
        result = replay_part(tape, arguments.nodes)
    print(result)
    return 0 if result.is_exact else 1


def _fire_again(arguments: Namespace, tape: Tape) -> int:
    """Fire a failed firing again. The status is 0 if it failed again, which is what the user wants to see, else 1."""
    from flowrl.runs.tape_replay import fire_again
    from flowrl.runs.tape_text import firing_text

    print(firing_text(tape), flush=True)
    found = fire_again(tape)
    if found.error is None:
        run = shlex.quote(display_path(tape.path.absolute().parent))
        print(
            f"it did not fail again; with its exact state it may: flowrl record {run} {found.node} repeats the run"
        )
        return 1
    _show_failure(found.error, arguments.pdb)
    print(f"it failed again: {type(found.error).__name__}: {found.error}")
    return 0


@contextmanager
def showing_failures(debug: bool) -> Iterator[None]:
    """Print the traceback of an error that a node raises; `debug` opens the debugger there."""
    try:
        yield
    except NodeError as error:
        _show_failure(error.__cause__ or error, debug)
        raise


def _show_failure(error: BaseException, debug: bool) -> None:
    traceback.print_exception(error)
    if debug:
        import pdb

        pdb.post_mortem(error.__traceback__)


def _replay_crash_file(arguments: Namespace) -> int:
    """Replay an env's last episode. The status is 0 if it failed again, which is what the user wants to see, else 1."""
    # by name, because the engine imports no nodes
    module = importlib.import_module("flowrl.nodes.env_managers.crash_files")
    return 0 if module.replay_crash_file(arguments.file, arguments.pdb) else 1
