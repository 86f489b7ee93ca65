"""Rules for states, paces, replicas, services and failures."""

from __future__ import annotations

import pytest

from flowrl.core.node import Node
from flowrl.core.ports import AUTO, In, Out, Service

RL = """
    policy: toys:Greedy
    nodes:
      envs: {type: toys:Envs, replicas: 1}
      collector: {type: toys:Collector, replicas: 1}
      learner: {type: toys:Learner}
      evaluator: toys:Evaluator
      tester: toys:Evaluator
    edges:
      - collector <-> envs
      - collector -> learner
      - learner -> collector: {lag: 0}
    """


def rl(*edges, **nodes):
    """The graph with these edges, and other keys for some nodes."""
    text = RL
    for name, keys in nodes.items():
        text = text.replace(f"{name}: {{", f"{name}: {{{keys}, ").replace("}, }", "}")
    return text + "".join(f"  - {edge}\n    " for edge in edges)


# states


def test_a_node_that_only_state_drives_is_paced(checked):
    found = checked(rl("learner -> evaluator: {every: 5}", "evaluator.best -> tester: {every: 2}"))
    assert found.problems == []
    assert [(str(p.source), p.every, p.schedule.order) for p in found.program.paced] == [
        ("evaluator.best", 2, ["tester"]),
        ("learner.weights", 5, ["evaluator"]),
    ]
    assert found.program.round.order == ["collector", "learner"]


def test_a_node_that_only_state_drives_needs_a_pace(problems):
    assert problems(rl("learner -> evaluator", "learner -> tester: {latest: true}")) == [
        "g.yaml:12:5: learner.weights -> evaluator.weights: nothing but this state drives "
        "evaluator, so it needs a pace; write 'learner -> evaluator.weights: {every: 100}'",
        "g.yaml:13:5: learner.weights -> tester.weights: nothing but this state drives tester, so "
        "it needs a pace; write 'learner -> tester.weights: {every: 100}'",
    ]


def test_a_node_that_streams_drive_cannot_be_paced(problems):
    text = rl("learner -> evaluator: {every: 1}", "learner -> tester: {every: 1}")
    assert problems(text.replace("{lag: 0}", "{every: 3}")) == [
        "g.yaml:11:5: learner.weights -> collector.weights: 'every' is for nodes that nothing but "
        "state drives, and streams or links join collector to learner; use 'lag' here"
    ]


def test_consumers_of_a_paced_node_are_paced_with_it(checked):
    found = checked("""
        policy: toys:Greedy
        nodes:
          source: toys:Source
          learner: toys:Learner
          evaluator: toys:Evaluator
          sink: toys:Sink
        edges:
          - source -> learner
          - learner -> evaluator: {every: 5}
          - evaluator.scores -> sink
        """)
    assert [str(p) for p in found.problems if "column" not in p.what] == []
    assert found.program.paced[0].schedule.order == ["evaluator", "sink"]
    assert found.program.schedule_of("sink") is found.program.paced[0].schedule


@pytest.mark.parametrize("option", ["lag: 1", "latest: true"])
def test_a_pace_excludes_lag_and_latest(problems, option):
    name = option.partition(":")[0]
    text = rl("learner -> tester: {every: 1}", f"learner -> evaluator: {{every: 2, {option}}}")
    assert problems(text)[0] == (
        f"g.yaml:13:5: learner.weights -> evaluator.weights: '{name}' and 'every' exclude each "
        "other; leave one out"
    )


def test_two_paces_for_one_node_are_reported(problems):
    reported = problems("""
        policy: toys:Greedy
        nodes: {s: 'toys:Source', l: 'toys:Learner', e: 'toys:Evaluator', f: 'toys:Evaluator',
                t: 'toys:Sink'}
        edges:
          - s -> l
          - l -> e: {every: 2}
          - l -> f: {every: 3}
          - {from: [e.scores, f.scores], to: t, merge: any}
        """)
    assert (
        "g.yaml:7:5: l.weights -> f.weights: another pace drives f already (l.weights -> "
        "e.weights, every 2); leave 'every' out here" in reported
    )


