"""Reads a graph: from files to a resolved `Graph`, with every problem found on the way.

The order is: the file and what it extends, `${params}`, `--set`, nodes and their parameters (part-graphs put in place),
edges between ports, and last the sections that name nodes (placements, warm-up).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowrl.core.errors import Problem, Problems
from flowrl.graph.bundled import graphs_folder, locate_graph
from flowrl.graph.catalogue import Catalogue
from flowrl.graph.connected_nodes import (
    clear_replaced_params,
    refuse_params_of_missing_inputs,
    share_replicas,
)
from flowrl.graph.edge_reader import EdgeReader
from flowrl.graph.model import Graph
from flowrl.graph.overrides import Overrides
from flowrl.graph.scope_reader import ScopeReader
from flowrl.graph.sections import read_modules, read_sections
from flowrl.graph.tree import GraphSource, data_tree, read_tree
from flowrl.graph.warmup_reader import PhaseReader
from flowrl.graph.yaml_text import SourceLocation, YamlValue, item_of, parse_yaml


@dataclass(slots=True)
class LoadedGraph:
    """A graph as far as it could be read, and the problems found on the way."""

    graph: Graph
    tree: YamlValue
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    incomplete: frozenset[str] = frozenset()  # nodes that may lack an edge because it has a problem


def load_graph(
    source: str | Path,
    overrides: Mapping[str, str] | None = None,
    additions: Mapping[str, Any] | None = None,
) -> LoadedGraph:
    """Read a graph by its file or bundled name.

    `overrides` are values as `--set` takes them, and `additions` what a file that extends the graph would say.
    """
    tree, name = read_tree(locate_graph(str(source))), _graph_name(Path(source))
    if additions is not None:
        tree = tree.extended_by(item_of(additions, SourceLocation(name)))
    return _load(tree, name, overrides or {}, tree.files[-1].parent)


def _graph_name(path: Path) -> str:
    """A graph is named after its file; `graph.yaml`, of a project or a run, after its folder."""
    name = path.name.removesuffix(".yaml").removesuffix(".yml")
    return (path.resolve().parent.name if name == "graph" else name) or name


def _folders_of(files: Sequence[Path]) -> tuple[Path, ...]:
    """The folders of graph files, except the one of the package: bundled graphs have no modules beside them."""
    folders = dict.fromkeys(file.parent for file in files)
    return tuple(folder for folder in folders if folder != graphs_folder())


def load_text(text: str, name: str) -> LoadedGraph:
    """Read a graph from a YAML text that needs no files beside it, such as a resolved graph."""
    return _load(GraphSource(parse_yaml(text, name), ()), name, {})


def load_data(
    data: Mapping[str, Any], name: str = "graph", overrides: Mapping[str, str] | None = None
) -> LoadedGraph:
    """Read a graph from plain data, which may extend a graph file."""
    return _load(data_tree(item_of(data, SourceLocation(name))), name, overrides or {})


def _load(
    source: GraphSource, name: str, values: Mapping[str, str], folder: Path | None = None
) -> LoadedGraph:
    """Read a graph; paths that are not written in a file begin at `folder`, or else at the working folder."""
    problems, files = Problems(), source.files
    folders = read_modules(source.tree.fields.get("modules"), problems)
    catalogue = Catalogue((*_folders_of(files), *folders))
    overrides = Overrides(values, catalogue, problems)
    scope = ScopeReader(catalogue, overrides, problems, folder)
    scope.node_reader.params.folders = tuple(dict.fromkeys(file.parent for file in reversed(files)))
    tree = scope.read(source)
    if tree is None:
        return LoadedGraph(Graph(name, files=files), source.tree, problems, overrides.warnings)
    overrides.report_unplaced(scope.nodes, tree)
    reader = EdgeReader(
        scope.nodes, scope.part_ports, scope.broken_nodes, scope.removed_nodes, problems
    )
    edges = reader.read_edges(scope.statements)
    incomplete = frozenset(reader.incomplete if scope.all_edges_read else scope.nodes)
    overrides.set_edge_options(edges, {*incomplete, *scope.broken_nodes})
    graph = Graph(name, nodes=scope.nodes, edges=list(edges.values()), files=files)
    graph.folders = tuple(folder.resolve() for folder in catalogue.folders)
    params = scope.node_reader.params
    read_sections(tree.fields, graph, scope.part_ports, scope.broken_nodes, params)
    share_replicas(graph, problems)
    clear_replaced_params(graph, problems)
    refuse_params_of_missing_inputs(graph, incomplete, problems)
    if (warmup := tree.fields.get("warmup")) is not None:
        phases = PhaseReader(graph, scope.part_ports, scope.broken_nodes, params, problems)
        graph.phases = phases.read(warmup)
    return LoadedGraph(graph, tree, list(dict.fromkeys(problems)), overrides.warnings, incomplete)
