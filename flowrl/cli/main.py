"""The command line `flowrl VERB …`: the list of verbs, and the exit status for every kind of error.

A verb is a function `f(arguments)` in a module of this package. If it has arguments, `f_arguments(parser)` in the same
module declares them. A module is imported only for its own verbs, so `flowrl --help` imports nothing heavy.
"""

from __future__ import annotations

import errno
import faulthandler
import importlib
import os
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from flowrl.cli.streams import prepare_streams
from flowrl.machine.closed_terminal import leave_closed_terminal, obeys_hangup
from flowrl.machine.resource_limits import address_space_shortage
from flowrl.version import VERSION

ABOUT = (
    "Train reinforcement-learning agents as dataflow graphs in YAML. Placement is not semantics."
)
INTERRUPTED = 130  # the exit status

VERBS = {  # verb: module, function, description
    "run": ("run", "run", "run a graph"),
    "resume": ("resume", "resume", "continue a run from its newest snapshot"),
    "fork": (
        "fork",
        "fork",
        "begin a new run from a snapshot of another one, with changed settings",
    ),
    "population": (
        "population",
        "population",
        "train several runs of a graph that copy the best and change their settings",
    ),
    "check": ("graphs", "check", "prove a graph sound, or list every problem"),
    "chaos": ("chaos", "chaos", "disturb a run on purpose, and see whether its bits are the same"),
    "draw": ("graphs", "draw", "draw a graph: DOT, SVG, PNG, Mermaid or HTML"),
    "expand": (
        "graphs",
        "expand",
        "the resolved graph: every default, and where each value came from",
    ),
    "diff": (
        "graphs",
        "diff",
        "the difference of two graphs; for two runs also the first token that differs",
    ),
    "nodes": (
        "graphs",
        "nodes",
        "the catalogue of types; for one type its ports, parameters and defaults",
    ),
    "graphs": ("graphs", "graphs", "the bundled graphs"),
    "schema": ("graphs", "schema", "JSON schema of the graph format, for editors"),
    "eval": ("ended_runs", "evaluate", "evaluate a checkpoint of a run, usually the best one"),
    "export": ("ended_runs", "export", "write the policy of a checkpoint as an ONNX file"),
    "league": (
        "leagues",
        "league",
        "the players of a run's league: ratings, who won against whom, who began as whose copy",
    ),
    "tournament": (
        "leagues",
        "tournament",
        "let trained runs play against each other, and rate them",
    ),
    "plot": ("ended_runs", "plot", "the learning curves of runs, as a picture"),
    "ps": ("live_runs", "ps", "the active runs of this user on this machine"),
    "top": ("top", "top", "where the time of a run goes, and how full its edges are"),
    "why": (
        "live_runs",
        "why",
        "which instance of a run waits for which, on which edge, since when",
    ),
    "peek": ("peek", "peek", "what passes an edge of a run: columns, numbers, a few rows"),
    "snapshot": (
        "live_runs",
        "snapshot",
        "let a run save a snapshot, from which it can be resumed",
    ),
    "stop": ("live_runs", "stop", "end a run at its next cut, as Ctrl-C does"),
    "logs": ("logs", "logs", "the log lines of a run's nodes, also after it has ended"),
    "record": ("record", "record", "run a graph, or repeat a run, and tape what passes some edges"),
    "replay": (
        "replay",
        "replay",
        "run a node again against a tape, or a crashed env from its crash file",
    ),
    "host": ("hosts", "host", "offer this machine to a run"),
    "hosts": ("hosts", "hosts", "the hosts of a run, and what starts them"),
    "new": ("new_project", "new", "create a starting project in a new folder"),
    "docs": ("docs", "docs", "read the documentation of this version"),
    "completion": (
        "completion",
        "completion",
        "print a script with which a shell completes verbs, options, graphs and runs",
    ),
    "doctor": ("doctor", "doctor", "find out what is wrong with this installation"),
}


def command() -> NoReturn:
    """Be the process `flowrl`: run the verb of its arguments, and end."""
    ending = (signal.SIGTERM, signal.SIGHUP) if obeys_hangup() else (signal.SIGTERM,)
    for number in ending:
        signal.signal(number, _interrupt)
    faulthandler.enable(2)  # a crash prints the traceback
    status = INTERRUPTED
    with suppress(KeyboardInterrupt):  # a signal between the verb's end and the next lines
        status = main()
        for number in (signal.SIGINT, *ending):
            signal.signal(number, signal.SIG_DFL)  # everything has been said
    from flowrl.machine.process_exit import exit_now

    exit_now(status)


