"""Placements: which nodes share a site. They say where a graph runs, and change nothing that it computes.

A place is `thread`, `process`, or a host: its name, its label, or a pattern of these. A place alone makes one site for
each linked group that is put there; a place with a name (`process:left`) makes one site for all nodes that are put
there. Nodes that a placement does not name go with the nodes that they are linked to, or else to the main site, in the
process where the run was started.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from flowrl.core.errors import UsageError, spelling_hint
from flowrl.graph.keywords import PLACE
from flowrl.graph.model import Graph, link_edges, linked_groups
from flowrl.graph.yaml_text import YamlValue, read_yaml

MAIN = "main"
LOCAL_PLACES = (MAIN, "thread", "process")  # places on the machine where the run was started
BUILT_IN = {"serial": MAIN, "threads": "thread", "processes": "process"}
_MEANT = {**{place: place for place in LOCAL_PLACES}, **BUILT_IN}
_NAME = re.compile(r"\w[\w.-]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True)
class HostOffer:
    """A machine that is offered to a run, with the names that a placement can use for it."""

    name: str
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for word in (self.name, *self.labels):
            name = word.removesuffix("*") if word == self.name else word  # the run puts a number
            if not _NAME.fullmatch(name) or name in (*LOCAL_PLACES, "coordinator"):
                what = f"host: '{word}' cannot be a host's name or label"
                raise UsageError(
                    f"{what}; expected up to 63 letters, digits, '.', '-' and '_', "
                    f"and not {', '.join(LOCAL_PLACES)}"
                )

    def matches(self, place: str) -> bool:
        """Whether a place means this machine, perhaps among others."""
        return any(fnmatchcase(word, place) for word in (self.name, *self.labels))


def matching_hosts(place: str, offers: Iterable[HostOffer]) -> list[str]:
    """The names of the hosts that a place means, in natural order: cpu-2 comes before cpu-10."""
    return sorted((o.name for o in offers if o.matches(place)), key=_natural_key)


def _natural_key(name: str) -> list[tuple[str, int]]:
    return [(word, int(number or 0)) for word, number in re.findall(r"(\D*)(\d*)", name)]


def place_problem(place: object) -> str:
    """Return what was expected instead of a written place; nothing if it is one.

    A misspelt `process` would be the name of a host, for which the run would wait.
    """
    if not isinstance(place, str) or not re.fullmatch(PLACE, place):
        return "expected thread, process or a host"
    word = place.partition(":")[0]
    meant = _misspelt_local_place(word)
    if meant is None:
        return ""
    return f"did you mean '{meant}'? For a host of this name, write the pattern '{word}*'"


def _misspelt_local_place(word: str) -> str | None:
    """The local place that was probably meant; None if the word is one, or may well be the name of a host."""
    if word in LOCAL_PLACES or not word.isalpha():  # hosts are numbered, and patterns mean hosts
        return None
    word = word.casefold()
    near = [known for known in _MEANT if len(word) >= 4 and known.startswith(word)]
    near = near or difflib.get_close_matches(word, _MEANT, n=1, cutoff=0.82)
    return _MEANT[near[0]] if near else None


def host_places(graph: Graph, placement: Mapping[str, str]) -> list[str]:
    """The places of a placement that are hosts, without the names of shared sites."""
    places = (site.partition(":")[0] for site in nodes_by_site(graph, placement))
    return sorted({place for place in places if place not in LOCAL_PLACES})


def resolve_placement(graph: Graph, text: str) -> dict[str, str]:
    """The placement that `--placement` names: by its name, a YAML file, or `collector=process,learner=thread`."""
    text = text.strip()
    if text in graph.placements:
        return _places_by_node(graph, graph.placements[text], f"placements.{text}")
    if text in BUILT_IN:
        return dict.fromkeys(graph.nodes, BUILT_IN[text])
    if text.endswith((".yaml", ".yml")):
        return _places_by_node(graph, _read_placement_file(Path(text)), text)
    if "=" in text:
        return _places_by_node(graph, _parse_assignments(text), f"--placement {text}")
    hint = spelling_hint(text, {*BUILT_IN, *graph.placements})
    raise UsageError(
        f"--placement {text}: there is no such placement; {hint} "
        "(or give a YAML file, or node=process,…)"
    )


def nodes_by_site(graph: Graph, placement: Mapping[str, str]) -> dict[str, list[str]]:
    """The nodes of each site, in the order of the graph. The main site comes first, if it has nodes."""
    where: dict[str, str] = {}
    for group in linked_groups(graph):
        names = [n for n in graph.nodes if n in group]
        head = _group_head(graph, names)
        leader = next((n for n in [head, *names] if n in placement), "")
        for name in names:
            where[name] = _site_name(placement.get(name) or placement.get(leader, MAIN), head)
    found: dict[str, list[str]] = {MAIN: []} if MAIN in where.values() else {}
    for name in graph.nodes:
        found.setdefault(where[name], []).append(name)
    return found


def _group_head(graph: Graph, group: list[str]) -> str:
    """The node after which a linked group's site is named: the first, by name, that serves no other."""
    serving = {e.source.node for e in link_edges(graph)}
    return min((n for n in group if n not in serving), default=min(group))


def _site_name(place: str, head: str) -> str:
    return place if place == MAIN or ":" in place else f"{place}:{head}"


def _places_by_node(graph: Graph, written: Mapping[str, str], where: str) -> dict[str, str]:
    """Places by node. A part-graph's name stands for all of its nodes."""
    found: dict[str, str] = {}
    for name, place in written.items():
        members = [n for n in graph.nodes if n == name or n.startswith(f"{name}/")]
        if not members:
            parts = {n.rpartition("/")[0] for n in graph.nodes if "/" in n}
            hint = spelling_hint(name, {*graph.nodes, *parts})
            raise UsageError(f"{where}: unknown node '{name}'; {hint}")
        if problem := place_problem(place):
            raise UsageError(f"{where}: '{name}' is put at '{place}'; {problem}")
        found.update(dict.fromkeys(members, place))
    return found


def _parse_assignments(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in text.split(","):
        name, equals, place = (part.strip() for part in word.partition("="))
        if not (name and equals and place):
            raise UsageError(
                f"--placement {text}: '{word.strip()}' is not node=place; "
                "write collector=process,learner=thread"
            )
        found[name] = place
    return found


def _read_placement_file(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise UsageError(f"--placement {path}: there is no such file; write nodes and places in it")
    tree = read_yaml(path)
    if not isinstance(tree.value, dict):
        raise UsageError(f"{tree.location}: a placement is a mapping; write 'collector: process'")
    return {name: _checked_place(name, item) for name, item in tree.fields.items()}


def _checked_place(name: str, item: YamlValue) -> str:
    if isinstance(item.value, str):
        return item.value
    raise UsageError(
        f"{item.location}: '{name}' is put at {item.plain()!r}; expected thread, process or a host"
    )
