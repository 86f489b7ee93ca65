"""The difference of two graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flowrl.graph.diff import Change, changes, compute_alike, diff_graphs, unread_note
from flowrl.graph.loading import load_data, load_graph
from flowrl.graph.model import Graph
from tests.render.graphs_to_show import HERE, checked, tree


def graph(name: str = "small", **more: Any) -> Graph:
    """A sound graph."""
    return checked(name, **more).require_sound().graph


def nodes(**more: Any) -> dict[str, Any]:
    """The nodes, with some parameters changed or nodes added."""
    found = tree()["nodes"]
    for name, given in more.items():
        found[name] = {**found.get(name, {}), **given}
    return found


def test_a_graph_does_not_differ_from_itself() -> None:
    assert changes(graph(), graph("other", about="Something else.")) == []
    assert diff_graphs(graph(), graph("other")) == "no difference"


def test_a_parameter_is_reported_with_its_old_and_new_value() -> None:
    found = changes(graph(), graph(nodes=nodes(mixer={"times": 3})))
    assert found == [Change("node", "mixer", "changed", values=(("times", 2, 3),))]
    assert str(found[0]) == "~ node mixer: times 2 -> 3"


def test_several_parameters_of_a_node_are_a_list() -> None:
    [found] = changes(graph(), graph(nodes=nodes(mixer={"times": 3, "how": "other"})))
    assert str(found) == "~ node mixer\n    times 2 -> 3\n    how plain -> other"


def test_values_of_different_types_differ() -> None:
    a, b = graph(), graph()
    b.nodes["mixer"].config = b.nodes["mixer"].config.model_copy(update={"times": 2.0})
    assert diff_graphs(a, b).splitlines()[1:] == ["~ node mixer: times 2 -> 2.0"]


def test_replicas_and_seed_are_part_of_a_graph() -> None:
    text = diff_graphs(graph(), graph(seed=3, nodes=nodes(source={"replicas": 2})))
    assert text == (
        "small -> small: 1 setting changed, 2 nodes changed\n"
        "~ graph: seed 0 -> 3\n"
        "~ node world, source: replicas 1 -> 2"
    )


def test_the_same_change_of_several_nodes_is_reported_once() -> None:
    a = graph(nodes=nodes(source={"rows": 8}))
    b = graph(nodes=nodes(source={"rows": 9}, mixer={"how": "x"}))
    assert diff_graphs(a, b).splitlines()[1:] == [
        "~ node source: rows 8 -> 9",
        "~ node mixer: how plain -> x",
    ]


def test_another_type_is_reported_without_its_parameters() -> None:
    a, b = graph(), graph(nodes=nodes(mixer={"times": 3}))
    b.nodes["mixer"].type = "other"
    [found] = changes(a, b)
    assert str(found) == f"~ node mixer: type {HERE}Mixer -> other"


def test_an_edge_with_another_source_is_removed_and_added() -> None:
    edges = tree()["edges"]
    edges[1] = "source -> mixer -> more -> sink"
    a, b = graph(), graph("with_more", edges=edges, nodes=nodes(more={"type": f"{HERE}Mixer"}))
    assert diff_graphs(a, b) == (
        "small -> with_more: 1 node added, 1 edge removed, 2 edges added\n"
        f"+ node more: {HERE}Mixer\n"
        "- edge mixer.out -> sink.data\n"
        "+ edge mixer.out -> more.data\n"
        "+ edge more.out -> sink.data"
    )
    back = diff_graphs(b, a).splitlines()
    assert back[0] == "with_more -> small: 1 node removed, 2 edges removed, 1 edge added"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"lag": 1}, "~ edge sink.weights -> source.weights: lag 0 -> 1"),
        ({"latest": True}, "~ edge sink.weights -> source.weights: latest false -> true"),
        ({"max_staleness": 3}, "~ edge sink.weights -> source.weights: max_staleness null -> 3"),
    ],
)
def test_an_edges_options_are_reported(options: dict[str, Any], expected: str) -> None:
    edges = tree()["edges"]
    edges[2] = {"sink -> source": options}
    assert diff_graphs(graph(), graph(edges=edges)).splitlines()[1:] == [expected]


def test_an_added_edge_shows_its_options() -> None:
    edges = [*tree()["edges"], {"sink.marks -> mixer.marks": {"capacity": 4}}]
    assert diff_graphs(graph(), graph(edges=edges)).splitlines()[1:] == [
        "+ edge sink.marks -> mixer.marks: {capacity: 4}"
    ]


def test_the_warm_up_is_compared_phase_by_phase() -> None:
    longer = graph(warmup=[{"edges": ["source -> mixer"], "steps": 40}])
    assert str(changes(graph(), longer)[0]) == "~ warmup source -> mixer: steps 20 -> 40"
    none = graph(warmup=[])
    assert str(changes(graph(), none)[0]) == "- warmup source -> mixer: {steps: 20}"
    assert str(changes(none, graph())[0]) == "+ warmup source -> mixer: {steps: 20}"


def test_limits_and_placements_are_compared() -> None:
    a = graph(placements={"p": {"sink": "thread"}, "gone": {"sink": "thread"}})
    b = graph(
        placements={"p": {"sink": "process"}, "new": {"mixer": "thread"}},
        limits={"steps": 100},
    )
    assert [str(c) for c in changes(a, b)] == [
        "~ graph: limits.steps null -> 100",
        "~ placement p: sink thread -> process",
        "- placement gone: {sink: thread}",
        "+ placement new: {mixer: thread}",
    ]


def test_what_an_edge_sends_is_not_what_is_computed() -> None:
    def with_options(**options: str) -> Graph:
        changed = graph()
        stream = next(n for n, edge in enumerate(changed.edges) if edge.kind == "stream")
        changed.edges[stream] = replace(changed.edges[stream], **options)  # type: ignore[arg-type]
        return changed

    assert compute_alike(graph(), with_options(compress="lz4"))
    assert not compute_alike(graph(), with_options(dtype="float16"))
    assert not compute_alike(graph(), with_options(compress="lz4", dtype="float16"))


def test_needs_are_compared() -> None:
    a = graph(placements={"p": {"sink": {"gpus": 1}}})
    b = graph(placements={"p": {"sink": {"gpus": 2}, "mixer[0]": "thread"}})
    assert [str(c) for c in changes(a, b)] == [
        "~ placement p\n    sink {gpus: 1} -> {gpus: 2}\n    mixer[0] null -> thread"
    ]


def test_a_reward_model_is_one_node_and_two_edges() -> None:
    a, b = load_graph("cartpole_dqn").graph, load_graph("cartpole_dqn_rnd").graph
    assert diff_graphs(a, b) == (
        "cartpole_dqn -> cartpole_dqn_rnd: 1 node added, 1 edge removed, 2 edges added\n"
        "+ node rnd: rnd\n"
        "- edge collector.data -> buffer.data\n"
        "+ edge collector.data -> rnd.data\n"
        "+ edge rnd.out -> buffer.data"
    )


def test_what_a_node_declares_not_to_read_is_no_difference() -> None:
    a, b = load_graph("cartpole_dqn").graph, load_data(FASTER).graph
    found = {change.name: [key for key, _, _ in change.values] for change in changes(a, b)}
    assert found == {name: ["policy.lr"] for name in ("collector", "learner", "evaluator")}


def test_a_difference_that_may_not_be_read_has_a_note() -> None:
    a, b = load_graph("cartpole_dqn").graph, load_data(FASTER).graph
    assert unread_note(a, b) == (
        "diff makes no envs: what is shown of collector, evaluator may include settings of a policy that are not read "
        "where it acts"
    )
    of_learner = load_data({**FASTER, "policy": {}, "nodes": {"learner": {"policy": {"lr": 0.5}}}})
    assert changes(a, of_learner.graph)
    assert unread_note(a, of_learner.graph) == ""


FASTER = {"extends": "cartpole_dqn", "policy": {"lr": 0.5}}


def trained(policy: dict[str, Any]) -> Graph:
    """Two nodes that share a policy."""
    loaded = load_data(
        {
            "env": {"id": "CartPole-v1"},
            "policy": policy,
            "nodes": {"learner": "learner", "evaluator": "evaluator"},
            "edges": [{"learner -> evaluator": {"every": 9}}],
        }
    )
    assert loaded.problems == []
    return loaded.graph


def test_of_a_part_of_another_type_what_both_types_have_is_compared() -> None:
    reported = changes(
        trained({"type": "dqn", "lr": 0.5, "gamma": 0.9}), trained({"type": "c51", "lr": 0.25})
    )
    values = (
        ("policy.type", "dqn", "c51"),
        ("policy.gamma", 0.9, 0.99),
        ("policy.dueling", True, False),
        ("policy.lr", 0.5, 0.25),
        ("policy.double", True, False),
    )
    assert [c.values for c in reported] == [values, values]


def test_a_change_in_a_shared_section_is_reported_once() -> None:
    a, b = trained({"type": "dqn", "lr": 0.001}), trained({"type": "dqn", "lr": 0.1})
    assert diff_graphs(a, b).splitlines() == [
        "graph -> graph: 2 nodes changed",
        "~ node learner, evaluator: policy.lr 0.001 -> 0.1",
    ]


def test_lists_are_compared_as_a_whole() -> None:
    a, b = (trained({"type": "dqn", "model": {"hidden": n}}) for n in ([8, 8], [8]))
    line = diff_graphs(a, b).splitlines()[1]
    assert line == "~ node learner, evaluator: policy.model.hidden [8, 8] -> [8]"
