"""The JSON schema accepts what flowrl accepts, and refuses typing mistakes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from flowrl.graph.bundled import bundled_graphs, find_bundled
from flowrl.graph.catalogue import Catalogue
from flowrl.graph.json_schema import SCHEMA_COMMENT, json_schema, schema_text
from flowrl.graph.keywords import NODE_KEYS, PHASE_KEYS, ROOT_KEYS
from flowrl.graph.loading import load_data
from flowrl.graph.model import EDGE_OPTIONS

STARTER = Path(__file__).parents[2] / "flowrl" / "cli" / "starter" / "graph.yaml"
EXAMPLES = Path(__file__).parents[2] / "examples"

Tree = dict[str, Any]


def read(path: Path | None) -> Tree:
    """A graph file as an editor's validator sees it."""
    assert path is not None
    tree: Tree = yaml.safe_load(path.read_text())
    return tree


BASE = read(find_bundled("cartpole_dqn"))


@cache
def schema() -> Tree:
    return json_schema(Catalogue())


@cache
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema())


def errors(tree: Tree) -> list[str]:
    """The paths of the errors that the schema finds."""
    return [".".join(map(str, e.absolute_path)) for e in validator().iter_errors(tree)]


def changed(change: Callable[[Tree], Any]) -> Tree:
    """The bundled DQN graph with a change."""
    tree = copy.deepcopy(BASE)
    change(tree)
    return tree


def test_the_schema_is_valid_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("name", bundled_graphs())
def test_every_bundled_graph_is_valid(name: str) -> None:
    assert errors(read(find_bundled(name))) == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_valid(path: Path) -> None:
    assert errors(read(path)) == []


def test_the_starting_project_is_valid() -> None:
    assert errors(read(STARTER)) == []


