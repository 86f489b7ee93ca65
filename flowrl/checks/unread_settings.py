"""Finds settings of policies that have no effect on the node that has them, such as the learning rate of a collector.

Of a policy that acts, no type declares them: the node is described again with the value of the learner whose weights
it takes, and if nothing that it states differs, its own value has no effect. A learner does not read those that are
declared for acting (`param(…, only_acting=True)`). Other nodes declare which parameters of a part they read
(`part(…, reads=…)`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from flowrl.checks.descriptions import NodeDescriber
from flowrl.checks.weights import weights_uses
from flowrl.core.config import REQUIRED, Config, PartSpec, field_extras
from flowrl.core.errors import Problem
from flowrl.core.written_config import differing_values, flattened, written_value
from flowrl.graph.model import Graph, NodeSpec
from flowrl.graph.param_reader import part_fields
from flowrl.graph.yaml_text import YamlValue, item_at, keys_of, with_item


class PartPlace(NamedTuple):
    """Where a part is: its node, and the path of the parameter, such as `policies.NAME` and `opponents[0].trained`."""

    node: str
    path: str


@dataclass(frozen=True, slots=True)
class UnreadSetting:
    """A setting of a part that its node does not read, and that differs from what another part says."""

    place: PartPlace
    name: str
    value: Any  # that of the other part, or the default
    other: PartPlace | None  # the other part
    why: str
    hint: str

    @property
    def path(self) -> str:
        return f"{self.place.path}.{self.name}"


def unread_settings(
    graph: Graph, describer: NodeDescriber, is_whole: bool
) -> Iterator[UnreadSetting]:
    """Yield the settings of parts that have no effect on their nodes, and differ from those that have one.

    A node that could not be read may have the same ones; then the graph is not whole.
    """
    found = [*_unread_by_acting(graph, describer), *(_undeclared(graph) if is_whole else ())]
    yield from (setting for setting in found if not _is_in_resolved_graph(graph, setting))


def _is_in_resolved_graph(graph: Graph, setting: UnreadSetting) -> bool:
    """Whether a setting stands in a file that gives all settings of its part, as `flowrl expand` writes them.

    `expand` makes no envs, so it cannot know which of them are read.
    """
    part = item_at(graph.nodes[setting.place.node].written, setting.place.path)
    own = _part_at(graph, setting.place)
    if part is None or own is None or setting.name not in part.fields:
        return False
    file = part.fields[setting.name].location.file
    files = {name: item.location.file for name, item in part.fields.items()}
    return all(files.get(name) == file for name in type(own.config).model_fields)


def unread_setting_problems(graph: Graph, settings: Sequence[UnreadSetting]) -> Iterator[Problem]:
    """Yield a problem for each of these settings that a node gives itself."""
    for setting in settings:
        spec = graph.nodes[setting.place.node]
        for path in _given_paths(graph, setting):
            what = f"nodes.{spec.name}: '{path}' has no effect: {setting.why}"
            hint = setting.hint.format(below=path.removeprefix(f"{setting.place.path}."))
            yield Problem(str(spec.location(path)), what, hint)


def without_unread_values(graph: Graph, settings: Sequence[UnreadSetting]) -> Graph:
    """Return the graph with the values of the other parts for these settings.

    So the resolved graph, in which each node gives all of its settings, is sound as well.
    """
    nodes = dict(graph.nodes)
    for setting in settings:
        spec = nodes[setting.place.node]
        keys, written = keys_of(setting.path), spec.written
        config = _with_value(spec.config, keys, setting.value)
        if setting.other is not None:
            origin = _written(
                graph.nodes[setting.other.node], f"{setting.other.path}.{setting.name}"
            )
            written = written if origin is None else with_item(written, keys, origin)
        nodes[spec.name] = replace(spec, config=config, written=written)
    return replace(graph, nodes=nodes) if settings else graph


# policies that act


def _unread_by_acting(graph: Graph, describer: NodeDescriber) -> Iterator[UnreadSetting]:
    learners = _learners_by_policy(graph, describer)
    for node, facts in describer.descriptions.facts.items():
        for path in (path for path, known in facts.acting.items() if known):
            place = PartPlace(node, path)
            yield from _unlike_learners(graph, describer, place, [*learners.get(place, {})])
            yield from _unlike_defaults(graph, describer, place)
    for learner, readers in _readers_by_learner(learners).items():
        yield from _unlike_readers(graph, describer, learner, readers)


def _learners_by_policy(
    graph: Graph, describer: NodeDescriber
) -> dict[PartPlace, dict[PartPlace, None]]:
    """For each policy that acts with weights: the policies that these are learned with."""
    facts, found = describer.descriptions.facts, dict[PartPlace, dict[PartPlace, None]]()
    for use in weights_uses(graph, facts):
        trained = facts[use.source.node].networks.get(use.source.port)
        used = facts[use.reader].networks.get(use.key)
        if trained is not None and used is not None:
            learners = found.setdefault(PartPlace(use.reader, used.key), {})
            learners[PartPlace(use.source.node, trained.key)] = None
    return found


def _unlike_learners(
    graph: Graph, describer: NodeDescriber, place: PartPlace, learners: Sequence[PartPlace]
) -> Iterator[UnreadSetting]:
    own = _part_at(graph, place)
    parts = {at: part for at in learners if (part := _part_at(graph, at)) is not None}
    alike = {at: part for at, part in parts.items() if own is not None and part.cls is own.cls}
    if own is None or not alike:
        return
    learner, trained = next(iter(alike.items()))
    for name in type(own.config).model_fields:
        value, wanted = getattr(own.config, name), getattr(trained.config, name)
        differs = all(getattr(part.config, name) != value for part in alike.values())
        if differs and _is_unread(graph, describer, place, name, wanted):
            why = f"{place.node} acts with the weights of {learner.node}, whose own value counts"
            hint = f"leave it out, or set `{learner.node}.{learner.path}.{{below}}`"
            yield UnreadSetting(place, name, wanted, learner, why, hint)


def _readers_by_learner(
    learners: Mapping[PartPlace, Mapping[PartPlace, None]],
) -> dict[PartPlace, list[PartPlace]]:
    found: dict[PartPlace, list[PartPlace]] = {}
    for reader, trained in learners.items():
        for learner in trained:
            found.setdefault(learner, []).append(reader)
    return found


def _unlike_readers(
    graph: Graph, describer: NodeDescriber, learner: PartPlace, readers: Sequence[PartPlace]
) -> Iterator[UnreadSetting]:
    """Yield the settings for acting of a learner's policy that differ from those of everyone who reads them."""
    own = _part_at(graph, learner)
    parts = {at: p for at in readers if own and (p := _part_at(graph, at)) and p.cls is own.cls}
    for name, info in type(own.config).model_fields.items() if own is not None and parts else ():
        if own is None or not field_extras(info).get("only_acting"):
            continue
        value = getattr(own.config, name)
        if any(getattr(part.config, name) == value for part in parts.values()):
            continue
        reader = next(
            (at for at in parts if not _is_unread(graph, describer, at, name, value)), None
        )
        if reader is not None:
            why = f"{learner.node} does not act, and {reader.node} has a value of its own"
            hint = f"leave it out, or set `{reader.node}.{reader.path}.{{below}}` as well"
            yield UnreadSetting(
                learner, name, getattr(parts[reader].config, name), reader, why, hint
            )