def _interrupt(number: int, frame: Any) -> NoReturn:
    """Treat SIGTERM, which cluster managers send, and a closed terminal like Ctrl-C. Verbs replace this where they can
    do better.
    """
    if number == signal.SIGHUP:
        leave_closed_terminal()
    raise KeyboardInterrupt(signal.Signals(number).name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb, and return the exit status: 0 done, 1 failed, 2 wrong graph or arguments, 130 interrupted."""
    prepare_streams()
    try:
        try:
            return _run_verb(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        pass  # the reader of our output has ended, and needs no message
    except KeyboardInterrupt as interrupt:  # also during imports, which take a second
        by = f" by {interrupt}" if str(interrupt) else ""
        print(f"flowrl: interrupted{by}", file=sys.stderr)
        return INTERRUPTED
    except (OSError, ImportError, MemoryError, RuntimeError) as error:
        shortage = address_space_shortage(error)
        if not shortage and not isinstance(error, OSError):
            raise
        print(f"flowrl: {shortage or _os_error_text(error)}", file=sys.stderr)
    # so that Python does not try to write the rest at exit
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _working_folder() -> str:
    from flowrl.core.errors import UsageError

    try:
        return os.getcwd()
    except FileNotFoundError:
        what = "the working folder is not there any more"
        raise UsageError(f"{what}; change to another one") from None


def _refuse_undecodable(words: Sequence[str]) -> None:
    """Refuse names that are no text, neither in the encoding of this locale nor in UTF-8: no file could name them."""
    from flowrl.core.errors import UsageError

    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            name = os.fsencode(word)
            try:  # where the locale has another encoding, Python reads UTF-8 as escapes
                name.decode("utf-8")
            except UnicodeDecodeError:
                encodings = " and ".join({"utf-8": "", sys.getfilesystemencoding(): ""})
                what = f"{ascii(name)[2:-1]}: is no text in {encodings}"
                raise UsageError(f"{what}; rename it") from None


def _os_error_text(error: BaseException) -> str:
    """What the system said, and of which file."""
    why = getattr(error, "strerror", None) or str(error)
    file = getattr(error, "filename", None)
    if file is not None:
        return f"{os.fsdecode(file)}: {why}"
    is_of_writing = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
    return f"the output cannot be written: {why}" if is_of_writing else why


# Options of other libraries' commands, and flowrl's names for them.
NAMES_ELSEWHERE = {
    **dict.fromkeys(("dir", "log-dir", "logdir", "output", "run-dir", "save-dir"), "out"),
    **dict.fromkeys(("env-steps", "timesteps", "total-steps", "total-timesteps"), "steps"),
    **dict.fromkeys(("iterations", "iters", "num-iters"), "train-iters"),
}


class VerbParser(ArgumentParser):
    """The parser of one verb's arguments, which shows its own usage where it does not know one."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unknown argument '{unknown[0]}'{self._hint(unknown[0])}")
        return found, []

    def _hint(self, word: str) -> str:
        """What may be meant by an unknown word: an option, or a verb that is written like one."""
        from flowrl.core.errors import closest_word

        option = word.partition("=")[0]
        if not option.startswith("-"):
            return ""
        if (verb := option.removeprefix("--")) in VERBS:
            return f"; did you mean the verb, `flowrl {verb}`?"
        options = {name.lstrip("-"): name for name in self._option_string_actions}
        name = option.lstrip("-")
        near = NAMES_ELSEWHERE.get(name)
        near = near if near in options else closest_word(name, options)
        return f"; did you mean '{options[near]}'?" if near else ""


def make_parser(chosen: str | None) -> ArgumentParser:
    """The parser of the command line, with the arguments of the chosen verb only."""
    parser = ArgumentParser("flowrl", description=ABOUT)
    parser.add_argument("--version", action="version", version=f"flowrl {VERSION}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=VerbParser)
    for verb, (module_name, function, about) in VERBS.items():
        verb_parser = verbs.add_parser(verb, help=about, description=about)
        if verb == chosen:
            module = importlib.import_module(f"flowrl.cli.{module_name}")
            if add_arguments := getattr(module, f"{function}_arguments", None):
                add_arguments(verb_parser)
            verb_parser.set_defaults(function=getattr(module, function))
    return parser


def _run_verb(argv: Sequence[str]) -> int:
    begun = Namespace(begun_s=time.perf_counter())
    from flowrl.core.errors import FlowError, GraphError, UsageError, closest_word

    parser = make_parser(argv[0] if argv else None)
    if argv and not argv[0].startswith("-") and argv[0] not in VERBS:
        near = closest_word(argv[0], VERBS)
        hint = f"did you mean '{near}'?" if near else f"known: {', '.join(VERBS)}"
        parser.error(f"there is no verb '{argv[0]}'; {hint}")
    arguments = parser.parse_args(argv, begun)
    if not hasattr(arguments, "function"):
        parser.print_help()
        return 0
    try:
        _refuse_undecodable((*argv, _working_folder()))
        return int(arguments.function(arguments))
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