@pytest.mark.parametrize("path", [*map(find_bundled, bundled_graphs()), STARTER])
def test_the_first_line_tells_editors_of_the_schema_beside_the_graph(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith(SCHEMA_COMMENT)


@pytest.mark.slow
def test_the_file_for_editors_is_the_schema() -> None:
    assert json.loads(schema_text()) == schema()


def test_every_key_of_the_format_is_known() -> None:
    assert set(ROOT_KEYS) <= set(schema()["properties"])
    assert set(NODE_KEYS) <= set(schema()["$defs"]["node"]["properties"])
    assert set(PHASE_KEYS) == set(schema()["properties"]["warmup"]["items"]["properties"])
    full = schema()["properties"]["edges"]["items"]["else"]["then"]["properties"]
    assert set(full) == {"from", "to", "link", *EDGE_OPTIONS}


def test_every_built_in_type_has_its_parameters() -> None:
    catalogue = Catalogue()
    for kind in catalogue.kinds():
        for name in catalogue.names(kind):
            properties = set(schema()["$defs"][f"{kind}.{name}"]["properties"])
            fields = set(catalogue.find(kind, name).Config.model_fields)
            own = set(NODE_KEYS) if kind == "node" else {"type"}
            assert properties == fields | own


def test_a_parameter_has_its_meaning_default_and_range() -> None:
    found = schema()["$defs"]["node.naive_buffer"]["properties"]["batch_size"]
    assert found["description"] == "rows in each batch"
    assert found["default"] == 64
    assert {"type": "integer", "minimum": 1} in found["anyOf"]


def test_types_are_listed_with_their_summaries() -> None:
    names = schema()["$defs"]["policy"]["properties"]["type"]["anyOf"]
    expected = {n["const"]: n["description"] for n in names if "const" in n}
    assert expected["dqn"].startswith("DQN (Mnih et al. 2015)")


RIGHT: dict[str, Callable[[Tree], Any]] = {
    "a type alone": lambda t: t["nodes"].update(learner="learner"),
    "a policy alone": lambda t: t.update(policy="ppo"),
    "a type of one's own": lambda t: t["nodes"].update(x={"type": "my.nodes:X", "any": 1}),
    "no policies by name": lambda t: t["nodes"].update(
        x={"type": "match_collector", "policies": {}}
    ),
    "a part-graph": lambda t: t["nodes"].update(x={"type": "parts/x.yaml", "replicas": 2}),
    "replicas that come later": lambda t: t["nodes"]["collector"].update(replicas="2..16"),
    "a parameter of the graph": lambda t: t["nodes"]["buffer"].update(size="${size}"),
    "null where a parameter may be": lambda t: t["policy"].update(max_grad_norm=None),
    "a whole number for a float": lambda t: t["policy"].update(gamma=1),
    "an edge in full": lambda t: t["edges"].append({"from": ["a.x", "b"], "to": "c.y", "lag": 1}),
    "several sources": lambda t: t["edges"].append("a, b.x -> c, d -> e"),
    "an edge removed": lambda t: t["edges"].append({"buffer.data": None}),
    "a chain removed": lambda t: t["edges"].append({"a -> b": None}),
    "placements": lambda t: t.update(placements={"p": {"learner": "process:a"}}),
    "needs": lambda t: t.update(
        placements={
            "p": {
                "learner": {"gpus": 1, "memory": "8GB"},
                "collector[0-3]": {"place": "cpu-*", "cores": 2, "spread": True},
                "collector[4]": "process",
            }
        }
    ),
    "limits": lambda t: t.update(limits={"steps": 5, "time": "10m"}),
    "a part of a schedule": lambda t: t["policy"].update(epsilon={"env_steps": 5000}),
    "a schedule by results": lambda t: t["policy"].update(
        epsilon={"by": "return_mean", "points": [[0, 0.5], [200, 0.1]]}
    ),
    "a parameter of another type removed": lambda t: t.update(
        env={"type": "open_spiel", "game": "kuhn_poker", "id": None}
    ),
    "a parameter removed": lambda t: t["policy"].update(lr=None),
    "extending": lambda t: (t.clear(), t.update(extends="x", nodes={"a": {"size": 3}, "b": None})),
    "extending without nodes": lambda t: (t.clear(), t.update(extends="x", warmup=None)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_valid_graphs_are_accepted(name: str) -> None:
    assert errors(changed(RIGHT[name])) == []


WRONG: dict[str, tuple[Callable[[Tree], Any], str]] = {
    "a mistyped key": (lambda t: t.update(node={}), ""),
    "a mistyped parameter": (lambda t: t["nodes"]["buffer"].update(batchsize=3), "nodes.buffer"),
    "a mistyped key of a schedule": (
        lambda t: t["policy"].update(epsilon={"env_step": 5000}),
        "policy.epsilon",
    ),
    "out of range": (lambda t: t["nodes"]["buffer"].update(size=0), "nodes.buffer.size"),
    "text for a number": (lambda t: t["nodes"]["buffer"].update(size="9"), "nodes.buffer.size"),
    "a mistyped node type": (lambda t: t["nodes"].update(learner="lerner"), "nodes.learner"),
    "a mistyped type": (lambda t: t["policy"].update(type="dqnn"), "policy.type"),
    "a node without type": (lambda t: t["nodes"]["buffer"].pop("type"), "nodes.buffer"),
    "no nodes": (lambda t: t.pop("nodes"), ""),
    "another policy's parameter": (
        lambda t: t["policy"].update(clip=0.2),
        "policy.clip",
    ),
    "a removed parameter of no type": (lambda t: t["env"].update(idd=None), "env"),
    "a mistyped section": (lambda t: t["env"].update(idd="x"), "env"),
    "a missing parameter": (lambda t: t["nodes"].update(w={"type": "npz_writer"}), "nodes.w"),
    "no id": (lambda t: t["env"].pop("id"), "env"),
    "an arrow apart": (lambda t: t["edges"].append("a - > b"), "edges.4"),
    "a mistyped option": (lambda t: t["edges"].append({"a -> b": {"lagg": 1}}), "edges.4.a -> b"),
    "a wrong lag": (lambda t: t["edges"].append({"a -> b": {"lag": -1}}), "edges.4.a -> b.lag"),
    "half an edge": (lambda t: t["edges"].append({"from": "a"}), "edges.4"),
    "two edges in one": (lambda t: t["edges"].append({"a -> b": {}, "c -> d": {}}), "edges.4"),
    "a phase without length": (lambda t: t["warmup"][0].pop("steps"), "warmup.0"),
    "a phase with two": (lambda t: t["warmup"][0].update(rounds=3), "warmup.0"),
    "a negative seed": (lambda t: t.update(seed=-1), "seed"),
    "a mistyped limit": (lambda t: t.update(limits={"step": 3}), "limits"),
    "no replicas": (
        lambda t: t["nodes"]["collector"].update(replicas=0),
        "nodes.collector.replicas",
    ),
    "no range of replicas": (
        lambda t: t["nodes"]["collector"].update(replicas="2-16"),
        "nodes.collector.replicas",
    ),
    "a wrong place": (lambda t: t.update(placements={"p": {"a": "b c"}}), "placements.p.a"),
    "a negative need": (
        lambda t: t.update(placements={"p": {"a": {"cores": -1}}}),
        "placements.p.a",
    ),
    "a mistyped need": (
        lambda t: t.update(placements={"p": {"a": {"gpu": 1}}}),
        "placements.p.a",
    ),
    "wrong replicas": (
        lambda t: t.update(placements={"p": {"a[x]": "process"}}),
        "placements.p",
    ),
    "no threads": (
        lambda t: t["nodes"]["collector"].update(torch_threads=0),
        "nodes.collector.torch_threads",
    ),
    "a mistyped failure": (
        lambda t: t["nodes"]["collector"].update(on_failure="retry"),
        "nodes.collector.on_failure",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_typing_mistake_is_refused_at_its_location(name: str) -> None:
    change, place = WRONG[name]
    assert place in errors(changed(change))


@pytest.mark.parametrize(
    ("key", "least", "most"), [("torch_threads", 1, 1024), ("seed", 0, 2**63 - 1)]
)
def test_numbers_have_the_range_that_the_reader_accepts(key: str, least: int, most: int) -> None:
    for value, sound in ((least - 1, False), (least, True), (most, True), (most + 1, False)):
        tree = changed(lambda tree, value=value: tree.update({key: value}))
        assert (errors(tree) == []) is sound
        reported = [str(p) for p in load_data(tree).problems if str(p).find(f"{key} is") >= 0]
        assert (reported == []) is sound
