"""Arguments that several verbs share: their declaration, and what their values stand for."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowrl.checks.check import CheckedGraph, check_placed
from flowrl.checks.descriptions import EnvUse
from flowrl.cli.streams import stdout_to_stderr
from flowrl.core.errors import UsageError, closest_word
from flowrl.graph.bundled import bundled_graphs
from flowrl.graph.loading import load_graph
from flowrl.graph.model import Graph
from flowrl.graph.sections import parse_seconds
from flowrl.graph.yaml_text import plain_scalar
from flowrl.machine.forked_call import can_fork


def add_graph(parser: ArgumentParser) -> None:
    """Add GRAPH and --set, which `read_graph` reads."""
    parser.add_argument(
        "graph", metavar="GRAPH", help="a graph file, or the name of a bundled graph"
    )
    add_set(parser)


def add_set(parser: ArgumentParser) -> None:
    """Add --set, which `settings` reads."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="sets",
        help="set one value: node.parameter, node.input.option, section.key (repeatable)",
    )


def read_graph(
    arguments: Namespace,
    envs: EnvUse = "make",
    has_hosts: bool = False,
    additions: Mapping[str, Any] | None = None,
) -> CheckedGraph:
    """Load and check the graph. `envs` says whether envs are made to describe their spaces.

    `additions` are what a file that extends the graph would say.
    With `has_hosts`, nodes that the placement puts on hosts may use devices that this machine lacks.
    """
    with stdout_to_stderr():
        loaded = load_graph(arguments.graph, settings(arguments), additions)
        placement = getattr(arguments, "placement", None)
        return check_placed(loaded, placement, has_hosts, envs, can_fork())


def load_written_graph(arguments: Namespace) -> Graph:
    """Load the graph as far as its nodes can be read, without checking it."""
    return load_graph(arguments.graph, settings(arguments)).graph


def settings(arguments: Namespace) -> dict[str, str]:
    """The values of --set by their keys."""
    found = {}
    for text in arguments.sets:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {text}: expected KEY=VALUE, such as learner.lr=3e-4")
        if key.strip() in found:
            raise UsageError(f"--set {text}: '{key.strip()}' is set twice; leave one of them out")
        found[key.strip()] = value
    return found


def add_placement(parser: ArgumentParser, default: str = "serial") -> None:
    parser.add_argument(
        "--placement",
        metavar="P",
        help=f"a placement's name or file, or node=place,… (default: {default})",
    )


def add_run(parser: ArgumentParser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        help="a run's folder, its name or a unique prefix of it, a pid, or 'last' for the newest run under "
        "this folder",
    )


def run_path_beside_graphs(name: str) -> Path:
    """The folder of the run with this name, where a graph could be named as well: one that is misspelt is suggested."""
    from flowrl.runs.run_names import existing_run_path

    try:
        return existing_run_path(name)
    except UsageError as error:
        near = closest_word(name, bundled_graphs())
        if near is None:
            raise
        raise UsageError(f"{error}; or did you mean the graph '{near}'?") from None


def add_trained(parser: ArgumentParser) -> None:
    """Add RUN, which may be a bundled graph, and --checkpoint."""
    parser.add_argument(
        "run",
        metavar="RUN|GRAPH",
        help="a run's folder, its name or a unique prefix of it, a pid, 'last' for the newest run under this folder, "
        "or a bundled graph of which flowrl has a checkpoint",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="NAME|FILE",
        help="best, last, another checkpoint of the run, or a .safetensors file (default: best, or last if there was "
        "no evaluation)",
    )


def add_key(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--key", metavar="FILE", help="the key of the run and its hosts; not needed on the loopback"
    )


def count(text: str) -> int:
    """A whole number of 1 or more, written as in a graph: 20000, 20_000 or 2e4."""
    return _whole_number(text, 1, "of 1 or more")


def number_of_rounds(text: str) -> int:
    """A whole number of 0 or more."""
    return _whole_number(text, 0, "of 0 or more")


def seed(text: str) -> int:
    """A whole number from 0 to 2^63 - 1."""
    return _whole_number(text, 0, "from 0 to 2^63 - 1")


def seeds(text: str) -> tuple[int, ...]:
    """Several seeds: how many (5, which is 0..4), from one to another (0..4), or one by one (0,3,7)."""
    first, dots, last = text.partition("..")
    if dots:
        found = tuple(range(seed(first), seed(last) + 1))
    elif "," in text:
        found = tuple(map(seed, text.split(",")))
    else:
        found = tuple(range(count(text)))
    if not found or len(set(found)) < len(found):
        raise ArgumentTypeError(
            f"{text!r} names {'a seed twice' if found else 'no seed'}; expected 5, 0..4 or 0,3,7"
        )
    return found


def _whole_number(text: str, least: int, expected: str) -> int:
    try:
        value = plain_scalar(text.strip())
    except ValueError:
        value = None  # it does not fit into 64 bits
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ArgumentTypeError(f"{text!r} is not a whole number {expected}")
    return value


def seconds_of(option: str, text: str) -> float:
    """The value of an option that is a duration."""
    seconds = parse_seconds(text)
    if seconds is None:
        raise UsageError(f"{option} {text}: expected a time such as 30s, 10m or 2h")
    return seconds
