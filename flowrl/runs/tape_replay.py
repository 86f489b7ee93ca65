"""Replays nodes against a tape, in this process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import product

from flowrl.checks.check import CheckedGraph, check
from flowrl.checks.lossy_edges import may_lack_tokens_anywhere
from flowrl.checks.ordering import exclusive_services_of
from flowrl.core.context import instance_key
from flowrl.core.errors import NodeError, RunError, UsageError, spelling_hint
from flowrl.core.project_modules import importable_modules
from flowrl.core.wording import count_text
from flowrl.graph.loading import load_text
from flowrl.graph.model import Edge, Graph, link_edges
from flowrl.graph.replica_pairs import replica_pairs_of
from flowrl.machine.numerics import reset_numerics, settled_numerics
from flowrl.runs.tape_file import Tape, graph_of_tape
from flowrl.runs.token_file import named_pairs
from flowrl.runtime.edge_factory import Replica
from flowrl.runtime.instance import RAISED
from flowrl.runtime.node_replay import NodeReplay
from flowrl.runtime.recorded_edges import ReplayDiffers
from flowrl.runtime.snapshot import node_key


@dataclass(frozen=True, slots=True)
class ReplayedInstance:
    """How often an instance was fired in a replay."""

    instance: str
    first_firing: int
    firings: int

    def __str__(self) -> str:
        return (
            f"{self.instance}: {count_text(self.firings, 'firing')}, from {self.first_firing:,} on"
        )


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay of a node, or of several, gave beside what was recorded."""

    instances: tuple[ReplayedInstance, ...]
    equal: dict[str, int]  # the tokens and versions that were equal, by edge
    difference: str  # the first one; empty if there is none

    @property
    def is_exact(self) -> bool:
        """Whether all outputs were as they were recorded."""
        return not self.difference

    def __str__(self) -> str:
        lines = [str(instance) for instance in self.instances]
        lines += [f"  {edge}: {n:,} equal" for edge, n in self.equal.items()]
        if self.difference:
            lines.append(f"  {self.difference}")
        elif not self.equal:
            has = "none of its outputs was" if len(self.instances) == 1 else "no output was"
            lines.append(f"  {has} recorded, so there is nothing to compare")
        return "\n".join(lines)


def replay_part(tape: Tape, words: Collection[str]) -> ReplayResult:
    """Fire some instances with the tokens of a tape, and compare their outputs with those that were recorded."""
    graph = graph_of_tape(tape)
    own = list(dict.fromkeys(_find_instance(graph, word) for word in words))
    _require_replayable(tape, graph, own)
    with settled_numerics(graph.torch_threads), importable_modules(graph.folders):
        checked = _checked(tape, graph)
        _refuse_uncertain_inputs(checked, {name for name, _ in own})
        facts = tape.facts
        replay = NodeReplay(
            checked, facts.seed, own, tape.tokens_of, facts.rounds, tape.parts, tape.train_iters
        )
        reset_numerics(graph.torch_threads)  # modules that the node imported may have changed it
        difference = ""
        try:
            replay.replay()
        except ReplayDiffers as found:
            difference = str(found)
        finally:
            replay.close()
    instances = []
    for instance in replay.instances.all():
        first = replay.first_firings[instance.key]
        instances.append(ReplayedInstance(instance.key, first, instance.fired - first))
    return ReplayResult(tuple(instances), dict(replay.comparison.equal), difference)


@dataclass(frozen=True, slots=True)
class RefiredResult:
    """What became of a failed firing that was fired again."""

    node: str
    error: BaseException | None = None  # None if it did not fail again


def fire_again(tape: Tape) -> RefiredResult:
    """Fire the failed firing of a tape again."""
    firing = tape.facts.firing
    assert firing is not None
    graph = graph_of_tape(tape)
    name, replica = _find_instance(graph, str(firing["instance"]))
    with settled_numerics(graph.torch_threads), importable_modules(graph.folders):
        own = [(name, replica)]
        replay = NodeReplay(_checked(tape, graph), tape.facts.seed, own, tape.tokens_of)
        reset_numerics(graph.torch_threads)
        try:
            replay.fire_again(tape.facts.rounds, tape.parts, tape.inputs)
        except NodeError:
            raise  # the state could not be loaded, or a service has failed
        except RAISED as error:
            return RefiredResult(name, error)
        finally:
            replay.close()
    return RefiredResult(name)


