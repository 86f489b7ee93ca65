"""A graph as a self-contained HTML page: picture, parameters, edges, schedule."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from importlib import resources
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.core.signatures import written_doc
from flowrl.core.wording import size_text
from flowrl.core.written_config import written_params
from flowrl.graph.model import NodeSpec
from flowrl.graph.yaml_text import YamlValue
from flowrl.graph.yaml_writer import flow_text
from flowrl.render.picture import Picture
from flowrl.render.report import determinism_lines, edge_facts, schedule_lines
from flowrl.render.svg import svg_element, svg_style

_HOLE = re.compile(r"@(\w+)@")


def page_html(drawn: Picture, checked: CheckedGraph) -> str:
    verdict = [str(p) for p in checked.problems] or determinism_lines(checked)
    holes = {
        "title": escape(drawn.name),
        "about": escape(drawn.about),
        "verdict": "<br>".join(map(escape, verdict)),
        "verdict_class": "problem" if checked.problems else "faint",
        "svg": svg_element(drawn),
        "svg_style": svg_style(),
        "schedule": "".join(f"<p>{escape(line)}</p>" for line in _schedule(checked)),
        "edges": _edges(checked),
        "data": _json({name: _node(checked, spec) for name, spec in checked.graph.nodes.items()}),
    }
    page = resources.files("flowrl.render").joinpath("page.html").read_text(encoding="utf-8")
    return _HOLE.sub(lambda hole: holes[hole[1]], page)


def _schedule(checked: CheckedGraph) -> list[str]:
    return schedule_lines(checked) if checked.ok else ["An unsound graph has no schedule."]


def _edges(checked: CheckedGraph) -> str:
    head = "<tr><th>from</th><th></th><th>to</th><th>carries</th></tr>"
    arrows = {"link": "↔", "state": "⇢", "stream": "→"}
    rows = [
        (", ".join(map(str, e.sources)), arrows[e.kind], str(e.to), edge_facts(checked, e))
        for e in checked.graph.edges
    ]
    return f"<table>{head}{''.join(map(_row, rows))}</table>"


def _row(cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _json(value: Any) -> str:
    """JSON inside a script element, which nothing in it can end."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def _node(checked: CheckedGraph, spec: NodeSpec) -> dict[str, Any]:
    doc = (sys.modules[spec.cls.__module__].__doc__ or written_doc(spec.cls)).strip()
    return {
        "type": spec.type,
        "about": doc.splitlines()[0] if doc else "",
        "facts": [list(row) for row in _facts(checked, spec)],
        "params": [list(row) for row in _params(spec)],
    }


def _facts(checked: CheckedGraph, spec: NodeSpec) -> Iterator[tuple[str, str, bool, str]]:
    if fires := _fires(checked, spec.name):
        yield "fires", fires, False, ""
    if spec.replicas > 1:
        yield "replicas", str(spec.written_replicas), True, ""
    if spec.on_failure != "stop":
        yield "on failure", spec.on_failure, True, ""
    if spec.torch_threads is not None:
        yield "torch threads", str(spec.torch_threads), True, ""
    facts = checked.facts.get(spec.name)
    if facts is None:
        return
    for port, schema in facts.outs.items():
        if schema:
            columns = ", ".join(f"{name} {column}" for name, column in schema.items())
            yield f"gives {port}", columns, False, ""
    if facts.env_steps:
        yield "env steps", f"{facts.env_steps} a firing", False, ""
    if facts.memory_bytes:
        yield "memory", size_text(facts.memory_bytes), False, ""


def _fires(checked: CheckedGraph, name: str) -> str:
    program = checked.program
    for paced in program.paced:
        if name in paced.schedule.firings:
            return (
                f"{paced.schedule.firings[name]} × every {paced.every} versions of {paced.source}"
            )
    return f"{program.round.firings[name]} × a round" if name in program.round.firings else ""


def _params(spec: NodeSpec) -> Iterator[tuple[str, str, bool, str]]:
    """A row for each parameter: name, value, whether the graph gives it, and its description."""
    for name, value in written_params(spec.config).items():
        info = type(spec.config).model_fields[name]
        written = [item for item in (spec.written.fields.get(name), spec.shared.get(name)) if item]
        about = info.description or ""
        if isinstance(value, Mapping) and value:
            yield name, str(value.get("type", "")), bool(written), about
            yield from _inner(name, value, written)
        else:
            yield name, flow_text(value), bool(written), about


def _inner(
    path: str, values: Mapping[str, Any], written: list[YamlValue]
) -> Iterator[tuple[str, str, bool, str]]:
    for key, value in values.items():
        below = [item.fields[key] for item in written if key in item.fields]
        if isinstance(value, Mapping) and value:
            yield from _inner(f"{path}.{key}", value, below)
        elif key != "type" or "." in path:
            yield f"{path}.{key}", flow_text(value), bool(below), ""
