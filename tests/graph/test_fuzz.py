"""Whatever a graph file holds, it ends in a graph or in problems: never in another exception."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from flowrl.checks.check import CheckedGraph, check
from flowrl.core.errors import GraphError, UsageError
from flowrl.graph.bundled import bundled_graphs, find_bundled
from flowrl.graph.expand import expand
from flowrl.graph.loading import load_data, load_graph
from flowrl.graph.yaml_text import parse_yaml
from flowrl.render.report import check_json, check_text
from tests.quick_selection import examples

fuzz = examples(120, deadline=30_000, suppress_health_check=[HealthCheck.function_scoped_fixture])

WORDS = [
    "nodes",
    "edges",
    "type",
    "policy",
    "params",
    "extends",
    "warmup",
    "placements",
    "limits",
    "seed",
    "about",
    "modules",
    "env",
    "steps",
    "set",
    "rounds",
    "time",
    "from",
    "to",
    "link",
    "lag",
    "every",
    "latest",
    "merge",
    "capacity",
    "when_full",
    "max_staleness",
    "replicas",
    "on_failure",
    "stop",
    "any",
    "order",
    "ports",
    "learner",
    "collector",
    "buffer",
    "envs",
    "evaluator",
    "dqn",
    "random",
    "learner.lr",
    "collector.policy",
    "naive_buffer",
    "sample_collector",
    "env_manager",
    "tests.toys.toys:Source",
    "tests.toys.toys:Sink",
    "tests.toys.toys:Pipe",
    "toys.yaml",
    "cartpole_dqn",
    "${x}",
    "${",
    "a->b",
    "s",
    "a",
    "b",
]
ARROWS = [
    "a -> b",
    "a <-> b",
    "a, b -> s",
    "a -> a",
    "s -> a -> b",
    "a.out -> b.data",
    "->",
    "b.data",
]
ODD = [
    "",
    " ",
    "a/b",
    "-a",
    "a.b.c",
    "\x00",
    "é",
    "x" * 300,
    "1e999",
    "2020-01-01",
    "!",
    "&",
    "*",
    "<<",
]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-2, 5),
    st.floats(),
    st.sampled_from(WORDS + ARROWS + ODD),
)
keys = st.sampled_from(WORDS + ARROWS + ODD)
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(keys, v, max_size=5), max_leaves=20
)
node = st.one_of(
    st.sampled_from(["tests.toys.toys:Source", "tests.toys.toys:Pipe", "tests.toys.toys:Loop"]),
    st.fixed_dictionaries(
        {"type": st.sampled_from([f"tests.toys.toys:{n}" for n in (
            "Source", "Pipe", "Sink", "AutoSink", "AutoSource", "Join", "Fork", "Evaluator", "Envs",
            "Relay", "Collector", "Buffer", "Learner", "Loop", "clip", "watch", "Typed", "Broken")])},
        optional={
            "replicas": st.integers(0, 3),
            "takes": st.integers(0, 4),
            "gives": st.integers(0, 4),
            "rate": st.one_of(st.integers(-1, 4), st.integers(2**60, 2**63 - 1)),
            "on_failure": st.sampled_from(["stop", "ignore", "restart", "x"]),
            "policy": values,
        },
    ),
    values,
)  # fmt: skip
names = st.sampled_from(["a", "b", "s", "c/d", "e-f"])
ends = st.builds(
    lambda n, p: f"{n}{p}",
    names,
    st.sampled_from(["", "", ".data", ".out", ".odd", ".weights", ".x"]),
)
chains = st.builds(
    lambda parts, arrow: arrow.join(parts),
    st.lists(ends, min_size=1, max_size=4),
    st.sampled_from([" -> ", " <-> ", ", "]),
)
options = st.dictionaries(
    st.sampled_from(
        ["lag", "every", "latest", "merge", "capacity", "when_full", "max_staleness", "x"]
    ),
    st.one_of(st.integers(-1, 3), st.booleans(), st.sampled_from(["any", "order", "drop_oldest"])),
    max_size=3,
)
edge = st.one_of(
    chains,
    st.builds(lambda c, o: {c: o}, chains, st.one_of(options, st.none())),
    st.builds(lambda a, b, o: {"from": a, "to": b, **o}, ends, ends, options),
    values,
)
phase = st.fixed_dictionaries(
    {"edges": st.lists(chains, max_size=3)},
    optional={
        "steps": st.integers(-1, 9),
        "rounds": st.integers(-1, 9),
        "set": st.dictionaries(st.sampled_from(["a.policy", "b.x", "s"]), values, max_size=2),
    },
)
graphs = st.fixed_dictionaries(
    {"nodes": st.dictionaries(names, node, min_size=1), "edges": st.lists(edge, max_size=6)},
    optional={
        "warmup": st.lists(phase, max_size=2),
        "policy": values,
        "params": values,
        "placements": values,
        "limits": values,
        "seed": values,
        "modules": values,
    },
)


def ends_well(make):
    """The graph or its problems, which can all be printed."""
    try:
        found = check(make())
    except (GraphError, UsageError):
        return
    assert isinstance(found, CheckedGraph)
    for problem in (*found.problems, *found.warnings):
        assert problem.where
        assert str(problem)
    if found.ok:
        check_text(found)
        check_json(found)
        again = check(load_data(parse_yaml(expand(found.graph), "again").plain()))
        assert again.ok
        assert again.program.round.firings == found.program.round.firings


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Check that a file with this content ends well."""
    monkeypatch.chdir(tmp_path)

    def file(data: bytes):
        Path("g.yaml").write_bytes(data)
        ends_well(lambda: load_graph("g.yaml"))

    return file


