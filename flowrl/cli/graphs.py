"""The verbs that look at graphs: check, draw, expand, diff, nodes, graphs, schema."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from flowrl.checks.check import CheckedGraph
from flowrl.checks.check import check as check_graph
from flowrl.checks.descriptions import EnvUse
from flowrl.cli.output import ours_alone
from flowrl.core.errors import GraphError, Problem, UsageError
from flowrl.graph.loading import load_graph


def read(arguments: Namespace, envs: EnvUse = "make") -> CheckedGraph:
    """The graph that the words mean, checked; `envs`: whether envs are made, to look at their spaces."""
    with ours_alone():
        return check_graph(load_graph(arguments.graph, sets_of(arguments)), envs)


def sets_of(arguments: Namespace) -> dict[str, str]:
    """The `--set` words, by key."""
    found = {}
    for text in arguments.sets:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {text}: expected KEY=VALUE, such as learner.lr=3e-4")
        found[key.strip()] = value
    return found


def check(arguments: Namespace) -> int:
    """`flowrl check`."""
    from flowrl.render.report import check_json, check_text

    try:
        checked = read(arguments, "skip" if arguments.no_envs else "make")
    except (GraphError, UsageError) as error:
        if not arguments.json:
            raise
        told = error.problems if isinstance(error, GraphError) else (Problem("", str(error)),)
        print(json.dumps(_unreadable(told)))
        return 2
    print(json.dumps(check_json(checked)) if arguments.json else check_text(checked))
    return 0 if checked.ok else 2


def _unreadable(problems: tuple[Problem, ...]) -> dict[str, object]:
    told = [{"where": p.where, "what": p.what, "hint": p.hint} for p in problems]
    return {
        "ok": False,
        "deterministic": False,
        "reasons": [],
        "nodes": {},
        "edges": [],
        "schedule": {},
        "problems": told,
        "warnings": [],
        "envs_checked": False,
        "not_checked": {},
    }


def draw(arguments: Namespace) -> int:
    """`flowrl draw`."""
    from flowrl.graph.placement import resolve_placement
    from flowrl.render.draw import draw as draw_graph

    checked = read(arguments, "make_if_installed").require_sound()
    placement = (
        resolve_placement(checked.graph, arguments.placement) if arguments.placement else None
    )
    text = draw_graph(checked, placement, Path(arguments.output) if arguments.output else None)
    print(text, end="" if text.endswith("\n") else "\n")
    return 0


def expand(arguments: Namespace) -> int:
    """`flowrl expand`."""
    from flowrl.graph.expand import expand as expand_graph

    print(expand_graph(read(arguments, "skip").require_sound().graph, origins=True), end="")
    return 0


def diff(arguments: Namespace) -> int:
    """`flowrl diff`."""
    from flowrl.graph.diff import NOTHING, compute_alike, diff_graphs
    from flowrl.runs.run_diff import diff_runs, is_ended_run

    a, b = (
        check_graph(load_graph(_graph_of(name)), "skip").require_sound().graph
        for name in (arguments.a, arguments.b)
    )
    runs = Path(arguments.a), Path(arguments.b)
    both = all(map(is_ended_run, runs))
    print(f"graphs: {told}" if (told := diff_graphs(a, b)) == NOTHING and both else told)
    if both:
        print(diff_runs(*runs, equal_graphs=compute_alike(a, b)))
    return 0


def _graph_of(name: str) -> str:
    """A run's folder stands for the graph that it ran."""
    inside = Path(name) / "graph.yaml"
    return str(inside) if inside.is_file() else name


def nodes(arguments: Namespace) -> int:
    """`flowrl nodes`."""
    from flowrl.render.catalogue_text import show_catalogue, show_type

    print(show_type(arguments.name) if arguments.name else show_catalogue())
    return 0


def graphs(arguments: Namespace) -> int:
    """`flowrl graphs`."""
    from flowrl.render.catalogue_text import show_graphs

    print(show_graphs())
    return 0


def schema(arguments: Namespace) -> int:
    """`flowrl schema`."""
    from flowrl.graph.catalogue import Catalogue
    from flowrl.graph.json_schema import json_schema

    print(json.dumps(json_schema(Catalogue()), indent=2))
    return 0
