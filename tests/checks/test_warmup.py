"""The phases of the warm-up: their nodes, their rounds and their settings."""

from __future__ import annotations

import pytest

RL = """
    policy: toys:Greedy
    nodes:
      envs: toys:Envs
      collector: toys:Collector
      reward: toys:Pipe
      buffer: toys:Buffer
      learner: toys:Learner
      evaluator: toys:Evaluator
    edges:
      - collector <-> envs
      - collector -> reward -> buffer -> learner
      - learner.priorities -> buffer.priorities
      - learner -> collector
      - learner -> evaluator: {every: 2}
    warmup:
    """


def phases(found):
    assert [str(p) for p in found.problems] == []
    return [(w.schedule.order, w.rounds) for w in found.program.warmup]


def test_a_path_includes_all_nodes_between_its_ends(checked):
    found = checked(RL + "      - {edges: [collector -> buffer], steps: 8}")
    assert phases(found) == [(["collector", "reward", "buffer"], 1)]
    schedule = found.program.warmup[0].schedule
    assert [str(e) for e in schedule.edges] == [
        "collector.data -> reward.data",
        "reward.out -> buffer.data",
    ]
    assert schedule.active_outputs("buffer") == frozenset()


@pytest.mark.parametrize(("steps", "rounds"), [(0, 0), (1, 1), (8, 1), (9, 2), (1000, 125)])
def test_steps_are_rounded_up_to_whole_firings(checked, steps, rounds):
    found = checked(RL + f"      - {{edges: [collector -> buffer], steps: {steps}}}")
    assert found.program.warmup[0].rounds == rounds


@pytest.mark.parametrize(("limit", "warns"), [("15", True), ("16", True), ("17", False)])
def test_a_warm_up_that_reaches_the_limit_of_env_steps_is_a_warning(checked, limit, warns):
    found = checked(
        RL + "      - {edges: [collector -> buffer], steps: 9}", limits="{steps: " + limit + "}"
    )
    assert phases(found) == [(["collector", "reward", "buffer"], 2)]
    expected = (
        f"g.yaml:16:9: warmup: it takes 16 env steps, and limits.steps is {limit}; so the run ends one "
        "round later; raise the limit, or shorten the warm-up"
    )
    assert [str(p) for p in found.warnings] == [expected] * warns


def test_replicas_step_together(checked):
    text = RL + "      - {edges: [collector -> buffer], steps: 32}"
    assert phases(checked(text, collector__replicas="4"))[0][1] == 1


def test_phases_follow_one_another_and_may_count_rounds(checked):
    found = checked(
        RL
        + """
      - {edges: [collector -> buffer], rounds: 3, set: {collector.policy: toys:Random}}
      - {edges: [collector -> learner], rounds: 2}
    """
    )
    assert phases(found) == [
        (["collector", "reward", "buffer"], 3),
        (["collector", "reward", "buffer", "learner"], 2),
    ]
    first, second = found.graph.phases
    assert first.settings["collector"]["policy"].type == "toys:Random"
    assert second.settings == {}


def test_several_ends_and_chains_are_one_phase(write, checked):
    text = """
        nodes: {a: 'toys:Source', b: 'toys:Source', p: 'toys:Pipe', t: 'toys:Sink', u: 'toys:Sink'}
        edges: ["a, b -> p", "p -> t, u"]
        warmup:
          - {edges: ["a, b -> p -> t"], rounds: 1}
        """
    assert phases(checked(text)) == [(["a", "b", "p", "t"], 1)]


def test_an_auto_rate_is_the_same_in_a_phase_as_in_rounds(checked):
    found = checked("""
        nodes: {s: 'toys:Source', p: {type: 'toys:Pipe', takes: 3, gives: 2}, a: 'toys:AutoSink'}
        edges: [s -> p -> a]
        warmup: [{edges: [s -> p], rounds: 1}, {edges: [s -> a], rounds: 1}]
        """)
    assert phases(found) == [(["s", "p"], 1), (["s", "p", "a"], 1)]
    assert found.program.warmup[1].schedule.rates == found.program.round.rates