def test_nodes_that_pace_each_other_are_reported(problems):
    reported = problems(
        rl("evaluator.best -> tester: {every: 2}", "tester.best -> evaluator: {every: 2}")
    )
    assert reported[0].endswith(
        "the nodes pace each other in a cycle, and nothing else drives them; let one of them "
        "follow a learner"
    )


def test_a_state_edge_is_part_of_no_cycle(checked):
    found = checked(rl("learner -> evaluator: {every: 1}", "learner -> tester: {every: 1}"))
    assert found.problems == []
    assert found.program.round.firings == {"collector": 1, "learner": 1}


# replicas


def test_a_linked_group_has_one_number_of_replicas(checked, problems):
    paces = ("learner -> evaluator: {every: 1}", "learner -> tester: {every: 1}")
    text = rl(*paces).replace("toys:Envs, replicas: 1", "toys:Envs, replicas: 3")
    assert {n: s.replicas for n, s in checked(text).graph.nodes.items() if s.replicas > 1} == {
        "envs": 3,
        "collector": 3,
    }
    text = text.replace("toys:Collector, replicas: 1", "toys:Collector, replicas: 2")
    assert problems(text)[0] == (
        "g.yaml:3:3: linked nodes have different replicas (collector: 2, envs: 3); give the "
        "number to one of them"
    )


@pytest.mark.parametrize("replicas", ["0", "true", "1.5", "x", "100_000"])
def test_a_wrong_number_of_replicas_is_reported(problems, replicas):
    (reported,) = problems(f"nodes: {{s: {{type: 'toys:watch', replicas: {replicas}}}}}")[:1]
    assert "nodes.s.replicas is " in reported
    assert reported.endswith("expected a whole number from 1 to 10000")


def test_replicas_of_a_learner_that_forms_no_group_are_refused(problems):
    assert problems(rl(learner="replicas: 2"))[0] == (
        "g.yaml:5:23: nodes.learner: replicas of Learner would each learn weights of their own; leave replicas out, "
        "or take a type whose replicas learn as a group, such as `learner`"
    )


# failures


def test_a_learner_that_fails_stops_the_run(problems):
    assert problems(rl(learner="on_failure: restart"))[0] == (
        "g.yaml:5:13: nodes.learner: a learner's failure stops the run; leave on_failure out"
    )


def test_a_service_fails_with_its_client(problems):
    assert problems(rl(envs="on_failure: restart"))[0] == (
        "g.yaml:3:10: nodes.envs: a service fails within the firing of its client; give "
        "on_failure to the client"
    )


def test_torch_threads_of_a_service_are_refused(problems):
    assert problems(rl(envs="torch_threads: 2"))[0] == (
        "g.yaml:3:10: nodes.envs: a service computes within the firing of its client; give "
        "torch_threads to the client"
    )


def test_torch_threads_have_a_range(problems):
    found = problems(rl(learner="torch_threads: 0"))[0]
    assert "nodes.learner.torch_threads is 0; expected a whole number from 1 to 1024" in found


def test_a_failed_firing_can_be_ignored_only_if_no_node_waits_for_it(problems, checked):
    text = (
        "nodes: {{s: {{type: 'toys:Source', {s}}}, t: {{type: 'toys:Sink', {t}}}}}\nedges: [s -> t]"
    )
    assert problems(text.format(s="on_failure: ignore", t="rate: 1")) == [
        "g.yaml:1:9: nodes.s: on_failure is ignore, and other nodes wait for its output 'out'; "
        "use restart"
    ]
    found = checked(text.format(s="rate: 1", t="on_failure: ignore"))
    assert found.problems == []
    assert found.reasons == ["t: on_failure ignore"]


