"""What a run's folder holds before anything fires: the graph as it is run, and on what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.core.context import instance_key
from flowrl.graph.expand import expand
from flowrl.graph.param_reader import written_params
from flowrl.graph.yaml_text import flow_text
from flowrl.machine.environment import environment
from flowrl.render.dot import graph_dot_text
from flowrl.runs.folder import RunFolder

ENVIRONMENT = "environment.json"


def write_beginning(folder: RunFolder, checked: CheckedGraph, seed: int, placement: str) -> None:
    """The graph, the picture, the environment, and what each node is, in its log."""
    graph = checked.graph
    folder.write_text("graph.yaml", expand(graph))
    folder.write_text("graph.dot", graph_dot_text(checked))
    folder.write_json(ENVIRONMENT, environment_of(checked, seed, placement))
    for spec in graph.nodes.values():
        for replica in range(spec.replicas):
            params = flow_text(written_params(spec.config))
            folder.append_log(instance_key(spec.name, replica), f"{spec.type} {params}")
    folder.open_tensorboard()


def environment_of(checked: CheckedGraph, seed: int, placement: str) -> dict[str, Any]:
    """What this machine and its libraries are, and how the run was begun."""
    files = checked.graph.files
    where = files[-1].parent if files else Path()
    return {**environment(where), "seed": seed, "placement": placement}
