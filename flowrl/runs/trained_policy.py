"""The trained policy of a run, made of its resolved graph and a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from flowrl.checks.check import CheckedGraph, check
from flowrl.core.checkpoint import read_all_acting
from flowrl.core.errors import RunError, UsageError, spelling_hint
from flowrl.core.project_modules import importable_modules
from flowrl.core.state import State
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


def load_policy(
    run: str | Path, checkpoint: str | None = None, learner: str | None = None
) -> TrainedPolicy:
    """Make the policy of a run, which is named as for `flowrl eval`, or of a checkpoint's file.

    `checkpoint` is the name of a checkpoint of the run; by default `best`, or `last` if there was no evaluation.
    `learner` is the node whose policy it is, if the checkpoint has the weights of several.
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
    return policy_of_checkpoint(checked, path, learner)


def policy_of_checkpoint(
    checked: CheckedGraph, path: Path, name: str | None = None
) -> TrainedPolicy:
    """Make the policy of a graph's learner with the weights of a checkpoint's file."""
    states = states_by_learner(checked.graph, path)
    if name is None and len(states) > 1:
        known = ", ".join(sorted(states))
        raise UsageError(
            f"{path}: it has the policies of {known}; say which: `flowrl.policy(…, learner='{min(states)}')`, on the "
            "command line `--learner`"
        )
    name = min(states) if name is None else name
    if name not in states:
        raise UsageError(
            f"{path}: it has no policy of a learner '{name}'; {spelling_hint(name, states)}"
        )
    learner, state = checked.graph.nodes[name], states[name]
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


def states_by_learner(graph: Graph, path: Path) -> dict[str, State]:
    """The weights in a checkpoint's file, by the learners whose weights they are."""
    found: dict[str, State] = {}
    states, _ = read_all_acting(path)
    for key in sorted(states, reverse=True):  # of a learner's outputs, the first by name counts
        found[_learner_of(graph, key, path).name] = states[key]
    return found


def _learner_of(graph: Graph, key: str, path: Path) -> NodeSpec:
    """The learner whose weights are saved under a key.

    It is the key of itself, `learner.weights`, of an evaluator's instance, or of one of several inputs of it.
    """
    instance, _, port = key.partition(".")
    node = instance.partition("#")[0]
    player = path.stem.partition("@")[0]  # of a league, which has a port for each of its players
    edges = [edge for edge in graph.edges_into(node) if edge.kind == "state"]
    nearest = sorted(edges, key=lambda edge: edge.to.port not in (port, player))
    senders = [edge.source.node for edge in nearest]
    for name in (node, *senders):
        if name in graph.nodes and graph.nodes[name].cls.role == "learner":
            return graph.nodes[name]
    raise RunError(f"{path}: '{node}' saved it, which gets weights from no learner of the graph")
