"""What a run writes to its folder before a node is made: the graph, the environment, and each node's parameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowrl.core.context import instance_key
from flowrl.core.written_config import written_params
from flowrl.graph.expand import expand, parameter_lines
from flowrl.graph.model import Graph
from flowrl.graph.settings import policy_settings
from flowrl.graph.yaml_writer import flow_text
from flowrl.machine.environment import environment, library_versions
from flowrl.render.dot import graph_dot_text
from flowrl.runs.folder import ENVIRONMENT_FILE, RunFolder

if TYPE_CHECKING:
    from flowrl.runs.run import Run


def write_initial_files(run: Run, folder: RunFolder) -> None:
    """Write what is known before a node is made. A run that continues in its folder has logs of its nodes already."""
    folder.facts = {"libraries": library_versions(), "settings": policy_settings(run.graph)}
    folder.write_text("graph.yaml", expand(run.graph))
    folder.write_text("graph.dot", graph_dot_text(run.checked))
    write_environment(run, folder)
    folder.write_text("params.yaml", params_text(run.graph))
    if run.continued is not None and not run.is_fork:
        folder.open_tensorboard(run.settings, run.continued.snapshot.counts.env_steps)
        return
    for spec in run.graph.nodes.values():
        for replica in range(spec.replicas):
            folder.create_log(instance_key(spec.name, replica))
    folder.open_tensorboard(run.settings)


def write_environment(run: Run, folder: RunFolder) -> None:
    """Write down this machine and its libraries, the hosts that have joined, and how the run was started."""
    files = run.graph.files
    project = files[-1].parent if files else Path()
    resolved = {
        f"{node}.{name}": value
        for node, facts in run.checked.facts.items()
        for name, value in facts.resolved.items()
    }
    how: dict[str, Any] = {"seed": run.seed, "placement": run.placement, "resolved": resolved}
    if run.parent is not None:
        how["parent"] = run.parent
    if run.sites.hosts is not None:
        how["hosts"] = run.sites.hosts.facts_by_host()
    folder.write_json(ENVIRONMENT_FILE, {**environment(project), **how})


def params_text(graph: Graph) -> str:
    """The type and the parameters of each node as YAML, one in a line."""
    lines = []
    for spec in graph.nodes.values():
        lines.append(f"{flow_text(spec.name)}:")
        for name, value in {"type": spec.type, **written_params(spec.config)}.items():
            lines += parameter_lines(name, value, depth=1)
    return "\n".join(lines) + "\n"
