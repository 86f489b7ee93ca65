"""The verbs about graphs and the types of their nodes: check, draw, expand, diff, nodes, graphs, schema."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from flowrl.checks.check import CheckedGraph
from flowrl.checks.check import check as check_graph
from flowrl.checks.descriptions import EnvUse
from flowrl.cli.arguments import (
    add_graph,
    add_placement,
    count,
    read_graph,
    run_path_beside_graphs,
)
from flowrl.cli.streams import stdout_to_stderr
from flowrl.core.errors import GraphError, Problem, UsageError
from flowrl.graph.bundled import locate
from flowrl.graph.loading import load_graph
from flowrl.graph.tree import display_path

if TYPE_CHECKING:
    from flowrl.runs.repetition import Repetition


def check_arguments(parser: ArgumentParser) -> None:
    add_graph(parser)
    add_placement(parser)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument(
        "--no-envs",
        action="store_true",
        help="make no envs: leave out what only they can show (columns, env steps of warm-ups)",
    )
    parser.add_argument(
        "--twice",
        action="store_true",
        help="also run it for a short time in one thread, in processes and from a snapshot, and compare all bits",
    )
    parser.add_argument(
        "--train-iters",
        type=count,
        metavar="N",
        help="with --twice, the train iterations of each run",
    )
    parser.add_argument(
        "--rounds",
        type=count,
        metavar="N",
        help="with --twice, the rounds of each run, after the warm-up (default: 10)",
    )


def check(arguments: Namespace) -> int:
    from flowrl.checks.site_kinds import require_later_sites_elastic
    from flowrl.graph.placement import resolve_placement
    from flowrl.graph.site_layout import make_layout, resources_here
    from flowrl.render.placement_needs import placement_needs
    from flowrl.render.report import check_json, check_text, unreadable_graph_json

    _refuse_contradictions(arguments)
    layout = needs = None
    try:
        envs: EnvUse = "skip" if arguments.no_envs else "play"
        checked = read_graph(arguments, envs, has_hosts=True)
        if checked.ok and arguments.placement:
            graph = checked.graph
            placement = resolve_placement(graph, arguments.placement)
            layout = make_layout(graph, placement, here=resources_here(graph, placement))
            require_later_sites_elastic(checked, layout)
            needs = placement_needs(graph, placement)
    except (GraphError, UsageError) as error:
        if not arguments.json:
            raise
        problems = error.problems if isinstance(error, GraphError) else (Problem("", str(error)),)
        print(json.dumps(unreadable_graph_json(problems)))
        return 2
    if not arguments.json:
        print(check_text(checked, layout, needs), flush=True)
    status, twice = 0 if checked.ok else 2, {}
    if arguments.twice and checked.ok:
        repetition = _run_twice(arguments, checked)
        is_good = repetition.is_exact and repetition.is_continued_exactly
        status, twice = 0 if is_good else 1, {"twice": repetition.as_dict()}
        if not arguments.json:
            print(f"\n{repetition}")
    if arguments.json:
        print(json.dumps({**check_json(checked, layout, needs), **twice}))
    return status


def _refuse_contradictions(arguments: Namespace) -> None:
    if arguments.twice and arguments.no_envs:
        raise UsageError("--twice runs the graph, which needs its envs; leave --no-envs out")
    if arguments.twice and arguments.placement:
        raise UsageError(
            "--twice runs the graph in one thread and in processes; leave --placement out"
        )
    if not arguments.twice and (arguments.train_iters or arguments.rounds):
        raise UsageError("--train-iters and --rounds are the length of the runs of --twice; add it")


def _run_twice(arguments: Namespace, checked: CheckedGraph) -> Repetition:
    from flowrl.runs.repetition import run_twice, short_limits

    with stdout_to_stderr():
        return run_twice(checked, short_limits(arguments.train_iters, arguments.rounds))


def draw_arguments(parser: ArgumentParser) -> None:
    add_graph(parser)
    add_placement(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the format is that of its ending: .dot .svg .png .md .html (default: print DOT)",
    )


def draw(arguments: Namespace) -> int:
    from flowrl.graph.placement import resolve_placement
    from flowrl.render.draw import draw as draw_graph

    checked = read_graph(arguments, "make_if_installed", has_hosts=True).require_sound()
    placement = (
        resolve_placement(checked.graph, arguments.placement) if arguments.placement else None
    )
    text = draw_graph(checked, placement, Path(arguments.output) if arguments.output else None)
    print(text, end="" if text.endswith("\n") else "\n")
    return 0


def expand_arguments(parser: ArgumentParser) -> None:
    add_graph(parser)


def expand(arguments: Namespace) -> int:
    from flowrl.graph.expand import expand as expand_graph

    print(expand_graph(read_graph(arguments, "skip").require_sound().graph, origins=True), end="")
    return 0


def diff_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "a",
        metavar="A",
        help="a graph (a file, or a bundled graph's name), or else a run, named as for `flowrl eval`",
    )
    parser.add_argument("b", metavar="B", help="another one")


def diff(arguments: Namespace) -> int:
    from flowrl.graph.diff import NOTHING, compute_alike, diff_graphs, unread_note
    from flowrl.runs.run_diff import diff_runs, is_ended_run

    names = [_graph_or_run(name) for name in (arguments.a, arguments.b)]
    a, b = (
        check_graph(load_graph(_graph_path(name)), "skip").require_sound().graph for name in names
    )
    runs = Path(names[0]), Path(names[1])
    both_ended = all(map(is_ended_run, runs))
    difference = diff_graphs(a, b)
    print(f"graphs: {difference}" if difference == NOTHING and both_ended else difference)
    if note := unread_note(a, b):
        print(note)
    if both_ended:
        print(diff_runs(*runs, equal_graphs=compute_alike(a, b)))
    return 0


def _graph_or_run(name: str) -> str:
    """A graph's name as it is, or the folder of the run that is named. A word that could mean both means the graph."""
    return name if locate(name, Path()) is not None else display_path(run_path_beside_graphs(name))


def _graph_path(name: str) -> str:
    """The resolved graph of a run if `name` is its folder, or else `name`."""
    resolved = Path(name) / "graph.yaml"
    return str(resolved) if resolved.is_file() else name


def nodes_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="a type, or the import path of your own, such as mine:Policy",
    )


def nodes(arguments: Namespace) -> int:
    from flowrl.render.catalogue_text import show_catalogue, show_type

    print(show_type(arguments.name) if arguments.name else show_catalogue())
    return 0


def graphs(arguments: Namespace) -> int:
    from flowrl.render.catalogue_text import show_graphs

    print(show_graphs())
    return 0


def schema_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write it to this file (default: print it)"
    )


def schema(arguments: Namespace) -> int:
    from flowrl.graph.json_schema import schema_text

    text = schema_text()
    if arguments.output is None:
        print(text, end="")
        return 0
    try:
        Path(arguments.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"schema: {arguments.output}: cannot be written: {error.strerror}"
        ) from None
    print(arguments.output)
    return 0
