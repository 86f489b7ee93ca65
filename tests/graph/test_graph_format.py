"""What graph files mean: chains, names of ports, links, removal, extension, parameters, user types."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowrl.core.errors import GraphError, UsageError
from flowrl.graph.loading import load_data, load_graph
from flowrl.graph.model import Limits

PAIR = "nodes: {s: 'toys:Source', p: 'toys:Pipe', t: 'toys:Sink'}\n"


def edges_of(checked):
    """The edges as text, with their options."""
    assert [str(p) for p in checked.problems] == []
    return [
        f"{e} {e.changed_options()}" if e.changed_options() else str(e) for e in checked.graph.edges
    ]


def test_a_graph_is_named_after_its_file_or_its_folder(write, tmp_path):
    for name, called in {"pairs.yaml": "pairs", "maze/graph.yaml": "maze"}.items():
        write(PAIR, name)
        assert load_graph(name).graph.name == called
    write(PAIR, "graph.yaml")
    assert load_graph("graph.yaml").graph.name == tmp_path.name


# edges


def test_a_chain_is_an_edge_for_each_arrow(checked):
    assert edges_of(checked(PAIR + "edges: [s -> p -> t]")) == [
        "s.out -> p.data",
        "p.out -> t.data",
    ]


def test_spaces_in_a_chain_are_ignored(checked):
    assert edges_of(checked(PAIR + "edges: ['s->p  ->   t']")) == [
        "s.out -> p.data",
        "p.out -> t.data",
    ]


def test_an_edge_in_full_form_is_the_same_edge(checked):
    full = "edges: [{from: s.out, to: p.data, capacity: 3}, {from: [p], to: t}]"
    assert edges_of(checked(PAIR + full)) == ["s.out -> p.data {'capacity': 3}", "p.out -> t.data"]


def test_several_sources_of_one_input_are_listed_together(checked):
    text = """
        nodes: {a: 'toys:Source', b: 'toys:Source', t: 'toys:Sink'}
        edges: ["a, b -> t: {merge: any}"]
        """
    with pytest.raises(AssertionError):
        edges_of(checked(text))  # options belong to a mapping, not into the text
    text = text.replace('["a, b -> t: {merge: any}"]', '[{"a, b -> t": {merge: any}}]')
    assert edges_of(checked(text)) == ["a.out, b.out -> t.data {'merge': 'any'}"]


def test_one_output_may_feed_several_inputs(checked):
    text = "nodes: {s: 'toys:Source', t: 'toys:Sink', u: 'toys:Sink'}\nedges: [\"s -> t, u\"]"
    assert edges_of(checked(text)) == ["s.out -> t.data", "s.out -> u.data"]


def test_naming_a_port_chooses_between_two_that_fit(checked):
    text = """
        nodes: {s: 'toys:Source', f: 'toys:Fork', j: 'toys:Join'}
        edges: [s -> f, f.odd -> j.right, f.even -> j.left]
        """
    assert edges_of(checked(text))[1:] == ["f.odd -> j.right", "f.even -> j.left"]


def test_optional_ports_are_used_only_where_they_are_named(checked):
    text = """
        nodes: {s: 'toys:Source', d: 'toys:Source', b: 'toys:Buffer', t: 'toys:Sink'}
        edges: [s -> b -> t, d -> b.demos]
        """
    assert "d.out -> b.demos" in edges_of(checked(text))


def test_a_link_may_be_written_from_either_side(checked):
    for link in ("r <-> e", "e <-> r", "e.serve <-> r.inner"):
        found = checked(f"nodes: {{e: 'toys:Envs', r: 'toys:Relay'}}\nedges: [{link}]")
        assert [str(e) for e in found.graph.edges] == ["e.serve <-> r.inner"]


def test_a_link_in_full_form_has_the_key_link(checked):
    text = "nodes: {e: 'toys:Envs', r: 'toys:Relay'}\nedges: [{from: e, to: r, link: true}]"
    assert [str(e) for e in checked(text).graph.edges] == ["e.serve <-> r.inner"]


@pytest.mark.parametrize(
    ("edge", "message"),
    [
        (
            "a => b",
            "g.yaml:2:9: edges: 'a => b' is not an edge; write 'a -> b' or 'a <-> b', ports as "
            "'a.port'",
        ),
        (
            "3",
            "g.yaml:2:9: edges: this is not an edge; write 'a -> b', 'a <-> b', 'a -> b: {lag: "
            "1}' or {from: a.port, to: b.port}",
        ),
        (
            "{s -> p -> t: {capacity: 1}}",
            "g.yaml:2:10: edges: the options of 's -> p -> t' could mean several edges; write that "
            "edge apart",
        ),
        (
            "{s -> p: 3}",
            "g.yaml:2:18: edges: the options of 's -> p' are not a mapping; write {lag: 1}, or "
            "null to remove the edge",
        ),
        (
            "{from: s}",
            "g.yaml:2:9: edges: an edge in full has 'from' and 'to'; {from: a.port, to: b.port}",
        ),
        (
            "{from: [], to: p}",
            "g.yaml:2:16: edges: 'from' is not a node or port; write 'node.port', or a list of "
            "them",
        ),
        (
            "{from: s, to: 3}",
            "g.yaml:2:23: edges: 'to' is not a node or port; write 'node.port'",
        ),
        (
            "{from: s, to: p, link: 1}",
            "g.yaml:2:32: edges: link is 1; expected true or false",
        ),
        (
            "'s, s -> p'",
            "g.yaml:2:9: edges: 's, s -> p' names a source twice; leave one out",
        ),
    ],
)
def test_an_invalid_edge_is_reported(problems, edge, message):
    assert problems(PAIR + f"edges: [{edge}]")[0] == message


def test_edges_of_plain_data_that_feed_an_input_twice_are_reported_too(write):
    write("")
    data = {
        "nodes": {"a": "toys:Source", "b": "toys:Source", "t": "toys:Sink"},
        "edges": ["a -> t", "b -> t"],
    }
    (problem,) = load_data(data).problems
    assert problem.what == "edges: the input t.data is fed twice (first at graph)"


# extends


def test_a_later_edge_into_the_same_input_replaces_an_earlier_one(write, checked):
    write(PAIR + "edges: [s -> p -> t]", "base.yaml")
    text = """
        extends: base.yaml
        nodes: {q: 'toys:Pipe'}
        edges: [s -> q -> p]
        """
    assert edges_of(checked(text)) == ["p.out -> t.data", "s.out -> q.data", "q.out -> p.data"]


def test_null_removes_names_of_the_graph_that_is_extended(write, checked):
    write(
        """
        limits: {steps: 5, time: 1m}
        nodes: {s: {type: 'toys:Source', rate: 2}, p: 'toys:Pipe', t: 'toys:Sink'}
        edges: [s -> p -> t]
        """,
        "base.yaml",
    )
    found = checked("""
        extends: base.yaml
        limits: {time: null}
        nodes: {p: null, s: {rate: null}}
        edges:
          - s -> t
        """)
    assert edges_of(found) == ["s.out -> t.data"]
    assert found.graph.limits.steps == 5
    assert found.graph.limits.time_s is None
    assert found.graph.nodes["s"].config.rate == 1


def test_a_removed_node_is_unknown_to_the_file_that_removes_it(write, problems):
    write(PAIR + "edges: [s -> p -> t]", "base.yaml")
    reported = problems("extends: base.yaml\nnodes: {p: null}\nedges: [s -> p, s -> t]\n")
    assert reported == ["g.yaml:3:9: edges: unknown node 'p'; known: s, t"]


def test_null_for_an_unknown_node_is_reported(problems):
    reported = problems(PAIR.replace("}", ", q: null}") + "edges: [s -> p -> t]")
    assert reported[0].startswith("g.yaml:1:59: nodes.q: expected a type, or a mapping with 'type'")


def test_null_removes_an_edge_by_its_input_or_by_both_ends(write, checked):
    write(PAIR.replace("}", ", u: 'toys:Sink'}") + 'edges: ["s -> p, u", p -> t]', "base.yaml")
    for removal in ("u.data: null", "u: null", "s -> u: null", "s.out -> u.data: null"):
        found = checked(f"extends: base.yaml\nedges:\n  - {removal}\n")
        assert [str(e) for e in found.graph.edges] == ["s.out -> p.data", "p.out -> t.data"]


def test_null_removes_a_link_from_either_side(write, checked):
    write("nodes: {e: 'toys:Envs', r: 'toys:Relay'}\nedges: [r <-> e]", "base.yaml")
    for removal in ("r <-> e: null", "e <-> r: null", "r.inner: null"):
        assert checked(f"extends: base.yaml\nedges:\n  - {removal}\n").graph.edges == []


def test_removing_an_unknown_edge_is_reported(problems):
    assert problems(PAIR + "edges:\n  - s -> p -> t\n  - s -> t: null\n") == [
        "g.yaml:4:5: edges: null removes the edge s -> t, and there is none; known: p.data, t.data"
    ]


def test_graphs_extend_over_several_levels_and_change_only_what_they_name(write, checked):
    write(
        """
        seed: 1
        nodes: {s: {type: 'toys:Source', rate: 2, columns: [a]}, p: 'toys:Pipe', t: 'toys:Sink'}
        edges: [s -> p -> t]
        """,
        "deep/one.yaml",
    )
    write("extends: one.yaml\nseed: 2\nnodes: {s: {rate: 3}}\n", "deep/two.yaml")
    found = checked("extends: deep/two.yaml\nnodes: {p: {takes: 3}}\n")
    assert edges_of(found) == ["s.out -> p.data", "p.out -> t.data"]
    assert found.graph.seed == 2
    assert found.graph.nodes["s"].config.rate == 3
    assert found.graph.nodes["s"].config.columns == ["a"]
    assert found.graph.nodes["p"].config.takes == 3  # `p: toys:Pipe` is short for {type: …}
    assert [f.name for f in found.graph.files] == ["one.yaml", "two.yaml", "g.yaml"]


def test_a_node_of_another_type_keeps_no_parameters_of_the_old_one(write, checked):
    write("nodes: {s: {type: 'toys:Source', rate: 2}, t: 'toys:Sink'}\nedges: [s -> t]", "b.yaml")
    found = checked("extends: b.yaml\nnodes: {s: {type: 'toys:AutoSource'}}")
    assert edges_of(found) == ["s.out -> t.data"]


def test_a_bundled_graph_is_extended_by_its_name(checked):
    found = checked("extends: cartpole_dqn\nseed: 7\n")
    assert found.problems == []
    assert found.graph.seed == 7
    assert found.graph.name == "g"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: 3", "g.yaml:1:10: extends: expected the name of one graph"),
        (
            "extends: cartpole_dqm",
            "g.yaml:1:10: extends: there is no graph 'cartpole_dqm'; did you mean 'cartpole_dqn'?",
        ),
        (
            "extends: g.yaml",
            "g.yaml:1:10: extends: the files extend each other: g.yaml -> g.yaml",
        ),
        ("[1]", "g.yaml:1:1: a graph is a mapping with the keys nodes, edges, …"),
        ("", "g.yaml: is empty; a graph has at least 'nodes'; 'flowrl new DIR' makes one"),
    ],
)
def test_a_graph_that_cannot_be_read_is_reported(write, text, message):
    write(text)
    with pytest.raises(GraphError) as caught:
        load_graph("g.yaml")
    assert str(caught.value) == message


def test_a_missing_graph_is_reported(write):
    write("")
    with pytest.raises(UsageError) as caught:
        load_graph("cartpole_dqm")
    assert str(caught.value) == (
        "cartpole_dqm: there is no such file or bundled graph; did you mean 'cartpole_dqn'?"
    )
    with pytest.raises(UsageError, match=r"g\.yml: .*; did you mean 'g.yaml'\?"):
        load_graph("g.yml")
    with pytest.raises(UsageError, match="is a folder; give the graph file in it"):
        load_graph(".")


# ${params}


def test_params_stand_for_values_of_every_type(checked):
    found = checked("""
        params: {rate: 4, names: [a, b], half: '${rate}.5', text: x}
        about: '${text}-${half}'
        nodes: {s: {type: 'toys:Source', rate: '${rate}', columns: '${names}'}, t: 'toys:Sink'}
        edges: ['s -> t']
        """)
    assert found.problems == []
    assert found.graph.about == "x-4.5"
    assert found.graph.nodes["s"].config.rate == 4
    assert found.graph.nodes["s"].config.columns == ["a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "use", "message"),
    [
        (
            "{rat: 1, x: '${rat}'}",
            "'${rate}'",
            "2:40: '${rate}': unknown parameter 'rate'; did you mean 'rat'?",
        ),
        ("{rate: 1}", "1", "1:10: params: 'rate' is used nowhere; write ${rate} where it is meant"),
        ("3", "1", "1:9: params: expected a mapping of names to values; params: {width: 64}"),
        ("{rate: [1]}", "'1${rate}'", "2:40: '${rate}' is not a single value; use it alone"),
        (
            "{rate: '${late}', late: 1}",
            "'${rate}'",
            "1:16: '${late}': 'late' comes later; a parameter may use those that are written before it",
        ),
    ],
)
def test_wrong_params_are_reported(problems, params, use, message):
    text = f"params: {params}\nnodes: {{s: {{type: 'toys:Source', rate: {use}}}, t: 'toys:Sink'}}"
    assert f"g.yaml:{message}" in problems(text + "\nedges: [s -> t]")


# types of ones own


def test_a_class_of_a_module_beside_the_graph_is_a_type(checked, write):
    write(
        """
        import flowrl

        class Half(flowrl.Node):
            data = flowrl.In("samples")
            out = flowrl.Out("samples")

            def fire(self, data):
                return data
        """,
        "beside_a_graph.py",
    )
    text = (
        "nodes: {s: 'toys:Source', h: 'beside_a_graph:Half', t: 'toys:Sink'}\nedges: [s -> h -> t]"
    )
    assert edges_of(checked(text)) == ["s.out -> h.data", "h.out -> t.data"]


def test_a_decorated_function_is_a_type_and_its_keywords_are_parameters(checked):
    found = checked("""
        nodes: {s: 'toys:Source', c: {type: 'toys:clip', low: -2}, w: 'toys:watch'}
        edges: [s -> c -> w]
        """)
    assert edges_of(found) == ["s.out -> c.data", "c.out -> w.data"]
    assert found.graph.nodes["c"].config.model_dump() == {"low": -2, "high": 1.0}
    assert found.graph.nodes["w"].cls.ports["more"].optional


def test_a_type_of_an_installed_package_is_found_by_its_import_path(checked):
    text = "nodes: {s: 'tests.toys.toys:Source', t: 'tests.toys.toys:Sink'}\nedges: [s -> t]"
    assert edges_of(checked(text)) == ["s.out -> t.data"]


def test_a_package_registers_types_under_an_entry_point(checked, write, tmp_path, monkeypatch):
    write("TABLE = {'node': {'third_party': 'toys:Source'}}\n", "site/third_party_types.py")
    write("Metadata-Version: 2.1\nName: third\nVersion: 1\n", "site/third-1.dist-info/METADATA")
    write(
        "[flowrl.catalogue]\nthird = third_party_types:TABLE\n",
        "site/third-1.dist-info/entry_points.txt",
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert edges_of(checked("nodes: {s: third_party, t: 'toys:Sink'}\nedges: [s -> t]"))


def test_a_broken_package_under_the_entry_point_is_reported(checked, write, tmp_path, monkeypatch):
    write("Metadata-Version: 2.1\nName: bad\nVersion: 1\n", "site/bad-1.dist-info/METADATA")
    write(
        "[flowrl.catalogue]\nbad = no_such_types:TABLE\n", "site/bad-1.dist-info/entry_points.txt"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(UsageError, match="the catalogue 'no_such_types:TABLE' cannot be loaded"):
        checked("nodes: {s: learner}")


def test_modules_lists_more_folders_of_modules(checked, write):
    write("from toys import Source\n", "lib/from_a_folder.py")
    text = "modules: [lib]\nnodes: {s: 'from_a_folder:Source', t: 'toys:Sink'}\nedges: [s -> t]"
    assert edges_of(checked(text)) == ["s.out -> t.data"]
    assert str(checked("modules: [no]\n" + PAIR).problems[0]) == (
        "g.yaml:1:11: modules: there is no folder 'no'; its path is from this file"
    )


def test_no_module_hides_a_public_name_of_the_package():
    import flowrl
    import flowrl.checks.check
    import flowrl.graph.loading

    package = Path(flowrl.__file__).parent
    modules = {p.stem for p in package.glob("*.py")} | {
        p.parent.name for p in package.glob("*/*.py")
    }
    assert set(flowrl.__all__) & modules == set()


# sections


@pytest.mark.parametrize(
    ("written", "seconds"), [("30s", 30), ("10m", 600), ("1.5 h", 5400), ("2d", 172800), ("7", 7)]
)
def test_a_time_limit_may_have_a_unit(checked, written, seconds):
    found = checked(PAIR + f"edges: [s -> p -> t]\nlimits: {{time: {written}, steps: 10}}")
    assert found.graph.limits.time_s == seconds
    assert found.graph.limits.steps == 10


def test_null_is_no_value_in_every_section(checked):
    sections = "limits: {steps: null, time: null}\nseed: null\ntorch_threads: null\nmodules: null\n"
    found = checked(PAIR + "edges: [s -> p -> t]\n" + sections)
    assert [str(p) for p in found.problems] == []
    assert (found.graph.limits, found.graph.seed) == (Limits(), 0)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            "seed: true",
            "g.yaml:3:7: seed is True; expected a whole number from 0 to 9223372036854775807",
        ),
        (
            "torch_threads: 0",
            "g.yaml:3:16: torch_threads is 0; expected a whole number from 1 to 1024",
        ),
        (
            "limits: 3",
            "g.yaml:3:9: limits: expected a mapping; limits: {steps: 100000, "
            "train_iters: 5000, time: 10m}",
        ),
        (
            "limits: {steps: 0}",
            "g.yaml:3:17: limits.steps is 0; expected a whole number from 1 to 4611686018427387904",
        ),
        (
            "limits: {time: -1}",
            "g.yaml:3:16: limits.time is -1; expected a time such as 30s, 10m or 2h",
        ),
        (
            "limits: {time: .inf}",
            "g.yaml:3:16: limits.time is inf; expected a time such as 30s, 10m or 2h",
        ),
        ("about: [1]", "g.yaml:3:8: about is [1]; expected a text"),
        (
            "placements: {a: {x: process}}",
            "g.yaml:3:18: placements.a: unknown node 'x'; known: p, s, t",
        ),
        (
            "placements: {a: {s: 3}}",
            "g.yaml:3:21: placements.a.s is 3; expected thread, process or a host",
        ),
        (
            "placements: {a: {s: {cores: two}}}",
            "g.yaml:3:29: placements.a.s: cores is 'two'; expected a whole number of 0 or more",
        ),
        (
            "placements: {a: {s: {gpu: 1}}}",
            "g.yaml:3:27: placements.a.s: unknown key 'gpu'; did you mean 'gpus'?",
        ),
        (
            "placements: {a: {'s[3-1]': process}}",
            "g.yaml:3:18: placements.a: 's[3-1]' names no replica; write s[1-3]",
        ),
        (
            "placements: {a: {s: proc}}",
            "g.yaml:3:21: placements.a.s is 'proc'; did you mean 'process'? "
            "For a host of this name, write the pattern 'proc*'",
        ),
        (
            "placements: {a: process}",
            "g.yaml:3:17: placements.a: expected a mapping of nodes to "
            "places; {collector: process}",
        ),
        ("env: {id: X}", "g.yaml:3:1: the section 'env' is used by no node"),
    ],
)
def test_a_wrong_section_is_reported(problems, section, message):
    (reported,) = problems(PAIR + "edges: [s -> p -> t]\n" + section)
    assert reported == message


@pytest.mark.parametrize("written", ["nodes: null", "nodes: {}", "nodes: [a]", "nodes: 3"])
def test_a_graph_without_nodes_has_one_problem(write, problems, written):
    write(PAIR + "edges: [s -> p -> t]\nwarmup: [{edges: [s -> p], rounds: 1}]\n", "base.yaml")
    above = "env: {id: CartPole-v1}\nplacements: {a: {s: process}}\n"
    expected = "nodes: expected a mapping of names to nodes; nodes: {name: {type: …}}"
    assert problems(f"{above}edges: [s -> p]\n{written}\n") == [f"g.yaml:4:1: {expected}"]
    if "null" in written:  # what is no mapping replaces the nodes, and an empty one changes nothing
        assert problems(f"extends: base.yaml\n{above}{written}\n") == [f"g.yaml:4:1: {expected}"]


@pytest.mark.parametrize("name", ["3a", "a.b", "a b", "-a", "a-", "/a", "a//b", "ä!"])
def test_an_invalid_name_is_reported(problems, name):
    reported = problems(f"nodes:\n  {name}: toys:Source\n")[0]
    assert reported == (
        f"g.yaml:2:3: nodes: '{name}' is not a name; use letters, digits, '_' and '-', a letter "
        "first"
    )


def test_names_may_contain_dashes_and_slashes(checked):
    text = "nodes: {a-b: 'toys:Source', c/d-e: 'toys:Sink'}\nedges: [a-b -> c/d-e]"
    assert edges_of(checked(text)) == ["a-b.out -> c/d-e.data"]


@pytest.mark.slow
def test_problems_have_locations_and_do_not_depend_on_the_hash_seed(write):
    import subprocess

    write(
        "nodes: {s: env_manager}\nlimits: {b: 1, a: 1, c: 1}\nwarmup: [{z: 1, y: 1, x: 1, steps: 1}]\n"
    )
    code = "from flowrl.graph.loading import load_graph; print(*load_graph('g.yaml').problems, sep='\\n')"
    root = str(Path(__file__).parents[2])
    message = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "123"
    }
    assert len(message) == 1
    assert "limits: unknown key 'b'" in message.pop()


def test_a_data_file_is_found_beside_the_graph_that_is_extended(checked, write, tmp_path):
    """`extends: cartpole_dqn` finds the bundled demonstrations, as the pages show it."""
    assert checked("""
        extends: cartpole_dqn
        nodes: {demos: {type: demos, path: cartpole_demos.npz}}
        edges: [demos -> buffer.demos]
        """).ok


def test_a_data_file_beside_the_graph_is_taken_before_that_of_the_graph_that_is_extended(
    checked, tmp_path
):
    text = """
        extends: cartpole_dqn
        nodes: {demos: {type: demos, path: cartpole_demos.npz}}
        edges: [demos -> buffer.demos]
        """
    own = tmp_path / "cartpole_demos.npz"
    own.write_bytes(b"no archive")
    [problem] = checked(text).problems
    assert str(own) in problem.what