def _unlike_defaults(
    graph: Graph, describer: NodeDescriber, place: PartPlace
) -> Iterator[UnreadSetting]:
    """Yield the settings without effect of a part within the part, such as the policy that an expert acts with."""
    outer = _part_at(graph, place)
    for key, part in outer.config if outer is not None else ():
        if not isinstance(part, PartSpec) or outer is None or part.cls.kind != outer.cls.kind:
            continue
        inner = PartPlace(place.node, f"{place.path}.{key}")
        for name, info in type(part.config).model_fields.items():
            value, usual = getattr(part.config, name), info.default
            has_default = usual is not REQUIRED and not isinstance(value, PartSpec)
            if has_default and value != usual and _is_unread(graph, describer, inner, name, usual):
                why = f"the {part.cls.kind} {part.type} only acts here, and does not learn"
                yield UnreadSetting(inner, name, usual, None, why, "leave it out")


def _is_unread(
    graph: Graph, describer: NodeDescriber, place: PartPlace, name: str, value: Any
) -> bool:
    """Whether all that a node states is the same with another value of a setting."""
    keys = keys_of(f"{place.path}.{name}")
    changed = _with_value(graph.nodes[place.node].config, keys, value)
    return describer.facts_with(place.node, changed) == describer.descriptions.facts[place.node]


