"""`--set`: one value changed from the shell, wherever it is."""

from __future__ import annotations

import pytest

RL = """
    seed: 1
    limits: {steps: 10}
    params: {batch: 4}
    policy: {type: 'toys:Greedy'}
    nodes:
      envs: toys:Envs
      collector: toys:Collector
      buffer: {type: 'toys:Buffer', batch_size: '${batch}'}
      learner: toys:Learner
    edges:
      - collector <-> envs
      - collector -> buffer -> learner
      - learner -> collector: {lag: 1}
    placements: {parallel: {collector: process}}
    """


@pytest.fixture
def with_sets(checked):
    """The graph with these values, which leave it sound."""

    def with_sets(**sets):
        found = checked(RL, **sets)
        assert [str(p) for p in found.problems] == []
        return found.graph

    return with_sets


def test_a_parameter_of_a_node(with_sets):
    assert with_sets(buffer__size="50").nodes["buffer"].config.size == 50


def test_a_node_that_is_only_a_type_takes_parameters(with_sets):
    assert with_sets(envs__count="3").nodes["envs"].config.count == 3


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("sets", "refused"),
    [
        ({"learner.lr": "1", "learner.policy.lr": "2"}, "learner.lr=1"),
        ({"learner.policy": "{type: 'toys:Greedy', lr: 1}", "learner.lr": "2"}, "learner.lr=2"),
        (
            {"learner.policy": "toys:Greedy", "learner.policy.type": "toys:Greedy"},
            "learner.policy=toys:Greedy",
        ),
    ],
)
def test_a_value_that_is_set_by_two_keys_is_refused(problems, order, sets, refused):
    [other] = {f"{key}={value}" for key, value in sets.items()} - {refused}
    [problem] = problems(
        RL, **{key.replace(".", "__"): value for key, value in [*sets.items()][::order]}
    )
    assert problem == (
        f"--set {refused}: '--set {other}' sets this value, too; leave one of them out"
    )


@pytest.mark.parametrize("order", [1, -1])
def test_a_whole_part_is_set_before_its_parameters(with_sets, order):
    sets = {"learner__lr": "3", "learner__policy": "toys:Greedy"}
    graph = with_sets(**dict([*sets.items()][::order]))
    assert graph.nodes["learner"].config.policy.config.lr == 3


@pytest.mark.slow
def test_a_key_of_the_engine(with_sets):
    graph = with_sets(collector__replicas="2")
    assert graph.nodes["collector"].replicas == graph.nodes["envs"].replicas == 2


def test_a_parameter_of_a_nodes_part_changes_that_node_only(with_sets):
    graph = with_sets(learner__lr="3e-4")
    assert graph.nodes["learner"].config.policy.config.lr == 3e-4
    assert graph.nodes["collector"].config.policy.config.lr == 0.1


def test_the_path_of_a_part_may_be_written_in_full(with_sets):
    assert with_sets(learner__policy__lr="1").nodes["learner"].config.policy.config.lr == 1


def test_another_type_of_a_section_replaces_its_parameters(checked):
    text = RL.replace("{type: 'toys:Greedy'}", "{type: 'toys:Random', gives: [logp]}")
    found = checked(text, policy__type="toys:Greedy")
    assert [str(p) for p in found.problems] == []
    assert found.graph.nodes["collector"].config.policy.config.gives == []


def test_what_another_type_of_a_section_leaves_out_is_named(checked):
    text = RL.replace("{type: 'toys:Greedy'}", "{type: 'toys:Greedy', gives: [logp]}")
    found = checked(text, policy__lr="2", policy__type="toys:Random")
    assert [str(warning) for warning in found.warnings] == [
        "--set policy.type=toys:Random: policy: left out gives, which was set for toys:Greedy"
    ]
    [problem] = map(str, found.problems)
    assert problem == "--set policy.lr=2: policy: unknown key 'lr'; known: type"


