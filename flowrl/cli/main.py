"""Words to verbs, and what every verb's errors become.

Nothing heavy is imported here: `flowrl --help` must answer at once. A verb's module is imported
when it is called.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence

from flowrl.cli.parser import make_parser


def main(argv: Sequence[str] | None = None) -> int:
    """One verb; the exit status: 0 done, 1 failed, 2 wrong graph or arguments, 130 interrupted."""
    _ready_streams()
    try:
        try:
            return _main(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        pass  # whoever read our output has gone, and knows it
    except OSError as error:
        print(f"flowrl: {error.strerror or error}", file=sys.stderr)
    # Python shall not try to write the rest when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _ready_streams() -> None:
    """A stream that was closed swallows what it is told; a letter that a terminal lacks ends no run."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # or else the next file that is opened would be taken for it
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this
            os.set_inheritable(number, True)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as we live
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _main(argv: Sequence[str] | None) -> int:
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "verb"):
        parser.print_help()
        return 0
    module, _, function = arguments.verb.partition(":")
    from flowrl.core.errors import FlowError, GraphError, UsageError

    try:
        return int(getattr(importlib.import_module(f"flowrl.cli.{module}"), function)(arguments))
    except GraphError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 2
    except UsageError as error:
        print(f"flowrl: {error}", file=sys.stderr)
        return 2
    except FlowError as error:
        print(f"flowrl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("flowrl: interrupted", file=sys.stderr)
        return 130