@fuzz
@given(st.binary(max_size=200))
def test_any_bytes_end_well(file, data):
    file(data)


@fuzz
@given(st.text(st.sampled_from("ab:-[]{}&*!|>'\"#%@`,?\n\t ~<01.é\x07"), max_size=60))
def test_any_punctuation_ends_well(file, text):
    file(text.encode())


@fuzz
@given(values)
def test_any_tree_ends_well(value):
    ends_well(lambda: load_data(value if isinstance(value, dict) else {"nodes": value}))


@fuzz
@given(graphs)
def test_any_graph_of_small_nodes_ends_well(graph):
    ends_well(lambda: load_data(graph))


@pytest.mark.slow
@fuzz
@given(graphs, st.dictionaries(st.text(max_size=8) | ends, st.text(max_size=8), max_size=3))
def test_any_values_of_set_end_well(graph, sets):
    ends_well(lambda: load_data(graph, overrides=sets))


SOUND = parse_yaml(
    """
policy: {type: 'tests.toys.toys:Greedy'}
params: {rate: 2}
nodes:
  envs: 'tests.toys.toys:Envs'
  collector: {type: 'tests.toys.toys:Collector', replicas: 2}
  pipe: 'tests.toys.toys:Pipe'
  buffer: {type: 'tests.toys.toys:Buffer', updates: '${rate}'}
  learner: {type: 'tests.toys.toys:Learner', policy: {lr: 0.5}}
  evaluator: 'tests.toys.toys:Evaluator'
  source: {type: 'tests.toys.toys:Source', rate: 3}
  auto: 'tests.toys.toys:AutoSink'
  sink: {type: 'tests.toys.toys:Sink', on_failure: restart}
edges:
  - collector <-> envs
  - collector -> pipe -> buffer -> learner
  - learner.priorities -> buffer.priorities
  - learner -> collector: {lag: 1, max_staleness: 2}
  - learner -> evaluator: {every: 3}
  - source -> sink, auto
warmup:
  - {edges: [collector -> buffer], steps: 32, set: {collector.policy: 'tests.toys.toys:Random'}}
  - {edges: [source -> auto], rounds: 2}
placements: {p: {learner: process}}
limits: {steps: 100, time: 1h}
""",
    "sound",
).plain()


