"""The trained policy of a run, made of its resolved graph and a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from flowrl.checks.check import CheckedGraph, check
from flowrl.core.checkpoint import read_acting
from flowrl.core.errors import RunError
from flowrl.core.project_modules import importable_modules
from flowrl.graph.loading import load_graph
from flowrl.graph.model import Graph, NodeSpec
from flowrl.machine.forked_call import can_fork
from flowrl.runs.trained_graph import find_trained_graph
from flowrl.runtime.linked_nodes import context_of


class TrainedPolicy(Protocol):
    """Acts greedily, with fixed weights."""

    def act(self, obs: Any) -> Any:
        """Return the action for one observation, or the actions for a batch of them (B, …).

        Observations and actions are those of the graph's env. A policy with memory remembers what it saw.
        """

    def reset(self, rows: Any = None) -> None:
        """Forget what was seen, because episodes begin: in these rows of the batch, or in all."""

    def export_onnx(self, path: str | Path) -> Path:
        """Write what it does as an ONNX file, which maps a batch of observations to actions."""


def load_policy(run: str | Path, checkpoint: str | None = None) -> TrainedPolicy:
    """Make the policy of a run, which is named as for `flowrl eval`, or of a checkpoint's file.

    `checkpoint` is the name of a checkpoint of the run; by default `best`, or `last` if there was no evaluation.
    """
    if checkpoint is None and os.path.isfile(run):
        path = Path(run)
        graph = path.absolute().parent.parent / "graph.yaml"
        if not graph.is_file():
            raise RunError(
                f"{path}: lies in no run's folder, which has the graph with its policy; expected RUN/checkpoints/NAME"
            )
    else:
        trained = find_trained_graph(run)
        path, graph = trained.checkpoint(checkpoint), trained.graph
    loaded = load_graph(graph)
    checked = check(loaded, in_fork=can_fork(), elsewhere=loaded.graph.nodes).require_sound()
    return policy_of_checkpoint(checked, path)


def policy_of_checkpoint(checked: CheckedGraph, path: Path) -> TrainedPolicy:
    """Make the policy of a graph with the weights of a checkpoint's file."""
    state, info = read_acting(path)
    learner = _learner_of(checked.graph, info["node"], path)
    make = getattr(learner.cls, "trained_policy", None)
    if make is None:
        raise RunError(
            f"{path}: the learner '{learner.name}' cannot make its policy; its type {learner.type} needs a "
            "class method `trained_policy`"
        )
    context = context_of(checked, learner, 0, checked.graph.seed)
    with importable_modules(checked.graph.folders):
        policy: TrainedPolicy = make(learner.config, context.inputs, state)
    return policy


def _learner_of(graph: Graph, key: str, path: Path) -> NodeSpec:
    """The learner whose weights are saved under a key: of itself, `learner.weights`, or of an evaluator's instance."""
    node = key.partition(".")[0].partition("#")[0]
    player = path.stem.partition("@")[0]  # of a league, which has a port for each of its players
    edges = [edge for edge in graph.edges_into(node) if edge.kind == "state"]
    senders = [edge.source.node for edge in sorted(edges, key=lambda e: e.to.port != player)]
    for name in (node, *senders):
        if name in graph.nodes and graph.nodes[name].cls.role == "learner":
            return graph.nodes[name]
    raise RunError(f"{path}: '{node}' saved it, which gets weights from no learner of the graph")
