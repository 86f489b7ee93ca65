"""Checks a graph: finds every problem that can be known before any node is made."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from flowrl.checks.amounts import (
    burst_problems,
    memory_problems,
    row_problems,
    token_problems,
)
from flowrl.checks.columns import column_problems, warmup_column_problems
from flowrl.checks.compression import compression_problems
from flowrl.checks.connections import connection_problems
from flowrl.checks.descriptions import EnvUse, NodeDescriber
from flowrl.checks.groups import group_problems
from flowrl.checks.later_replicas import later_replica_problems
from flowrl.checks.learned_columns import LearnedColumns, learned_columns
from flowrl.checks.lossy_edges import lossy_edge_problems
from flowrl.checks.nondeterminism import nondeterminism_reasons
from flowrl.checks.old_data import old_data_problems
from flowrl.checks.on_failure import failure_problems
from flowrl.checks.own_names import own_name_problems
from flowrl.checks.row_order import episode_problems, row_order_problems
from flowrl.checks.serial_program import SerialProgram, plan_program
from flowrl.checks.staleness import stale_learners, staleness_problems
from flowrl.checks.state_settings import state_setting_problems
from flowrl.checks.unread_columns import unread_column_problems
from flowrl.checks.unread_settings import (
    unread_setting_problems,
    unread_settings,
    without_unread_values,
)
from flowrl.checks.warmup import limit_within_warmup, plan_warmup, uncounted_limit
from flowrl.checks.weights import weights_problems
from flowrl.core.errors import GraphError, Problem, UsageError
from flowrl.core.facts import Facts
from flowrl.core.project_modules import importable_modules
from flowrl.graph.loading import LoadedGraph
from flowrl.graph.model import Graph
from flowrl.graph.placement import resolve_placement
from flowrl.graph.site_shares import nodes_on_hosts
from flowrl.machine.crash_tracebacks import crash_tracebacks


@dataclass(slots=True)
class CheckedGraph:
    """A graph with its serial program, the facts of its nodes, and its problems."""

    graph: Graph
    program: SerialProgram
    facts: dict[str, Facts] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)  # errors
    warnings: list[Problem] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)  # why runs may differ
    # Nodes whose facts are unknown because no env was made, and why.
    undescribed: dict[str, str] = field(default_factory=dict)
    learned_columns: LearnedColumns = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the graph is sound and can run."""
        return not self.problems

    @property
    def deterministic(self) -> bool:
        """Whether the same seed gives the same bits."""
        return not self.reasons

    def require_sound(self) -> CheckedGraph:
        """Return the checked graph itself if it is sound; otherwise raise GraphError with all problems."""
        if self.problems:
            raise GraphError(self.problems)
        return self


def check(
    loaded: LoadedGraph,
    envs: EnvUse = "make",
    in_fork: bool = False,
    elsewhere: Collection[str] = (),
) -> CheckedGraph:
    """Check a graph as far as it could be read.

    Some nodes make an env to describe their columns; `envs` says whether they may, and `in_fork` whether they do so in
    a fork of this process, so that an env that ends or blocks its process is a problem of the graph. Nodes whose facts
    remain unknown are listed in `undescribed`, and checks that need these facts are skipped. Devices that this machine
    lacks are no problem of the nodes that run `elsewhere`, and what `auto` means is not decided for them.
    """
    with importable_modules(loaded.graph.folders), crash_tracebacks():
        return _check(loaded, envs, in_fork, elsewhere)


def check_placed(
    loaded: LoadedGraph,
    placement: str | None,
    has_hosts: bool,
    envs: EnvUse = "make",
    in_fork: bool = False,
) -> CheckedGraph:
    """Check a graph that a placement puts on hosts, if there are hosts. A wrong placement is reported by its users."""
    elsewhere: Collection[str] = ()
    has_hosts = has_hosts or bool(loaded.graph.launch)
    if placement and has_hosts and not loaded.problems:
        with suppress(UsageError, GraphError):
            elsewhere = nodes_on_hosts(loaded.graph, resolve_placement(loaded.graph, placement))
    return check(loaded, envs, in_fork, elsewhere)


def _check(
    loaded: LoadedGraph, envs: EnvUse, in_fork: bool, elsewhere: Collection[str]
) -> CheckedGraph:
    graph, problems = loaded.graph, list(loaded.problems)
    broken = bool(problems)
    problems.extend(connection_problems(graph, loaded.incomplete))
    program = plan_program(graph, problems, loaded.incomplete)
    describer = NodeDescriber(graph, problems, envs, in_fork, elsewhere)
    described = describer.describe_all()
    problems.extend(column_problems(graph, described))
    problems.extend(unread_column_problems(graph, described))
    problems.extend(weights_problems(graph, describer))
    problems.extend(own_name_problems(graph, described.facts))
    unread = [*unread_settings(graph, describer, is_whole=not broken)]
    problems.extend(unread_setting_problems(graph, unread))
    if not broken:  # a missing node would make every phase look wrong
        steps = {n: f.env_steps or 0 for n, f in described.facts.items()}
        plan_warmup(graph, program, steps, problems)
        problems.extend(warmup_column_problems(graph, program, describer))
        if len(program.warmup) == len(graph.phases):
            problems.extend(row_problems(graph, program, described))
            problems.extend(burst_problems(graph, program, described))
    problems.extend(token_problems(graph, described))
    problems.extend(memory_problems(graph, described))
    problems.extend(row_order_problems(graph, described.facts))
    problems.extend(episode_problems(graph, described.facts))
    problems.extend(state_setting_problems(graph, described.facts, is_whole=not broken))
    problems.extend(staleness_problems(graph, program.round.order))
    problems.extend(old_data_problems(graph, described.facts, program))
    problems.extend(lossy_edge_problems(graph, program))
    problems.extend(compression_problems(graph))
    problems.extend(group_problems(graph, program, described))
    problems.extend(failure_problems(graph))
    graph = without_unread_values(graph, unread)
    graph = _with_resolved_parameters(graph, described.facts)
    checked = CheckedGraph(graph, program, described.facts, list(dict.fromkeys(problems)))
    checked.undescribed = described.undescribed
    checked.learned_columns = learned_columns(graph, described.facts)
    checked.warnings = [
        *loaded.warnings,
        *dict.fromkeys(stale_learners(graph, described.facts)),
        *dict.fromkeys(uncounted_limit(graph, described.facts)),
        *(limit_within_warmup(graph, program, described.facts) if checked.ok else ()),
    ]
    checked.reasons = list(nondeterminism_reasons(graph, described.facts))
    if checked.ok:  # how sites depend on each other is known of sound graphs only
        checked.problems.extend(later_replica_problems(checked))
    return checked


def _with_resolved_parameters(graph: Graph, facts: Mapping[str, Facts]) -> Graph:
    """Return the graph with what was chosen for parameters that leave a choice to the machine."""
    changed = {}
    for name, found in facts.items():
        if found.resolved:
            spec = graph.nodes[name]
            config = spec.config.model_copy(update=dict(found.resolved))
            changed[name] = replace(spec, config=config)
    return replace(graph, nodes={**graph.nodes, **changed}) if changed else graph
