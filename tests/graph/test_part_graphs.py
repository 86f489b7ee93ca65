"""Part-graphs: a file's nodes and edges under one name, with parameters and ports; they nest and replicate."""

from __future__ import annotations

import pytest

from flowrl.core.errors import GraphError

PART = """
    about: two pipes in a row
    params: {gives: 1}
    ports: {data: first.data, out: second.out}
    nodes:
      first: {type: 'toys:Pipe', gives: '${gives}'}
      second: toys:Pipe
    edges: [first -> second]
    """
USE = """
    nodes:
      s: toys:Source
      pair: {type: pair.yaml, gives: 3}
      t: toys:Sink
    edges: [s -> pair -> t]
    """


def edges_of(checked):
    assert [str(p) for p in checked.problems] == []
    return [str(e) for e in checked.graph.edges]


def test_a_part_graph_stands_for_its_nodes(write, checked):
    write(PART, "pair.yaml")
    found = checked(USE)
    assert edges_of(found) == [
        "pair/first.out -> pair/second.data",
        "s.out -> pair/first.data",
        "pair/second.out -> t.data",
    ]
    assert found.program.round.firings == {"pair/first": 1, "pair/second": 3, "s": 1, "t": 3}


def test_the_ports_of_a_part_graph_may_be_named(write, checked):
    write(PART, "pair.yaml")
    assert edges_of(checked(USE.replace("s -> pair -> t", "s -> pair.data, pair.out -> t")))


def test_part_graphs_nest_and_paths_are_relative_to_the_file_that_names_them(write, checked):
    write(PART, "parts/pair.yaml")
    write(
        """
        ports: {data: inner.data, out: last.out}
        nodes: {inner: pair.yaml, last: 'toys:Pipe'}
        edges: [inner -> last]
        """,
        "parts/three.yaml",
    )
    found = checked(USE.replace("{type: pair.yaml, gives: 3}", "parts/three.yaml"))
    assert edges_of(found)[0] == "pair/inner/first.out -> pair/inner/second.data"
    assert "s.out -> pair/inner/first.data" in edges_of(found)


@pytest.mark.slow
def test_a_part_graph_replicates_as_a_unit(write, checked):
    write(PART, "pair.yaml")
    found = checked(USE.replace("gives: 3", "replicas: 2, on_failure: restart"))
    graph = found.graph
    assert {n: s.replicas for n, s in graph.nodes.items()} == {
        "s": 1,
        "pair/first": 2,
        "pair/second": 2,
        "t": 1,
    }
    assert graph.nodes["pair/first"].on_failure == "restart"
    assert found.program.round.firings == {"s": 2, "pair/first": 1, "pair/second": 1, "t": 1}


def test_a_part_graph_gives_its_torch_threads_to_nodes_without_their_own(write, checked):
    write(
        PART.replace("second: toys:Pipe", "second: {type: 'toys:Pipe', torch_threads: 4}"),
        "pair.yaml",
    )
    nodes = checked(USE.replace("gives: 3", "gives: 3, torch_threads: 2")).graph.nodes
    assert [nodes[n].torch_threads for n in ("pair/first", "pair/second", "t")] == [2, 4, None]


def test_a_part_graph_takes_shared_sections_of_the_outer_graph(write, checked):
    write("ports: {data: l.data}\nnodes: {l: 'toys:Learner'}\n", "part.yaml")
    found = checked("""
        policy: {type: 'toys:Greedy', lr: 5}
        nodes: {s: {type: 'toys:Source'}, p: part.yaml}
        edges: [s -> p]
        """)
    assert found.graph.nodes["p/l"].config.policy.config.lr == 5


def test_a_part_graph_may_have_sections_of_its_own(write, checked):
    write(
        "policy: {type: 'toys:Greedy', lr: 6}\nports: {data: l.data}\nnodes: {l: 'toys:Learner'}\n",
        "part.yaml",
    )
    found = checked("nodes: {s: 'toys:Source', p: part.yaml}\nedges: [s -> p]")
    assert found.graph.nodes["p/l"].config.policy.config.lr == 6


def test_a_placement_of_a_part_graph_places_its_nodes(write, checked):
    write(PART, "pair.yaml")
    found = checked(USE + "placements: {p: {pair: process, pair/second: thread, s: thread}}")
    assert found.graph.placements == {
        "p": {"pair/first": "process", "pair/second": "thread", "s": "thread"}
    }


