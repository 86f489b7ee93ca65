"""What a run's folder holds before anything fires: the graph as it is run, and on what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowrl.checks.check import Checked
from flowrl.context import key_of
from flowrl.draw.dot import to_dot
from flowrl.runs.environment import environment
from flowrl.runs.folder import RunFolder
from flowrl.source.params import written_params
from flowrl.source.yamltext import flow_text
from flowrl.tools.expand import expand

ENVIRONMENT = "environment.json"


def write_beginning(folder: RunFolder, checked: Checked, seed: int, placement: str) -> None:
    """The graph, the picture, the environment, and what each node is, in its log."""
    graph = checked.graph
    folder.text("graph.yaml", expand(graph))
    folder.text("graph.dot", to_dot(checked))
    folder.json(ENVIRONMENT, environment_of(checked, seed, placement))
    for spec in graph.nodes.values():
        for replica in range(spec.replicas):
            params = flow_text(written_params(spec.config))
            folder.log(key_of(spec.name, replica), f"{spec.type} {params}")
    folder.open_board()


def environment_of(checked: Checked, seed: int, placement: str) -> dict[str, Any]:
    """What this machine and its libraries are, and how the run was begun."""
    files = checked.graph.files
    where = files[-1].parent if files else Path()
    return {**environment(where), "seed": seed, "placement": placement}