# parts of which a node declares what it reads


def _undeclared(graph: Graph) -> Iterator[UnreadSetting]:
    for node, spec in graph.nodes.items():
        for key, declared in part_fields(type(spec.config)).items():
            place, reads = PartPlace(node, key), declared["reads"]
            own = _part_at(graph, place)
            if own is None or not reads:
                continue
            others = {at: part for at, part in _parts(graph) if at != place and part.cls is own.cls}
            learners = {
                at: p for at, p in others.items() if graph.nodes[at.node].cls.role == "learner"
            }
            others = learners or others
            other = next(iter(others), None)
            for name, info in type(own.config).model_fields.items():
                value = getattr(own.config, name)
                if name in reads or any(getattr(p.config, name) == value for p in others.values()):
                    continue
                if other is None and (isinstance(value, PartSpec) or value == info.default):
                    continue
                wanted = info.default if other is None else getattr(others[other].config, name)
                why = (
                    f"of {key}, only {' and '.join(reads)} {'are' if len(reads) > 1 else 'is'} read"
                )
                yield UnreadSetting(
                    place, name, wanted, other, why, "set it for the node that learns"
                )


def _parts(graph: Graph) -> Iterator[tuple[PartPlace, PartSpec]]:
    for name, spec in graph.nodes.items():
        for key in part_fields(type(spec.config)):
            part = getattr(spec.config, key)
            if isinstance(part, PartSpec):
                yield PartPlace(name, key), part


# what is written


def _given_paths(graph: Graph, setting: UnreadSetting) -> Iterator[str]:
    """Yield the paths of what a node gives of a setting itself, unless it was written before the other part.

    What an extending file or the command line sets for a learner leaves the nodes of the extended file behind.
    """
    spec, place, other = graph.nodes[setting.place.node], setting.place, setting.other
    own = _part_at(graph, place)
    assert own is not None
    found = flattened(setting.path, written_value(getattr(own.config, setting.name)))
    wanted = flattened(setting.path, written_value(setting.value))
    for path, _, _ in differing_values(found, wanted):
        given = item_at(spec.written, path)
        if given is None:
            continue
        locations = [given.location]
        if other is not None:
            theirs = other.path + path.removeprefix(place.path)
            written = _written(graph.nodes[other.node], theirs)
            locations += [written.location] if written is not None else []
        if graph.last_written(locations) == given.location:
            yield path


def _written(spec: NodeSpec, path: str) -> YamlValue | None:
    """What a node, or the section that it takes, says of a parameter."""
    section, _, below = path.partition(".")
    shared = spec.shared.get(section)
    return item_at(spec.written, path) or (shared and item_at(shared, below))


def _part_at(graph: Graph, place: PartPlace) -> PartSpec | None:
    value: Any = graph.nodes[place.node].config
    for key in keys_of(place.path):
        value = value.config if isinstance(value, PartSpec) else value
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list | tuple):
            value = value[int(key)]
        else:
            value = getattr(value, key, None)
    return value if isinstance(value, PartSpec) else None


def _with_value(holder: Any, keys: Sequence[str], value: Any) -> Any:
    """A config, or what it holds, with another value at a path."""
    if not keys:
        return value
    first, *rest = keys
    if isinstance(holder, PartSpec):
        return replace(holder, config=_with_value(holder.config, keys, value))
    if isinstance(holder, Config):
        inner = _with_value(getattr(holder, first), rest, value)
        return holder.model_copy(update={first: inner})
    if isinstance(holder, Mapping):
        return {**holder, first: _with_value(holder[first], rest, value)}
    return tuple(
        _with_value(x, rest, value) if k == int(first) else x for k, x in enumerate(holder)
    )