@pytest.mark.parametrize("order", [("type", "shape"), ("shape", "type")])
def test_another_type_of_a_node_keeps_the_settings_that_it_has_too(checked, order):
    text = RL.replace("envs: toys:Envs", "envs: {type: 'toys:Envs', count: 3}")
    sets = {"type": "toys:StatelessEnvs", "shape": "4"}
    found = checked(text, **{f"envs__{key}": sets[key] for key in order})
    assert [str(p) for p in (*found.problems, *found.warnings)] == []
    envs = found.graph.nodes["envs"]
    assert (envs.type, envs.config.count, envs.config.shape) == ("toys:StatelessEnvs", 3, 4)


def test_settings_that_another_type_of_a_node_does_not_have_are_named(checked):
    text = """
        extends: cartpole_dqn
        nodes: {envs: {type: thread_env_manager, max_retry: 4, pre_reset: true, envs_per_worker: 2}}
        """
    found = checked(text, envs__type="env_manager")
    assert [str(p) for p in found.problems] == []
    assert [str(warning) for warning in found.warnings] == [
        "--set envs.type=env_manager: nodes.envs: left out pre_reset, envs_per_worker, which env_manager does not have"
    ]
    assert found.graph.nodes["envs"].config.max_retry == 4


def test_a_wrong_type_of_a_node_is_the_only_problem(problems):
    [reported] = problems(RL, buffer__type="toys:Buffr")
    assert "'toys:Buffr': the module 'toys' has no 'Buffr'; did you mean 'Buffer'?" in reported


def test_null_removes_a_limit(with_sets):
    assert with_sets(limits__steps="null").limits.steps is None


def test_whole_numbers_may_be_written_with_a_power(with_sets):
    graph = with_sets(limits__steps="1e5", buffer__size="2e2")
    assert (graph.limits.steps, graph.nodes["buffer"].config.size) == (100_000, 200)


def test_a_whole_part_is_replaced(with_sets):
    graph = with_sets(collector__policy="toys:Random")
    assert graph.nodes["collector"].config.policy.type == "toys:Random"


def test_a_shared_section_changes_every_node_that_takes_it(with_sets):
    graph = with_sets(policy__lr="2")
    assert graph.nodes["learner"].config.policy.config.lr == 2
    assert graph.nodes["collector"].config.policy.config.lr == 2


def test_an_option_of_an_edge(with_sets):
    graph = with_sets(collector__weights__lag="0", buffer__data__capacity="5")
    into = {str(edge.to): edge for edge in graph.edges}
    assert into["collector.weights"].lag == 0
    assert into["buffer.data"].capacity == 5


def test_a_parameter_comes_before_a_port_of_its_name(with_sets):
    graph = with_sets(learner__every="5")
    assert graph.nodes["learner"].config.every == 5


def test_seed_limits_placements_params_and_about(with_sets):
    graph = with_sets(
        seed="9",
        limits__time="1m",
        placements__parallel__learner="thread",
        params__batch="2",
        about="'two: words'",
    )
    assert graph.seed == 9
    assert (graph.limits.steps, graph.limits.time_s) == (10, 60)
    assert graph.placements == {"parallel": {"collector": "process", "learner": "thread"}}
    assert graph.nodes["buffer"].config.batch_size == 2
    assert graph.about == "two: words"


@pytest.mark.slow
def test_a_warm_up_can_be_set_and_left_out(with_sets):
    graph = with_sets(warmup="[{edges: [collector -> buffer], steps: 8}]")
    assert graph.phases[0].steps == 8
    assert with_sets(warmup="null").phases == []


def test_values_are_yaml(with_sets):
    graph = with_sets(learner__gives="[a, b]")
    assert graph.nodes["learner"].config.policy.config.gives == ["a", "b"]


