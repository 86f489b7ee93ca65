"""Checks that whoever acts with weights has the network, the spaces and the settings of the learner that trains them.

Weights arrive by a state of their own, or by one that carries the weights of several (`Facts.carries`), such as the
matches of a league.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from flowrl.checks.descriptions import NodeDescriber
from flowrl.core.batch import Column, Schema
from flowrl.core.config import PartSpec
from flowrl.core.errors import Problem
from flowrl.core.facts import Facts, NetworkFacts
from flowrl.core.written_config import differing_values, flattened
from flowrl.graph.model import Edge, Graph, NodeSpec, PortRef
from flowrl.graph.yaml_writer import flow_text

MOST_DIFFERENCES = 3  # that a message lists


class WeightsUse(NamedTuple):
    """Weights that a node acts with: the output of their learner, and the edge by which they arrive."""

    source: PortRef
    edge: Edge
    name: str  # of the weights in a state that carries those of several; empty: the state is the weights
    key: str  # of the reader's facts

    @property
    def reader(self) -> str:
        return self.edge.to.node

    @property
    def role(self) -> str:
        """For what the reader acts with them."""
        return f" for {self.name}" if self.name else ""


def weights_problems(graph: Graph, describer: NodeDescriber) -> Iterator[Problem]:
    """Yield a problem for each reader that cannot act with the weights that it gets."""
    facts = describer.descriptions.facts
    for use in weights_uses(graph, facts):
        learner, reader = facts[use.source.node], facts[use.reader]
        learned = learner.acts_on.get(use.source.port)
        seen = reader.acts_on.get(use.key)
        if not learned or seen is None:
            continue
        if not seen:
            if use.name:
                yield _ignored_weights(graph, use, reader)
            continue
        if wrong := _different_spaces(learned, seen):
            yield _other_spaces(graph, describer, use, wrong)
            continue
        trained, used = learner.networks.get(use.source.port), reader.networks.get(use.key)
        if trained is None or used is None:
            continue
        if differences := _different_settings(trained, used):
            yield _other_network(graph, use, trained, used, differences)
        elif use.name:
            yield from _missing_settings(graph, use, learner, reader)


def weights_uses(graph: Graph, facts: Mapping[str, Facts]) -> Iterator[WeightsUse]:
    """Yield the weights that each node acts with, as far as nodes are described."""
    edges = {edge.to: edge for edge in graph.edges}
    for edge in graph.edges:
        source, reader = facts.get(edge.source.node), facts.get(edge.to.node)
        if edge.kind != "state" or source is None or reader is None:
            continue
        port, carried = edge.to.port, source.carries.get(edge.source.port)
        if carried is None:
            yield WeightsUse(edge.source, edge, "", port)
            continue
        for name, given in carried.items():
            key = f"{port}/{name}"
            into = edges.get(PortRef(edge.source.node, given))
            if into is not None and into.source.node in facts:
                known = key if key in reader.acts_on else f"{port}/*"
                yield WeightsUse(into.source, edge, name, known)


def _different_spaces(learned: Schema, seen: Schema) -> str:
    """The columns of which weights for one do not act on the other; empty if there are none."""
    return "; ".join(
        f"{name}: {_space_text(learned.get(name))} and {_space_text(seen.get(name))}"
        for name in {**learned, **seen}
        if not _fits(learned.get(name), seen.get(name))
    )


def _fits(learned: Column | None, seen: Column | None) -> bool:
    """Return whether weights for one column act on the other. Types and bounds may differ, as in recorded data."""
    if learned is None or seen is None:
        return False
    return learned.shape == seen.shape and (None in (learned.n, seen.n) or learned.n == seen.n)


def _space_text(column: Column | None) -> str:
    if column is None:
        return "nothing"
    return f"one of {column.n}" if column.n is not None and not column.shape else str(column)


def _other_spaces(
    graph: Graph, describer: NodeDescriber, use: WeightsUse, differences: str
) -> Problem:
    what = (
        f"{use.edge}: {use.source.node} learns in other spaces than {use.reader} acts in{use.role} "
        f"({differences})"
    )
    hint = "give the envs of both the same spaces, for example with the same wrappers"
    where = graph.last_written([use.edge.location, *describer.locations_before(use.reader)])
    return Problem(str(where), what, hint)


def _ignored_weights(graph: Graph, use: WeightsUse, reader: Facts) -> Problem:
    """The problem of a node that would play someone who learns with a policy of its own."""
    spec = graph.nodes[use.reader]
    found = reader.networks.get(use.key)
    key = "policy" if found is None else found.key
    what = (
        f"{use.edge}: {use.reader} acts{use.role} without the weights of {use.source.node} "
        f"({_policy_text(spec, key)})"
    )
    hint = f"give it the policy of {use.source.node}: `policies: {{{use.name}: …}}`"
    return Problem(str(spec.location(key)), what, hint)


Differences = list[tuple[str, Any, Any]]


def _different_settings(learned: NetworkFacts, used: NetworkFacts) -> Differences:
    if not learned.settings or not used.settings:
        return []
    return [*differing_values(flattened("", learned.settings), flattened("", used.settings))]


def _other_network(
    graph: Graph,
    use: WeightsUse,
    learned: NetworkFacts,
    used: NetworkFacts,
    differences: Differences,
) -> Problem:
    learner, reader = graph.nodes[use.source.node], graph.nodes[use.reader]
    shown = [
        f"{name} is {_value_text(one)} of {learner.name} and {_value_text(other)} of {reader.name}"
        for name, one, other in differences[:MOST_DIFFERENCES]
    ]
    more = len(differences) - len(shown)
    what = (
        f"{use.edge}: {reader.name} acts{use.role} with another network ({_policy_text(reader, used.key)}) than "
        f"{learner.name} trains ({_policy_text(learner, learned.key)}, {learner.location(learned.key)}): "
        f"{'; '.join(shown)}{f'; and {more} more' if more else ''}"
    )
    hint = f"give {reader.name} the policy of {learner.name}"
    if use.name:
        hint = f"{hint} for {use.name}: `policies: {{{use.name}: …}}`"
    return Problem(str(reader.location(used.key)), what, hint)


def _policy_text(spec: NodeSpec, key: str) -> str:
    """The type of the policy that a parameter such as `policies.hunter` gives, and the parameter."""
    value: Any = spec.config
    for word in key.split("."):
        value = value[word] if isinstance(value, Mapping) else getattr(value, word, None)
    return f"{value.type}, `{key}`" if isinstance(value, PartSpec) else f"`{key}`"


def _value_text(value: Any) -> str:
    return "nothing" if value is None else flow_text(value)


def _missing_settings(
    graph: Graph, use: WeightsUse, learner: Facts, reader: Facts
) -> Iterator[Problem]:
    """Yield a problem for each setting with which weights that a state carries must come, and do not."""
    known = learner.settings.get(use.source.port)
    for setting, key in reader.needs_settings.get(use.key, {}).items():
        if known is not None and setting not in known:
            what = (
                f"{use.edge}: {key} depends on '{setting}', which {use.source} does not give with the weights"
                f"{use.role}"
            )
            hint = f"give {use.reader} the policy of {use.source.node}{use.role}"
            yield Problem(str(graph.nodes[use.reader].location(key)), what, hint)
