"""Reading a graph: files to a resolved `Graph`, and every problem found on the way.

Order: the file and what it extends, `${params}`, `--set`, nodes and their parameters (part-graphs put in place),
edges between ports, and last the sections that name nodes (placements, warm-up).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowrl.core.errors import Problem, Problems
from flowrl.graph.bundled import locate_graph
from flowrl.graph.catalogue import Catalogue
from flowrl.graph.edge_reader import EdgeReader
from flowrl.graph.model import Graph
from flowrl.graph.overrides import Overrides
from flowrl.graph.scope_reader import ScopeReader
from flowrl.graph.sections import read_modules, read_sections, share_replicas
from flowrl.graph.tree import GraphSource, read_tree
from flowrl.graph.warmup_reader import PhaseReader
from flowrl.graph.yaml_reader import SourceLocation, YamlValue, item_of, parse_yaml


@dataclass(slots=True)
class LoadedGraph:
    """A graph as far as it could be read, and what is wrong with it."""

    graph: Graph
    tree: YamlValue
    problems: list[Problem] = field(default_factory=list)
    incomplete: frozenset[str] = frozenset()  # nodes whose edges may miss one because of a problem


def load_graph(source: str | Path, sets: Mapping[str, str] | None = None) -> LoadedGraph:
    """Read a graph by its file or bundled name; `sets` are values as `--set` takes them."""
    return _load(read_tree(locate_graph(str(source))), _name(Path(source)), sets or {})


def _name(path: Path) -> str:
    """A graph is called after its file; `graph.yaml`, of a project or a run, after its folder."""
    name = path.name.removesuffix(".yaml").removesuffix(".yml")
    return (path.resolve().parent.name if name == "graph" else name) or name


def load_text(text: str, name: str) -> LoadedGraph:
    """A graph from a YAML text that needs no files beside it, as a resolved one."""
    return _load(GraphSource(parse_yaml(text, name), ()), name, {})


def load_data(
    data: Mapping[str, Any], name: str = "graph", sets: Mapping[str, str] | None = None
) -> LoadedGraph:
    """A graph from plain data."""
    return _load(GraphSource(item_of(data, SourceLocation(name)), ()), name, sets or {})


def _load(source: GraphSource, name: str, given: Mapping[str, str]) -> LoadedGraph:
    problems, files = Problems(), source.files
    folders = tuple(dict.fromkeys(f.parent for f in files))
    folders += read_modules(source.tree.fields.get("modules"), problems)
    catalogue = Catalogue(folders)
    sets = Overrides(given, catalogue, problems)
    scope = ScopeReader(catalogue, sets, problems, files[-1].parent if files else None)
    tree = scope.read(source)
    sets.unplaced(scope.nodes, tree)
    reader = EdgeReader(scope.nodes, scope.parts, scope.broken, scope.removed, problems)
    edges = reader.edges(scope.statements)
    sets.apply_options(edges)
    graph = Graph(name, nodes=scope.nodes, edges=list(edges.values()), files=files)
    graph.folders = catalogue.folders
    read_sections(tree.fields, graph, scope.parts, scope.broken, problems)
    share_replicas(graph, problems)
    if (warmup := tree.fields.get("warmup")) is not None:
        phases = PhaseReader(graph, scope.parts, scope.broken, scope.reader.params, problems)
        graph.phases = phases.read(warmup)
    incomplete = frozenset(reader.incomplete if scope.edges_read else scope.nodes)
    return LoadedGraph(graph, tree, list(dict.fromkeys(problems)), incomplete)