def test_a_node_of_a_part_graph_is_set_by_its_full_name(write, checked):
    write(
        """
        params: {rate: 1}
        ports: {out: s.out}
        nodes: {s: {type: 'toys:Source', rate: '${rate}'}}
        """,
        "part.yaml",
    )
    text = "nodes: {p: part.yaml, t: 'toys:Sink'}\nedges: [p -> t]"
    assert checked(text, **{"p__rate": "2"}).graph.nodes["p/s"].config.rate == 2
    assert checked(text, **{"p/s__rate": "3"}).graph.nodes["p/s"].config.rate == 3
    assert checked(text, **{"t__data__capacity": "4"}).graph.edges[0].capacity == 4


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "lerner.lr",
            "1",
            "--set lerner.lr=1: there is no node or section 'lerner'; did you mean 'learner'?",
        ),
        (
            "nodes.learner.lr",
            "1",
            "--set nodes.learner.lr=1: there is no node or section 'nodes'; did you mean 'learner.lr'?",
        ),
        (
            "learner.lrr",
            "1",
            "--set learner.lrr=1: 'learner' has no parameter 'lrr'; did you mean 'lr'?",
        ),
        (
            "learner.zzz",
            "1",
            "--set learner.zzz=1: 'learner' has no parameter 'zzz'; known: data, dtype, every, "
            "gives, lr, needs, on_failure, on_policy, policy, priorities, replicas, shape, …",
        ),
        (
            "learner.lr",
            "-1",
            "--set learner.lr=-1: nodes.learner.policy.lr is -1; expected greater than 0",
        ),
        (
            "learner",
            "1",
            "--set learner=1: 'learner' is a node; set one of its parameters: learner.KEY",
        ),
        (
            "learner.weights.lag",
            "1",
            "--set learner.weights.lag=1: learner.weights is an output; options belong to the "
            "edge's input: NODE.INPUT.OPTION",
        ),
        (
            "collector.weights",
            "1",
            "--set collector.weights=1: collector.weights is an input; set an option of its edge: "
            "collector.weights.OPTION",
        ),
        (
            "collector.weights.lagg",
            "1",
            "--set collector.weights.lagg=1: edges: unknown option 'lagg'; did you mean 'lag'?",
        ),
        (
            "collector.weights.lag",
            "x",
            "--set collector.weights.lag=x: edges: collector.weights: lag is 'x'; expected a "
            "whole number of rounds, 0 to 1,000,000",
        ),
        (
            "buffer.demos.capacity",
            "1",
            "--set buffer.demos.capacity=1: no edge ends in buffer.demos; did you mean "
            "'buffer.data'?",
        ),
        (
            "params.batc",
            "1",
            "--set params.batc=1: params: unknown parameter 'batc'; did you mean 'batch'?",
        ),
        (
            "lr",
            "1",
            "--set lr=1: there is no node or section 'lr'; did you mean 'policy.lr'?",
        ),
        (
            "size",
            "1",
            "--set size=1: there is no node or section 'size'; did you mean 'buffer.size'?",
        ),
        ("edges", "[]", "--set edges=[]: there is no node or section 'edges'; known: "),
        ("limits.step", "1", "--set limits.step=1: limits: unknown key 'step'; did you mean "),
        ("seed.x", "1", "g.yaml:1:7: seed is {'x': 1}; expected a whole"),
        ("seed", "[", "--set seed=[: is not YAML: "),
        ("seed", "!!int 3", "--set seed=!!int 3: has the tag 'tag:yaml.org,2002:int'; graphs are "),
        ("seed", "\udcff", "--set seed=\udcff: is not UTF-8 text (byte 0); save it as UTF-8"),
        ("", "1", "--set =1: there is no node or section ''; known: "),
        (".", "1", "--set .=1: there is no node or section ''; known: "),
    ],
)
def test_a_key_that_names_nothing_is_reported(problems, key, value, message):
    reported = problems(RL, **{key.replace(".", "__"): value})
    assert any(p.startswith(message) for p in reported), reported


@pytest.mark.parametrize("node", ["collector", "learner"])
def test_an_option_of_an_edge_of_a_wrong_node_is_no_problem_of_its_own(problems, node):
    sets = {f"{node}__stesp": "1", "collector__weights__lag": "2"}
    [problem] = problems(RL, **sets)
    assert "stesp" in problem