def test_a_part_graph_on_a_path_is_all_its_nodes(write, checked):
    write(
        "ports: {data: x.data, out: y.out}\nnodes: {x: 'toys:Pipe', y: 'toys:Pipe'}\n"
        "edges: [x -> y]\n",
        "part.yaml",
    )
    found = checked("""
        nodes: {s: 'toys:Source', p: part.yaml, t: 'toys:Sink'}
        edges: [s -> p -> t]
        warmup: [{edges: [s -> p], rounds: 1}]
        """)
    assert phases(found) == [(["s", "p/x", "p/y"], 1)]


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("3", "warmup: expected a phase; {edges: [collector -> buffer], steps: 1000}"),
        ("{edges: [collector -> buffer]}", "warmup: a phase has one length; give either 'steps' or "
         "'rounds'"),
        ("{edges: [collector -> buffer], steps: 1, rounds: 1}", "warmup: a phase has one length; "
         "give either 'steps' or 'rounds'"),
        ("{edges: [collector -> buffer], stes: 1, rounds: 1}", "warmup: unknown key 'stes'; did "
         "you mean 'steps'?"),
        ("{edges: [collector -> buffer], rounds: -1}", "warmup.rounds is -1; expected a whole "
         "number, 0 or more"),
        ("{rounds: 1}", "warmup: a phase lists its active edges; edges: [collector -> buffer]"),
        ("{edges: [collector], rounds: 1}", "warmup: 'collector' is not an edge; write 'a -> b'"),
        ("{edges: [colector -> buffer], rounds: 1}", "warmup: unknown node 'colector'; did you "
         "mean 'collector'?"),
        ("{edges: [collector.data -> buffer], rounds: 1}", "warmup: unknown node "
         "'collector.data'; name the node: 'collector'"),
        ("{edges: [buffer -> collector], rounds: 1}", "warmup: no stream leads from 'buffer' to "
         "'collector'; list edges of the graph"),
        ("{edges: [collector -> evaluator], rounds: 1}", "warmup: no stream leads from "
         "'collector' to 'evaluator'; list edges of the graph"),
        ("{edges: [reward -> buffer], rounds: 1}", "warmup: 'reward' would fire without its input "
         "'data'; add 'collector -> reward' to the phase's edges"),
        ("{edges: [collector -> buffer], rounds: 1, set: 3}", "warmup.set: expected a mapping; "
         "set: {collector.policy: random}"),
        ("{edges: [collector -> buffer], rounds: 1, set: {colector.policy: x}}", "warmup: unknown "
         "node 'colector'; did you mean 'collector'?"),
        ("{edges: [collector -> buffer], rounds: 1, set: {collector: x}}", "warmup.set: "
         "'collector' names no parameter; write 'collector.PARAMETER'"),
        ("{edges: [collector -> buffer], rounds: 1, set: {collector.polcy: x}}", "warmup: "
         "'collector' has no parameter 'polcy'; did you mean 'policy'?"),
        ("{edges: [collector -> buffer], rounds: 1, set: {collector.n_sample: 3}}", "warmup: a "
         "phase cannot set 'collector.n_sample'; it may set: policy"),
        ("{edges: [collector -> buffer], rounds: 1, set: {collector.policy: 'toys:NetModel'}}",
         "warmup: collector.policy: 'toys:NetModel' is a model type; expected a policy"),
    ],
)  # fmt: skip
def test_a_wrong_phase_is_reported(problems, phase, expected):
    reported = problems(RL + f"      - {phase}")
    assert any(p.startswith("g.yaml:16:") and p.endswith(f": {expected}") for p in reported), (
        reported
    )


def test_the_length_of_a_phase_without_env_steps_is_given_in_rounds(problems):
    assert problems("""
        nodes: {s: 'toys:Source', t: 'toys:Sink'}
        edges: [s -> t]
        warmup: [{edges: [s -> t], steps: 5}]
        """) == [
        "g.yaml:3:10: warmup: no node of this phase makes a known number of env steps; give its "
        "length as 'rounds'"
    ]


def test_a_fan_in_takes_from_those_of_its_sources_that_fire(checked):
    found = checked("""
        nodes: {a: 'toys:Source', b: 'toys:Source', t: 'toys:Sink'}
        edges: ["a, b -> t"]
        warmup: [{edges: [a -> t], rounds: 5}]
        """)
    assert phases(found) == [(["a", "t"], 5)]


DEMOS = """
    extends: cartpole_dqn_demos
    warmup:
    """


def test_a_buffer_may_be_without_a_collector_if_it_has_demonstrations(checked):
    found = checked(DEMOS + "      - {edges: [demos -> buffer -> learner], rounds: 3}")
    assert phases(found) == [(["demos", "buffer", "learner"], 3)]


def test_a_buffer_that_nothing_feeds_cannot_fire(problems):
    assert [
        p.partition(": ")[2]
        for p in problems(DEMOS + "      - {edges: [buffer -> learner], rounds: 3}")
    ] == [
        "warmup: 'buffer' would fire without its input 'data'; add 'collector -> buffer' to the "
        "phase's edges"
    ]


def test_a_setting_of_a_node_that_does_not_fire_is_reported(problems):
    reported = problems("""
        policy: toys:Greedy
        nodes:
          envs: toys:Envs
          collector: toys:Collector
          learner: toys:Learner
          s: toys:Source
          t: toys:Sink
        edges: [collector <-> envs, collector -> learner -> collector, s -> t]
        warmup: [{edges: [s -> t], rounds: 1, set: {collector.policy: 'toys:Random'}}]
        """)
    assert reported == [
        "g.yaml:9:10: warmup: 'collector' does not fire in this phase; leave the setting "
        "'collector.policy' out"
    ]


def test_a_setting_that_removes_a_column_is_reported(problems):
    text = RL.replace("policy: toys:Greedy", "policy: {type: 'toys:Greedy', gives: [logp]}")
    phase = "{edges: [collector -> buffer], rounds: 1, set: {collector.policy: 'toys:Random'}}"
    assert problems(text + f"      - {phase}") == [
        "g.yaml:16:9: warmup: with policy set, collector.data does not give the column logp "
        "(float32); use a setting that gives the same columns, or remove the warm-up: `warmup: null`"
    ]


def test_a_setting_that_does_not_fit_to_an_extending_file_is_reported_there(write, problems):
    phase = "{edges: [collector -> buffer], rounds: 1, set: {collector.policy: 'toys:Random'}}"
    write(RL + f"      - {phase}", "base.yaml")
    assert problems("""
        extends: base.yaml
        nodes: {envs: {count: 3}}
        policy: {type: 'toys:Greedy', gives: [logp]}
        """) == [
        "g.yaml:3:1: warm-up at base.yaml:16:9: with policy set, collector.data does not give the "
        "column logp (float32); use a setting that gives the same columns, or remove the warm-up: "
        "`warmup: null`"
    ]


def test_a_wrong_section_is_reported(problems):
    assert problems(RL + "      {a: 1}") == [
        "g.yaml:16:7: warmup: expected a list of phases; warmup: [{edges: [a -> b], steps: 1000}]"
    ]
