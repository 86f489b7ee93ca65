"""Checks that the packages are installed with which edges compress their tokens."""

from __future__ import annotations

from collections.abc import Iterator

from flowrl.channels.wire_format import INSTALL_HINT, missing_package
from flowrl.core.errors import Problem
from flowrl.graph.model import Graph


def compression_problems(graph: Graph) -> Iterator[Problem]:
    """Yield a problem for each edge whose compression needs a package that is missing on this machine."""
    for edge in graph.edges:
        missing = missing_package(edge.compress)
        if missing is not None:
            what = (
                f"{edge}: compress is {edge.compress}, and the package {missing} is not installed"
            )
            yield Problem(str(edge.location), what, INSTALL_HINT)