@st.composite
def slightly_wrong(draw):
    """A sound graph in which at most two values are changed, removed or added."""
    tree = copy.deepcopy(SOUND)
    for _ in range(draw(st.integers(0, 2))):
        at = tree
        while True:
            found = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not found:
                break
            key = draw(st.sampled_from(found))
            if isinstance(at[key], dict | list) and draw(st.integers(0, 3)):
                at = at[key]
                continue
            how = draw(st.sampled_from(["change", "change", "delete", "add"]))
            if how == "delete":
                del at[key]
            elif how == "change":
                small = isinstance(at[key], int) and draw(st.booleans())
                at[key] = draw(st.integers(0, 9) if small else values | edge)
            elif isinstance(at, dict):
                at[draw(keys)] = draw(values)
            else:
                at.append(draw(values | edge | phase))
            break
    return tree


def test_the_sound_graph_is_sound():
    assert check(load_data(SOUND)).problems == []


@fuzz
@given(slightly_wrong())
def test_a_sound_graph_with_a_mistake_ends_well(tree):
    ends_well(lambda: load_data(tree))


LINES = [text for name in bundled_graphs() for text in find_bundled(name).read_text().splitlines()]


@st.composite
def mutated(draw):
    """A bundled graph with some lines removed, doubled, moved, replaced or broken."""
    lines = find_bundled(draw(st.sampled_from(bundled_graphs()))).read_text().splitlines()
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        how = draw(
            st.sampled_from(["delete", "double", "replace", "word", "cut", "indent", "value"])
        )
        line = lines[at]
        if how == "delete" and len(lines) > 1:
            del lines[at]
        elif how == "double":
            lines.insert(at, line)
        elif how == "replace":
            lines[at] = draw(st.sampled_from(LINES))
        elif how == "word":
            words = line.split(" ")
            words[draw(st.integers(0, len(words) - 1))] = draw(st.sampled_from(WORDS + ODD))
            lines[at] = " ".join(words)
        elif how == "cut":
            lines[at] = line[: draw(st.integers(0, len(line)))]
        elif how == "indent":
            lines[at] = " " * draw(st.integers(0, 6)) + line.strip()
        else:
            lines[at] = line.partition(":")[0] + ": " + str(draw(scalars))
    return "\n".join(lines).encode(errors="replace")


@pytest.mark.slow
@fuzz
@given(mutated())
def test_bundled_graphs_with_mistakes_end_well(file, data):
    file(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "nodes: {a: {type: " + "x" * 100_000 + "}}",
        "nodes:\n" + "".join(f"  n{i}: toys{i}:X\n" for i in range(300)),
        "nodes: {a: ${b" + " " * 100_000 + "}}",
        "nodes: {a: b}\nedges: [a" + " " * 100_000 + "b]",
        "nodes: {a: b}\nedges: ['" + "a -> " * 20_000 + "a']",
        "nodes: {a: b}\nwarmup: [{edges: ['a" + " " * 100_000 + "b'], steps: 1}]",
        "nodes: {a: 'os:system'}",
        "nodes: {a: ':'}",
        "nodes: {a: '..:x'}",
        "nodes: {a: 'tests.toys.toys:'}",
        "extends: " + "x/" * 3000,
        "extends: '\0'",
        "extends: .",
        "nodes: {a: " + "y" * 3000 + ".yaml}",
        "nodes: {a: '.yaml'}",
        "nodes: {a: '\u2028'}",
    ],
)
def test_hostile_files_end_well_and_soon(file, text):
    file(text.encode())


def test_a_folder_and_a_missing_file_end_well(file, tmp_path):
    (tmp_path / "g.yaml").mkdir()
    for name in ("g.yaml", "", ".", "/", "no", "\0", "x" * 5000, "../" * 1000):
        ends_well(lambda name=name: load_graph(name))


@pytest.mark.slow
@pytest.mark.parametrize("links", ["{b}.serve <-> {a}.inner", "{b}.out -> {a}.data"])
def test_long_chains_do_not_exhaust_the_stack(links):
    kind = "Relay" if "serve" in links else "Pipe"
    nodes = {f"n{i:04}": f"tests.toys.toys:{kind}" for i in range(1500)}
    edges = [links.format(a=f"n{i + 1:04}", b=f"n{i:04}") for i in range(1499)]
    ends_well(lambda: load_data({"nodes": nodes, "edges": edges}))
