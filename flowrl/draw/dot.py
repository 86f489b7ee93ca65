"""A graph as DOT."""

from __future__ import annotations

from flowrl.check import Checked


def to_dot(checked: Checked, placement: dict[str, str] | None = None) -> str:
    """The graph as DOT text."""
    lines = [f'digraph "{checked.graph.name}" {{', *(f'  "{n}";' for n in checked.graph.nodes)]
    lines += [f'  "{s.node}" -> "{e.to.node}";' for e in checked.graph.edges for s in e.sources]
    return "\n".join([*lines, "}"]) + "\n"