def test_an_unknown_failure_policy_is_reported(problems):
    assert problems("nodes: {s: {type: 'toys:watch', on_failure: retry}}")[0] == (
        "g.yaml:1:45: nodes.s.on_failure is 'retry'; expected stop, restart, ignore"
    )


# determinism


def test_a_graph_is_deterministic_by_default(checked):
    found = checked("nodes: {s: 'toys:Source', t: 'toys:Sink'}\nedges: [s -> t]")
    assert found.deterministic
    assert found.reasons == []


def test_every_source_of_nondeterminism_is_a_reason(checked):
    text = rl("learner -> evaluator: {every: 1}", "learner -> tester: {every: 1}")
    assert checked(text.replace("{lag: 0}", "{latest: true}")).reasons == [
        "learner.weights -> collector.weights: latest (the version depends on speed)"
    ]
    text = """
        nodes: {s: 'toys:NondeterministicSource', t: 'toys:Sink'}
        edges: [{s -> t: {when_full: drop_oldest, capacity: 1, merge: any}}]
        """
    # Of one source there is only one order.
    assert checked(text).reasons == [
        "s.out -> t.data: drop_oldest (what is dropped depends on speed)",
        "s: reads the clock",
    ]


# node types


def test_a_describe_that_raises_is_reported_with_its_line(problems):
    (reported,) = problems("nodes: {s: 'toys:RaisingDescribe', t: 'toys:Sink'}\nedges: [s -> t]")
    assert reported.startswith(
        "g.yaml:1:9: nodes.s: describe raised ZeroDivisionError: no reason (toys.py:"
    )
    assert reported.endswith("); fix the node type 'toys:RaisingDescribe'")


def test_a_service_cannot_depend_on_its_clients_outputs(problems, write):
    write(
        """
        from toys import *

        class Fed(Node):
            data = In("samples")
            serve = Service("envs", ("step",))

            def fire(self, data):
                return None
        """,
        "fed_service.py",
    )
    reported = problems("""
        policy: toys:Greedy
        nodes:
          fed: fed_service:Fed
          collector: toys:Collector
          learner: toys:Learner
        edges: [collector <-> fed, "collector -> learner, fed", learner -> collector]
        """)
    assert reported == [
        "g.yaml:6:9: the streams and links form a cycle: collector -> fed -> collector; a "
        "service cannot depend on what its client gives; remove one of the edges"
    ]


def make(name, **body):
    return type(name, (Node,), body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"state": In("x")}, "T: a port cannot be named 'state'; every node has it"),
        ({"ctx": In("x")}, "T: a port cannot be named 'ctx'; every node has it"),
        (
            {"data": In("x", rate="tims")},
            "T.data: the rate 'tims' is neither a number from 1, nor AUTO, nor a parameter of "
            "type int",
        ),
        (
            {"fires_on": "ratio"},
            "T: fires_on is 'ratio', which is neither all, nor any, nor a parameter",
        ),
        (
            {"data": Out("x", rate=0)},
            "T.data: the rate 0 is neither a number from 1, nor AUTO, nor a parameter of type int",
        ),
        (
            {"data": In("x"), "fire": lambda self, other: None},
            "T.fire takes (other); its input ports are (data), and both must agree in name and "
            "order",
        ),
    ],
)
def test_a_wrong_node_type_is_reported_where_it_is_defined(body, message):
    with pytest.raises(TypeError) as caught:
        make("T", **body)
    assert str(caught.value) == message


def test_a_valid_node_type_is_accepted():
    made = make("T", data=In("x", rate=AUTO), serve=Service("s", ()), fire=lambda self, data: None)
    assert list(made.ports) == ["data", "serve"]


def test_a_parameter_and_a_port_cannot_share_a_name():
    from tests.toys.toys import Source

    with pytest.raises(TypeError, match="T: 'rate' is a port and a parameter"):
        type("T", (Source,), {"rate": Out("x")})
