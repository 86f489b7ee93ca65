"""Evaluates a checkpoint of a run with the evaluator of its graph: `flowrl eval`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flowrl.checks.check import CheckedGraph, check
from flowrl.core.checkpoint import read_acting, read_all_acting
from flowrl.core.context import Context
from flowrl.core.errors import NodeError, RunError, UsageError
from flowrl.core.json_text import parse_object
from flowrl.core.node import Node
from flowrl.core.ports import StateIn
from flowrl.core.project_modules import importable_modules
from flowrl.core.records import MetricsRecord
from flowrl.core.state import State
from flowrl.core.wording import count_text
from flowrl.graph.loading import load_graph
from flowrl.graph.model import NodeSpec, link_edges
from flowrl.machine.forked_call import can_fork
from flowrl.machine.numerics import settled_numerics
from flowrl.runs.folder import ENVIRONMENT_FILE
from flowrl.runs.trained_graph import find_trained_graph
from flowrl.runs.trained_policy import states_by_learner
from flowrl.runtime.linked_nodes import context_of
from flowrl.version import VERSION


@dataclass(frozen=True, slots=True)
class CheckpointEvaluation:
    """The metrics of a checkpoint, and how they were measured."""

    run_dir: str  # or the name of the bundled graph
    checkpoint: str
    train_iters: int
    env_steps: int
    episodes: int
    seed: int
    metrics: dict[str, float]
    videos: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        shown = "\n".join(f"  {name:<16} {value:10.2f}" for name, value in self.metrics.items())
        return (
            f"{self.checkpoint}: after {count_text(self.train_iters, 'train iteration')} "
            f"and {count_text(self.env_steps, 'env step')}\n"
            f"{count_text(self.episodes, 'episode')}, seed {self.seed}\n{shown}"
            + "".join(f"\nvideo: {video}" for video in self.videos)
            + "".join(f"\nwarning: {warning}" for warning in self.warnings)
        )


def evaluate_checkpoint(
    run: str | Path,
    episodes: int | None = None,
    seed: int = 0,
    video: Path | None = None,
    checkpoint: str | None = None,
) -> CheckpointEvaluation:
    """Play evaluation episodes with a checkpoint: one of the run by its name, or a file; the best one by default.

    `run` is a folder or another name of a run, or the name of a bundled graph whose checkpoint comes with flowrl.
    `video` is a folder or a file for videos of them.
    """
    trained = find_trained_graph(run)
    loaded = load_graph(trained.graph)
    checked = check(loaded, in_fork=can_fork(), elsewhere=loaded.graph.nodes).require_sound()
    names = checked.graph.nodes_of_role("evaluator")
    if not names:
        raise RunError(
            f"{trained.name}: its graph has no evaluator; only runs with one can be evaluated"
        )
    path = trained.checkpoint(checkpoint)
    _, info = read_all_acting(path)
    spec = _without_goal(checked.graph.nodes[names[0]], episodes)
    if video is not None and not hasattr(spec.cls, "record_videos"):
        raise UsageError(
            f"--video: the evaluator '{spec.name}' cannot record videos, as it has no method `record_videos`"
        )
    graph = checked.graph
    with settled_numerics(graph.torch_threads), importable_modules(graph.folders):
        context = context_of(checked, spec, 0, seed)
        context.consumed_outputs = frozenset()
        states = _states_of_inputs(checked, spec, path)
        videos = _evaluate(checked, spec, context, states, video)
    measured = [r.values for r in context.records if isinstance(r, MetricsRecord)]
    metrics = dict(measured[-1]) if measured else {}
    played = getattr(spec.config, "episodes", 0)
    return CheckpointEvaluation(
        trained.name,
        str(path),
        info["train_iters"],
        info["env_steps"],
        played,
        seed,
        metrics,
        [str(path) for path in videos],
        _version_warnings(trained.run) if trained.run is not None else [],
    )


def _version_warnings(run: Path) -> list[str]:
    """A warning if another version of flowrl made the run, as its evaluator may have played differently."""
    path = run / ENVIRONMENT_FILE
    if not path.is_file():
        return []
    try:
        made_by = parse_object(path.read_text(encoding="utf-8")).get("flowrl")
    except (OSError, ValueError) as error:
        return [f"{path}: cannot be read: {error}; which version of flowrl made the run is unknown"]
    if made_by in (None, VERSION):
        return []
    return [f"the run was made by flowrl {made_by}, and this is {VERSION}"]


def _without_goal(spec: NodeSpec, episodes: int | None) -> NodeSpec:
    """The evaluator without its goal, because there is no run to stop, and with the given number of episodes."""
    params, changes = type(spec.config).model_fields, dict[str, Any]()
    if "stop_value" in params:
        changes["stop_value"] = None
    if episodes is not None:
        if "episodes" not in params:
            raise UsageError(f"--episodes: the evaluator '{spec.name}' has no such parameter")
        changes["episodes"] = episodes
    config = spec.config.model_copy(update=changes)
    return NodeSpec(spec.name, spec.type, spec.cls, config, spec.written, shared=spec.shared)


def _states_of_inputs(checked: CheckedGraph, spec: NodeSpec, path: Path) -> list[State]:
    """The weights for each state input of the evaluator, in their order."""
    inputs = [name for name, port in spec.cls.ports.items() if isinstance(port, StateIn)]
    if len(inputs) == 1:
        return [read_acting(path)[0]]
    states = states_by_learner(checked.graph, path)
    senders = {
        edge.to.port: edge.source.node
        for edge in checked.graph.edges_into(spec.name)
        if edge.kind == "state"
    }
    for learner in senders.values():
        if learner not in states:
            what = f"{path}: it has no weights of {learner}, which '{spec.name}' needs"
            raise UsageError(f"{what}; give a checkpoint with those of all, such as best or last")
    return [states[senders[name]] for name in inputs if name in senders]


def _evaluate(
    checked: CheckedGraph,
    spec: NodeSpec,
    context: Context,
    states: list[State],
    video: Path | None,
) -> list[Path]:
    """Fire the evaluator once, and return the files of the videos."""
    with ExitStack() as made:
        try:
            node: Any = _make_with_services(checked, spec, context, made)
            if video is None:
                node.fire(*states)
                return []
            return list(node.record_videos(*states, path=video))
        except Exception as error:
            raise NodeError(spec.name, "evaluating a checkpoint", error) from error


def _make_with_services(
    checked: CheckedGraph, spec: NodeSpec, context: Context, made: ExitStack
) -> Node:
    """Make a node and the services that it is linked to, and have all of them closed with `made`."""
    services: dict[str, Any] = {}
    for edge in link_edges(checked.graph):
        if edge.to.node == spec.name:
            other = checked.graph.nodes[edge.source.node]
            own_context = context_of(checked, other, 0, context.seed)
            service = _make_with_services(checked, other, own_context, made)
            if getattr(spec.port(edge.to.port), "many", False):
                services.setdefault(edge.to.port, []).append(service)
            else:
                services[edge.to.port] = service
    node = spec.cls(config=spec.config, context=context, **services)
    made.callback(node.close)
    return node