def _checked(tape: Tape, graph: Graph) -> CheckedGraph:
    loaded = replace(load_text(tape.facts.resolved, str(tape.path)), graph=graph)
    checked = check(loaded).require_sound()
    if named_pairs(checked.graph) != list(tape.facts.pairs):
        raise RunError(f"{tape.path}: the tape is damaged: its edges are not those of its graph")
    return checked


def _find_instance(graph: Graph, word: str) -> tuple[str, int]:
    """Return the node and the replica that a word names."""
    instances = {
        instance_key(name, replica): (name, replica)
        for name, spec in graph.nodes.items()
        if spec.fires
        for replica in range(spec.replicas)
    }
    if word in instances:
        return instances[word]
    if word in graph.nodes:
        clients = [edge.to.node for edge in link_edges(graph) if edge.source.node == word]
        raise UsageError(
            f"{word}: it does not fire, but is called by {', '.join(clients)}; replay that node, with which it is made"
        )
    raise UsageError(f"{word}: there is no such node; {spelling_hint(word, instances)}")


def _require_replayable(tape: Tape, graph: Graph, own: Sequence[Replica]) -> None:
    """Refuse a part of a graph of which the tape lacks inputs or states."""
    names = {name for name, _ in own}
    missing = {
        name: [
            str(edge.to)
            for edge in graph.edges_into(name)
            if edge.kind != "link"
            and str(edge.to) not in tape.facts.inputs
            and not _is_within(graph, edge, replica, own)
        ]
        for name, replica in own
    }
    for name, inputs in missing.items():
        if inputs:
            raise UsageError(
                f"{tape.path}: '{name}' also reads {', '.join(inputs)}, which the tape does not have; record all edges "
                f"of the node (flowrl record GRAPH {name}), or replay it with the nodes from which these edges come"
            )
    for name in names:
        if graph.nodes[name].is_group:
            raise UsageError(
                f"{tape.path}: the replicas of '{name}' exchange values while they fire, which the tape does not have; "
                "record and replay the graph with one replica of it"
            )
    services = exclusive_services_of(graph, names)
    _require_own_services(tape, graph, {*names, *services})
    if tape.facts.rounds:
        _require_states(tape, own, services)


def _is_within(graph: Graph, edge: Edge, replica: int, own: Sequence[Replica]) -> bool:
    """Return whether all that comes to a replica over an edge comes from the replayed instances."""
    pairs = [pair for pair in replica_pairs_of(graph, edge) if pair[2] == replica]
    return all((edge.sources[number].node, source) in own for number, source, _ in pairs)


def _require_own_services(tape: Tape, graph: Graph, own: Collection[str]) -> None:
    for edge in link_edges(graph):
        if edge.to.node in own and edge.source.node not in own:
            raise UsageError(
                f"{tape.path}: '{edge.to.node}' calls '{edge.source.node}', which other nodes call or which fires "
                "itself, so a replay does not know its state; replay these nodes, too"
            )


def _require_states(tape: Tape, own: Sequence[Replica], services: Sequence[str]) -> None:
    """Refuse nodes whose states at the snapshot are not on the tape."""
    replicas = {replica for _, replica in own}
    for name, replica in (*own, *product(services, replicas)):
        key = instance_key(name, replica)
        if node_key(key) not in tape.parts:
            raise UsageError(
                f"{tape.path}: it begins with a snapshot, and does not have the state of '{key}' there; record all "
                f"edges of the node (flowrl record RUN {name}), or record from the beginning (--at 0)"
            )


def _refuse_uncertain_inputs(checked: CheckedGraph, names: Collection[str]) -> None:
    lacking = may_lack_tokens_anywhere(checked.program)
    for name in sorted(names):
        merged = [str(e.to) for e in checked.graph.edges_into(name) if e.merge == "any"]
        if name in lacking or merged:
            raise UsageError(
                f"{name}: which tokens it took when depended on the time (`merge: any`, `when_full: drop_oldest`, or "
                "nodes that fire on any input), and the tape does not say it; only other nodes can be replayed"
            )