def test_a_part_graph_may_extend_another(write, checked):
    write(PART, "pair.yaml")
    write("extends: pair.yaml\nnodes: {second: {gives: 2}}\n", "wide.yaml")
    found = checked(USE.replace("pair.yaml", "wide.yaml"))
    assert found.problems == []
    assert found.graph.nodes["pair/second"].config.gives == 2


@pytest.mark.parametrize(
    ("part", "use", "message"),
    [
        (
            PART,
            "part.yml",
            "g.yaml:3:16: nodes.pair: there is no part-graph 'part.yml'; its path "
            "is from this file",
        ),
        (
            PART,
            "pair.yaml, gievs: 2",
            "g.yaml:3:27: unknown parameter 'gievs' of the part-graph; did you mean 'gives'?",
        ),
        (
            "nodes: {pair: pair.yaml}",
            "pair.yaml",
            "pair.yaml:1:15: nodes.pair/pair: the part-graph 'pair.yaml' contains itself",
        ),
        (
            "nodes: {p: 'toys:Pipe'}",
            "pair.yaml",
            "pair.yaml: the part-graph 'pair' shows no ports; ports: {data: inner.data}",
        ),
        (
            "nodes: {p: 'toys:Pipe'}\nports: {x: p.dta}",
            "pair.yaml",
            "pair.yaml:2:12: ports.x: there is no port 'p.dta'; did you mean 'data'?",
        ),
        (
            "nodes: {pip: 'toys:Pipe'}\nports: {x: pipe.data}",
            "pair.yaml",
            "pair.yaml:2:12: ports.x: there is no port 'pipe.data'; did you mean 'pip'?",
        ),
        (
            "nodes: {p: 'toys:Pipe'}\nports: {x-y: p.data}",
            "pair.yaml",
            "pair.yaml:2:9: ports: 'x-y' is not a name; use letters, digits and '_'",
        ),
        (
            "nodes: {p: 'toys:Pipe'}\nports: {x: [1]}",
            "pair.yaml",
            "pair.yaml:2:12: ports.x: there is no port '[1]'; known: p",
        ),
        (
            "seed: 1\nnodes: {p: 'toys:Pipe'}\nports: {x: p.data}",
            "pair.yaml",
            "pair.yaml:1:1: unknown key 'seed'; known: about, edges, extends, nodes, params, ports",
        ),
        ("[", "pair.yaml", "pair.yaml:2:1: is not YAML: did not find expected node content"),
    ],
)
def test_a_wrong_part_graph_is_reported(write, problems, part, use, message):
    write(part, "pair.yaml")
    reported = problems(f"nodes:\n  s: toys:Source\n  pair: {{type: {use}}}\nedges: [s -> pair]")
    assert message in reported


def test_two_nodes_of_one_full_name_are_reported(write, problems):
    write(PART, "pair.yaml")
    reported = problems(USE.replace("t: toys:Sink", "t: toys:Sink\n      pair/first: toys:Pipe"))
    assert reported[0] == "g.yaml:5:3: nodes: there are two nodes 'pair/first'; rename one"


@pytest.mark.slow
def test_part_graphs_with_too_many_nodes_are_reported(write, problems):
    for level in range(6):
        inner = "toys:Pipe" if level == 5 else f"level{level + 1}.yaml"
        nodes = ", ".join(f"n{i}: '{inner}'" for i in range(20))
        write(f"nodes: {{{nodes}}}\nports: {{data: n0.data}}\n", f"level{level}.yaml")
    with pytest.raises(GraphError) as caught:
        problems("nodes: {a: level0.yaml}")
    assert str(caught.value.problems[-1]).endswith(
        "part-graphs make more than 10000 nodes; use replicas"
    )


def test_a_part_graph_without_nodes_has_one_problem(write, problems):
    write("nodes: null\nports: {data: first.data, out: second.out}\nedges: [a -> b]\n", "pair.yaml")
    text = USE.replace(", gives: 3", "")
    [problem] = problems(text)
    assert problem == (
        "pair.yaml:1:1: nodes: expected a mapping of names to nodes; nodes: {name: {type: …}}"
    )
