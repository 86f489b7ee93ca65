"""A graph as DOT: a table for each node, a style for each kind of edge, a cluster for each site."""

from __future__ import annotations

from collections.abc import Iterator

from flowrl.checks.check import CheckedGraph
from flowrl.graph.placement import Placement
from flowrl.render.picture import Arrow, Box, Picture, make_picture

FILLS = {  # by the role of a node
    "collector": "#d9f0e3",
    "learner": "#dbe7fb",
    "evaluator": "#fdebd0",
    "service": "#eceff1",
    "node": "#ffffff",
}
INK, FAINT = "#1f2933", "#66727f"
COLOURS = {"stream": "#33516e", "state": "#b4530a", "link": "#7a8691"}

_HEAD = f"""\
  graph [rankdir=LR, fontname="Helvetica", fontsize=14, fontcolor="{INK}", labelloc=t, labeljust=l,
         nodesep=0.45, ranksep=0.9, pad=0.3, bgcolor="white"];
  node [shape=plain, fontname="Helvetica", fontsize=11, fontcolor="{INK}"];
  edge [fontname="Helvetica", fontsize=9, arrowsize=0.7, penwidth=1.3];
"""
_STYLES = {
    "stream": 'color="{0}", fontcolor="{0}"'.format(COLOURS["stream"]),
    "state": 'color="{0}", fontcolor="{0}", style=dashed'.format(COLOURS["state"]),
    "link": 'color="{0}:invis:{0}", fontcolor="{0}", dir=none'.format(COLOURS["link"]),
}


def graph_dot_text(checked: CheckedGraph, placement: Placement | None = None) -> str:
    return dot_text(make_picture(checked, placement))


def dot_text(drawn: Picture) -> str:
    lines = [f"digraph {quoted(drawn.name)} {{", _HEAD, f"  label=<{_title(drawn)}>;", ""]
    lines += _boxes(drawn)
    lines += ["", *(_edge(arrow) for arrow in drawn.arrows)]
    return "\n".join([*lines, "}"]) + "\n"


def quoted(text: str) -> str:
    """A DOT string, without control characters."""
    kept = "".join(c for c in text if c.isprintable() or c == "\n")
    return '"' + kept.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def escaped(text: str) -> str:
    """Text inside an HTML-like label, without control characters."""
    kept = "".join(c if c.isprintable() else " " for c in text)
    return (
        kept.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    )


def _title(drawn: Picture) -> str:
    """The graph's name, its description and its warm-up. (A node for the warm-up would distort the layout.)"""
    below = [drawn.about] if drawn.about else []
    below += [f"warm-up, {line}" for line in drawn.warmup]
    small = "".join(
        f'<font point-size="11" color="{FAINT}">{escaped(line)}</font><br align="left"/>'
        for text in below
        for line in text.splitlines()
    )
    return f'<b>{escaped(drawn.name)}</b><br align="left"/>{small}'


def _boxes(drawn: Picture) -> Iterator[str]:
    if not drawn.sites:
        yield from (f"  {_node(box)}" for box in drawn.boxes.values())
        return
    for number, (site, names) in enumerate(drawn.sites.items()):
        yield f"  subgraph cluster_{number} {{"
        yield f"    label={quoted(site)}; fontsize=11; fontcolor={quoted(FAINT)};"
        yield '    style="rounded,filled"; color="#b8c4ce"; fillcolor="#f7f9fa"; margin=14;'
        yield from (f"    {_node(drawn.boxes[name])}" for name in names)
        yield "  }"


def _node(box: Box) -> str:
    """A table: name, type and replicas above a column of inputs and a column of outputs."""
    times = f' <font color="{COLOURS["state"]}">{box.times}</font>' if box.times else ""
    rows = [
        f'<tr><td colspan="2" bgcolor="{FILLS[box.look]}" cellpadding="6">'
        f"<b>{escaped(box.name)}</b>{times}<br/>"
        f'<font point-size="9" color="{FAINT}">{escaped(box.type)}</font></td></tr>'
    ]
    for i in range(max(len(box.inputs), len(box.outputs))):
        rows.append(f"<tr>{_port(box.inputs, i, 'in')}{_port(box.outputs, i, 'out')}</tr>")
    table = (
        f'<table border="1" cellborder="0" cellspacing="0" cellpadding="3" '
        f'bgcolor="white" color="{FAINT}">{"".join(rows)}</table>'
    )
    return f"{quoted(box.name)} [label=<{table}>];"


def _port(ports: tuple[str, ...], i: int, side: str) -> str:
    if i >= len(ports):
        return "<td></td>"
    align = "left" if side == "in" else "right"
    text = f'<font point-size="9">{escaped(ports[i])}</font>'
    return f'<td port={quoted(f"{side}_{ports[i]}")} align="{align}">{text}</td>'


def _edge(arrow: Arrow) -> str:
    source = f"{quoted(arrow.source.node)}:{quoted('out_' + arrow.source.port)}:e"
    to = f"{quoted(arrow.to.node)}:{quoted('in_' + arrow.to.port)}:w"
    words = "\\n".join(quoted(w)[1:-1] for w in (arrow.type, arrow.facts, arrow.transport) if w)
    tooltip = quoted(f"{arrow.source} to {arrow.to}")
    style = f'label="{words}", tooltip={tooltip}, {_STYLES[arrow.kind]}'
    return f"  {source} -> {to} [{style}{', constraint=false' if arrow.back else ''}];"
