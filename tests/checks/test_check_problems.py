"""Each kind of problem of a graph, with its exact message: where, what, and how to fix it."""

from __future__ import annotations

import pytest

from flowrl.checks.check import check
from flowrl.graph.expand import expand
from flowrl.graph.loading import load_data, load_text
from tests.toys.toy_runs import toy_graph

RL = """
    policy: {{type: 'toys:Greedy'{policy}}}
    nodes:
      envs: {{type: 'toys:Envs'{envs}}}
      collector: {{type: 'toys:Collector'{collector}}}
      buffer: {{type: 'toys:Buffer'{buffer}}}
      learner: {{type: 'toys:Learner'{learner}}}
    edges:
      - collector <-> envs
      - collector -> buffer -> learner
      - learner -> collector{weights}
    {more}
"""


def rl(**words: str) -> str:
    """A small graph with some words put in."""
    names = ("policy", "envs", "collector", "buffer", "learner", "weights", "more")
    return RL.format(**{n: words.get(n, "") for n in names})


def test_the_small_graph_is_sound(problems):
    assert problems(rl()) == []


# what is written


def test_an_unknown_key_of_the_graph_is_reported_with_the_nearest_name(problems):
    assert problems("""
        nodes: {s: {type: 'toys:Source', rate: 1}, t: 'toys:Sink'}
        edgs: [s -> t]
        edges: [s -> t]
        """) == ["g.yaml:2:1: unknown key 'edgs'; did you mean 'edges'?"]


def test_the_hint_for_an_unknown_key_lists_the_sections_that_nodes_can_take(problems):
    assert problems("extends: cartpole_dqn\nzzz: 1") == [
        "g.yaml:2:1: unknown key 'zzz'; known: about, edges, env, extends, launch, limits, model, modules, nodes, "
        "params, placements, policy, …"
    ]


def test_an_unknown_parameter_is_reported_with_the_nearest_name(problems):
    assert problems(rl(buffer=", batchsize: 4")) == [
        "g.yaml:5:33: nodes.buffer: unknown key 'batchsize'; did you mean 'batch_size'?"
    ]


def test_a_misspelt_engine_key_is_reported_with_the_nearest_name(problems):
    assert problems(rl(collector=", replcas: 4")) == [
        "g.yaml:4:39: nodes.collector: unknown key 'replcas'; did you mean 'replicas'?"
    ]


def test_the_hint_for_a_parameter_of_a_part_names_the_part(problems):
    assert problems(rl(learner=", gamma: 0.9")) == [
        "g.yaml:6:35: nodes.learner: unknown key 'gamma'; known: every, on_failure, on_policy, "
        "policy, replicas, torch_threads, type; a parameter of the policy goes under 'policy:'"
    ]


def test_an_unknown_parameter_of_a_shared_part_is_reported_once(problems):
    assert problems(rl(policy=", lrr: 1")) == [
        "g.yaml:1:31: policy: unknown key 'lrr'; did you mean 'lr'?"
    ]


def test_an_unknown_node_type_is_reported_with_the_nearest_name(problems):
    assert problems("""
        nodes:
          a: {type: naive_bufer}
        """) == [
        "g.yaml:2:13: nodes.a: unknown node type 'naive_bufer'; did you mean 'naive_buffer'? "
        "(your own: 'package.module:Class')"
    ]


def test_an_unknown_part_type_is_reported_with_the_nearest_name(problems):
    assert problems("""
        nodes:
          a: {type: learner, policy: dqm}
        """)[0] == (
        "g.yaml:2:30: nodes.a.policy: unknown policy type 'dqm'; did you mean 'dqn'? "
        "(your own: 'package.module:Class')"
    )


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("CartPole-v1", "unknown env type 'CartPole-v1'; write `env: {id: CartPole-v1}`"),
        (
            "'no_such:Env-v0'",
            "'no_such:Env-v0': there is no module 'no_such'; install it, or put it into this folder, "
            'or write `env: {id: "no_such:Env-v0"}`',
        ),
        (
            "'gymnasium:Env'",
            "'gymnasium:Env' is not an env type; subclass the library's env class",
        ),
        (
            "gymnasim",
            "unknown env type 'gymnasim'; did you mean 'gymnasium'? (your own: "
            "'package.module:Class')",
        ),
    ],
)
def test_a_word_that_is_no_type_is_shown_as_the_parameter_that_it_is_meant_as(
    problems, written, message
):
    [reported] = problems(f"env: {written}\nnodes: {{envs: env_manager}}\n")
    assert reported == f"g.yaml:1:6: env: {message}"


def test_a_type_in_capitals_is_reported_with_its_name(problems):
    assert (
        "unknown policy type 'PPO'; did you mean 'ppo'?"
        in problems("policy: PPO\nnodes: {learner: learner}\n")[0]
    )


def test_a_module_is_not_looked_for_beside_a_bundled_graph(problems):
    assert problems("extends: cartpole_dqn\nnodes: {clip: 'no_such_module:clip'}\n") == [
        "g.yaml:2:15: nodes.clip: 'no_such_module:clip': there is no module 'no_such_module'; "
        "install it, or put it into this folder"
    ]


def test_a_problem_of_a_shared_env_is_reported_once(problems):
    [reported] = problems("extends: cartpole_dqn\nenv: {id: CartPole-v7}\n")
    assert reported.startswith("g.yaml:2:7: env: cannot make the env 'CartPole-v7': ")


def test_what_does_not_fit_is_reported_in_the_file_that_changed_it(problems):
    """The bundled graph has the policy; whoever changed the env can do something about it."""
    what = "policy: dqn chooses one of n actions; the env takes float32[1]; try ppo, sac or td3"
    assert problems("""
        extends: cartpole_dqn
        nodes: {envs: {count: 4}, learner: {log_every_iters: 10}}
        env: {id: Pendulum-v1}
        """) == [f"g.yaml:3:1: {what}"]
    assert problems("extends: cartpole_dqn", env__id="Pendulum-v1") == [
        f"--set env.id=Pendulum-v1: {what}"
    ]


def test_a_part_of_another_kind_is_reported(problems):
    assert problems("""
        nodes:
          a: {type: 'toys:Learner', policy: 'toys:NetModel'}
        """)[0] == (
        "g.yaml:2:37: nodes.a.policy: 'toys:NetModel' is a model type; expected a policy"
    )


@pytest.mark.parametrize(
    ("type_name", "message"),
    [
        ("toys:Sorce", "'toys:Sorce': the module 'toys' has no 'Sorce'; did you mean 'Source'?"),
        (
            "toys:NOT_A_NODE",
            "'toys:NOT_A_NODE' is not a node type; subclass flowrl.Node, or decorate a function "
            "with @flowrl.as_node",
        ),
        (
            "flowrl.core.batch:Array",
            "'flowrl.core.batch:Array' is not a node type; subclass flowrl.Node, or "
            "decorate a function with @flowrl.as_node",
        ),
        ("toys:WithoutFire", "'toys:WithoutFire' has the port 'data' and never fires; define fire"),
        (
            "no_such_module:Class",
            "'no_such_module:Class': there is no module 'no_such_module'; install it, or put it "
            "into this folder",
        ),
    ],
)
def test_an_import_path_to_something_else_than_a_type_is_reported(problems, type_name, message):
    (reported,) = problems(f"nodes:\n  a: '{type_name}'\n")
    assert reported == f"g.yaml:2:6: nodes.a: {message}"


def test_a_module_that_raises_is_reported_with_its_line(problems, write):
    write("x = 1\nx / 0\n", "raising_module.py")
    assert problems("nodes: {a: 'raising_module:Class'}") == [
        "g.yaml:1:12: nodes.a: 'raising_module:Class' cannot be imported: ZeroDivisionError: "
        "division by zero (raising_module.py:2)"
    ]


def test_a_module_that_imports_a_missing_module_is_reported(problems, write):
    write("import no_such_dependency\n", "needing_module.py")
    assert problems("nodes: {a: 'needing_module:Class'}") == [
        "g.yaml:1:12: nodes.a: 'needing_module:Class' needs the module 'no_such_dependency'; "
        "install it"
    ]


def test_a_hidden_module_beside_the_graph_is_reported(problems, write):
    import json

    write("", "json.py")
    assert problems("nodes: {a: 'json:Class'}") == [
        "g.yaml:1:12: nodes.a: the module 'json' beside the graph is hidden by "
        f"{json.__file__}; rename json"
    ]


def test_an_unknown_node_is_reported_with_the_nearest_name(problems):
    assert problems("""
        nodes: {source: 'toys:Source', sink: 'toys:Sink'}
        edges:
          - sorce -> sink
        """) == ["g.yaml:3:5: edges: unknown node 'sorce'; did you mean 'source'?"]


def test_an_unknown_port_is_reported_with_the_nearest_name(problems):
    assert problems("""
        nodes: {source: 'toys:Source', sink: 'toys:Sink'}
        edges:
          - source.out -> sink.dta
        """) == ["g.yaml:3:5: edges: 'sink' has no port 'dta'; did you mean 'data'?"]


def test_an_unknown_option_is_reported_with_the_nearest_name(problems):
    assert problems(rl(weights=": {lagg: 1}")) == [
        "g.yaml:10:28: edges: unknown option 'lagg'; did you mean 'lag'?"
    ]


def test_an_option_of_another_kind_of_edge_is_reported(problems):
    assert problems(rl(weights=": {capacity: 1}")) == [
        "g.yaml:10:28: edges: 'capacity' is an option of stream edges; collector.weights is a "
        "state; options of a state edge: lag, every, latest, max_staleness, dtype, compress"
    ]


def test_a_link_has_no_options(problems):
    assert problems("""
        nodes: {e: 'toys:Envs', r: 'toys:Relay', s: 'toys:Relay'}
        edges:
          - r <-> e: {lag: 1}
          - s <-> r
        """)[0] == (
        "g.yaml:3:15: edges: 'lag' is an option of state edges; r.inner is a link; "
        "a link has no options"
    )


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("lag: -1", "lag is -1; expected a whole number of rounds, 0 to 1,000,000"),
        ("lag: true", "lag is True; expected a whole number of rounds, 0 to 1,000,000"),
        ("lag: 0.5", "lag is 0.5; expected a whole number of rounds, 0 to 1,000,000"),
        ("latest: 1", "latest is 1; expected true or false"),
        (
            "max_staleness: x",
            "max_staleness is 'x'; expected a whole number of rounds, 0 to 1,000,000",
        ),
    ],
)
def test_a_wrong_value_of_an_option_is_reported(problems, option, message):
    (reported,) = problems(rl(weights=f": {{{option}}}"))
    column = 30 + len(option.partition(":")[0])
    assert reported == f"g.yaml:10:{column}: edges: collector.weights: {message}"


# parameters


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("whole: 0", "whole is 0; expected greater than or equal to 1"),
        ("whole: 11", "whole is 11; expected less than or equal to 10"),
        ("whole: 2.0", "whole is 2.0; expected an integer"),
        ("whole: true", "whole is True; expected an integer"),
        ("whole: '3'", "whole is '3'; expected an integer"),
        ("whole: null", "whole is None; expected an integer"),
        ("whole: 2020-01-01", "whole is '2020-01-01'; expected an integer"),
        ("real: high", "real is 'high'; expected a number"),
        ("real: true", "real is True; expected a number"),
        ("real: .nan", "real is nan; expected a finite number"),
        ("real: .inf", "real is inf; expected a finite number"),
        ("real: 1e999", "real is inf; expected a finite number"),
        ("flag: yes", "flag is 'yes'; expected a boolean"),
        ("flag: 1", "flag is 1; expected a boolean"),
        ("text: 1", "text is 1; expected a string"),
        ("maybe: x", "maybe is 'x'; expected an integer"),
        ("names: a", "names is 'a'; expected a list"),
        ("table: []", "table is []; expected a dictionary"),
    ],
)
def test_a_wrong_value_of_a_parameter_is_reported(problems, written, message):
    (reported,) = problems(f"nodes:\n  a: {{type: 'toys:Typed', must: 1, {written}}}\n")
    column = 37 + len(written.partition(" ")[0])
    assert reported == f"g.yaml:2:{column}: nodes.a.{message}"


def test_a_wrong_value_inside_a_list_is_reported_at_its_location(problems):
    assert problems("""
        nodes:
          a:
            type: toys:Typed
            must: 1
            names: [x, 2]
            table: {k: v}
        """) == [
        "g.yaml:5:16: nodes.a.names.1 is 2; expected a string",
        "g.yaml:6:16: nodes.a.table.k is 'v'; expected an integer",
    ]


def test_a_missing_required_parameter_is_reported(problems):
    assert problems("nodes:\n  a: {type: 'toys:Typed'}\n") == [
        "g.yaml:2:3: nodes.a: missing required parameter 'must'; add 'must: …'"
    ]


def test_a_missing_required_part_is_reported(problems):
    assert (
        "g.yaml:2:3: nodes.l: missing required parameter 'policy'; give it here, or as the "
        "section 'policy' at the top" in problems("nodes:\n  l: {type: 'toys:Learner'}\n")
    )


def test_a_part_that_is_no_mapping_is_reported(problems):
    assert problems("nodes: {l: {type: 'toys:Learner', policy: 3}}")[0] == (
        "g.yaml:1:43: nodes.l.policy is 3; expected the policy's type, or a mapping with it"
    )


def test_a_part_without_type_is_reported(problems):
    reported = problems("nodes: {l: {type: 'toys:Learner', policy: {lr: 3}}}")[0]
    assert reported.startswith("g.yaml:1:43: nodes.l.policy: missing 'type'; known: ")


def test_a_required_part_cannot_be_null(problems):
    assert problems("""
        policy: toys:Greedy
        nodes: {l: {type: 'toys:Learner', policy: null}}
        """)[0].startswith("g.yaml:2:43: nodes.l.policy is None; expected the policy's type")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("low: 5", "low is above high"),
        ("low: 10", "its validator raised ZeroDivisionError: no reason"),
        ("model: [1]", "nodes.p.model is [1]; expected the model's type, or a mapping with it"),
        (
            "model: {type: [1]}",
            "nodes.p.model.type is [1]; known: ",
        ),
    ],
)
def test_parameters_that_do_not_fit_together_are_reported(problems, params, message):
    reported = problems(
        f"nodes:\n  s: toys:Source\n  p: {{type: 'toys:ValidatedNode', {params}}}\nedges: [s -> p]"
    )
    assert message in reported[0]
    assert reported[0].startswith("g.yaml:3:")


def test_a_part_that_may_be_missing_may_be_null(problems):
    for written in (
        "{type: 'toys:ValidatedNode', model: null}",
        "toys:ValidatedNode",
        "{type: 'toys:ValidatedNode', model: 'toys:NetModel'}",
    ):
        assert problems(f"nodes:\n  s: toys:Source\n  p: {written}\nedges: [s -> p]") == []


# ports


def test_an_output_whose_edge_an_extending_file_replaces_is_reported_there(problems):
    assert problems("""
        extends: cartpole_dqn
        nodes:
          envs_b: {type: env_manager}
          collector_b: sample_collector
        edges:
          - collector_b <-> envs_b
          - collector_b -> buffer
          - learner -> collector_b
        """)[0] == (
        "g.yaml:7:5: nodes.collector: the output 'data' is not connected, as this edge replaces "
        "'collector.data -> buffer.data'; write 'collector.data, collector_b.data -> buffer.data' to keep both, "
        "or remove collector"
    )


def test_a_missing_required_input_is_reported_with_outputs_that_fit(problems):
    assert problems("""
        nodes:
          s: toys:Source
          t: {type: toys:Pipe}
          u: toys:Sink
        edges: [t -> u]
        """) == [
        "g.yaml:2:3: nodes.s: the output 'out' (samples) is not connected; add 's.out -> t.data'",
        "g.yaml:3:3: nodes.t: the input 'data' (samples) is not connected; add 's.out -> t.data'",
    ]


def test_a_missing_link_and_state_are_reported(problems):
    assert problems("""
        policy: toys:Greedy
        nodes:
          c: toys:Collector
          t: toys:Sink
        edges: [c -> t]
        """) == [
        "g.yaml:3:3: nodes.c: the link 'envs' (envs) is not connected; no node of the graph gives "
        "'envs'",
        "g.yaml:3:3: nodes.c: the state input 'weights' (weights) is not connected; no node of "
        "the graph gives 'weights'",
    ]


def test_a_port_that_is_not_connected_either_is_proposed_first(problems):
    """An edge into a connected link would take the place of another one."""
    assert problems("""
        extends: cartpole_dqn
        nodes: {eval_envs: {type: env_manager}}
        """) == [
        "g.yaml:2:9: nodes.eval_envs: the service 'serve' (env_manager) is not connected; add "
        "'eval_envs.serve <-> evaluator.envs'"
    ]


def test_a_port_among_the_parameters_is_reported_as_one(problems):
    assert problems("""
        extends: cartpole_dqn
        nodes: {evaluator: {envs: 5}, buffer: {data: collector}, learner: {weights: null}}
        """) == [
        "g.yaml:2:40: nodes.buffer: 'data' is a port, not a parameter; connect it under `edges`: "
        "'NODE -> buffer.data'",
        "g.yaml:2:68: nodes.learner: 'weights' is a port, not a parameter; connect it under `edges`: "
        "'learner.weights -> NODE'",
        "g.yaml:2:21: nodes.evaluator: 'envs' is a port, not a parameter; connect it under `edges`: "
        "'evaluator.envs <-> NODE'",
    ]


def test_an_optional_link_need_not_be_named(checked):
    found = checked("""
        extends: cartpole_dqn
        nodes: {eval_envs: {type: env_manager}}
        edges: [evaluator <-> eval_envs]
        """)
    assert "eval_envs.serve <-> evaluator.envs" in map(str, found.graph.edges)


def test_a_parameter_that_a_link_takes_the_place_of_is_reported(problems):
    text = """
        extends: cartpole_dqn
        nodes:
          eval_envs: {type: env_manager, count: 4}
          evaluator: {env: {id: Acrobot-v1}, env_count: 3}
        edges: [evaluator <-> eval_envs]
        """
    because = "has no effect, because of the link eval_envs.serve <-> evaluator.envs"
    assert problems(text) == [
        f"g.yaml:4:15: nodes.evaluator: 'env' {because}; give 'env' to eval_envs, or remove the link",
        f"g.yaml:4:38: nodes.evaluator: 'env_count' {because}; leave it out, or remove the link",
    ]


def test_a_parameter_that_depends_on_one_that_is_off_is_reported(problems):
    text = """
        extends: pendulum_td3
        policy: {smoothing: 0, smoothing_limit: 0.3}
        """
    hint = "leave it out, or give 'smoothing' as well"
    assert problems(text) == [
        f"g.yaml:2:24: policy: 'smoothing_limit' has no effect without 'smoothing'; {hint}"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "nodes: {envs: {retry_waiting_time_s: 3}}",
            "38: nodes.envs: `retry_waiting_time_s` has no effect, because a failed env is not restarted; give "
            "`max_retry`, or leave it out",
        ),
        (
            "env: {wrappers: [{type: reward_clip, high: 3, low: 5}]}",
            "52: env.wrappers[0]: low is 5 and high is 3; low must be less than high",
        ),
        (
            "policy: {lr: {start: 1, end: 0, env_steps: 9, train_iters: 8}}",
            "44: policy.lr: a schedule needs one of env_steps, train_iters, episodes; it has env_steps and train_iters "
            "(`env_steps: null` removes that of an extended graph)",
        ),
    ],
)
def test_a_problem_of_several_parameters_is_located_at_the_one_that_the_validator_names(
    problems, text, problem
):
    assert problems(f"extends: cartpole_dqn\n{text}\n") == [f"g.yaml:2:{problem}"]


def test_a_parameter_that_depends_on_an_input_without_an_edge_is_reported(problems):
    text = """
        extends: cartpole_dqn
        nodes: {buffer: {type: advanced_buffer, beta: 0.4, alpha: 0.9, demo_share: 0.5}}
        """
    begin, hint = "nodes.buffer:", "leave it out, or connect the input"
    assert problems(text) == [
        f"g.yaml:2:64: {begin} 'demo_share' has no effect, because the input 'demos' is not connected; {hint}",
        f"g.yaml:2:52: {begin} 'alpha' has no effect, because the input 'priorities' is not connected; {hint}",
    ]


def test_a_setting_of_a_policy_of_which_only_two_are_read_is_reported(problems):
    text = """
        extends: cartpole_dqn
        nodes: {collector: {learning_policy: {lr: 1e-5, nstep: 3, model: {type: cnn}}}}
        """
    hint = "of learning_policy, only nstep and gamma are read; set it for the node that learns"
    assert problems(text) == [
        f"g.yaml:2:67: nodes.collector: 'learning_policy.model.type' has no effect: {hint}",
        f"g.yaml:2:39: nodes.collector: 'learning_policy.lr' has no effect: {hint}",
    ]


def test_a_resolved_policy_of_which_only_two_settings_are_read_is_sound():
    for changes in ({}, {"policy.lr": "0.1"}, {"learner.lr": "0.1", "policy.nstep": "3"}):
        loaded = load_data({"extends": "cartpole_dqn"}, overrides=changes)
        resolved = expand(check(loaded).require_sound().graph)
        assert "learning_policy" in resolved
        assert check(load_text(resolved, "graph.yaml")).problems == []


def test_separate_trunks_of_a_policy_whose_networks_have_one_head_are_reported(problems):
    text = "extends: cartpole_dqn\npolicy: {model: {shared: false}}"
    what = "`shared` of the model has no effect: the network 'q' has one head; leave it out"
    assert problems(text) == [f"g.yaml:2:18: policy: {what}"]
    assert problems(text.replace("_dqn", "_ppo")) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        (
            "extends: cartpole_dqn\npolicy: {model: {scale_bytes: false}}",
            "`scale_bytes` of the model has no effect: no observation is made of bytes (uint8)",
        ),
        (
            "extends: cartpole_dqn_rnd\nnodes: {rnd: {model: {scale_bytes: false}}}",
            "`scale_bytes` of the model has no effect: no observation is made of bytes (uint8)",
        ),
    ],
)
def test_a_setting_of_a_model_that_its_observations_make_useless_is_reported(
    problems, graph, problem
):
    assert [found.partition(": ")[2].partition(": ")[2] for found in problems(graph)] == [
        f"{problem}; leave it out"
    ]


LINKED = """
    policy: {type: dqn}
    nodes:
      envs: {type: env_manager, count: 2, env: {id: CartPole-v1}}
      collector: {type: sample_collector, n_sample: 64}
      buffer: {type: naive_buffer, size: 1000, batch_size: 32}
      learner: {type: learner}
      eval_envs: {type: env_manager, count: 2, env: {id: ENV}}
      evaluator: {type: evaluator}
    edges:
      - collector <-> envs
      - evaluator <-> eval_envs
      - collector -> buffer -> learner
      - learner -> collector
      - learner -> evaluator: {every: 5}
    """


def test_a_linked_evaluator_needs_no_env_and_its_resolved_graph_reads_as_the_same(checked):
    found = checked(LINKED.replace("ENV", "CartPole-v1"))
    assert [str(p) for p in found.problems] == []
    again = check(load_text(expand(found.graph), "again"))
    assert [str(p) for p in again.problems] == []
    assert again.graph.nodes["evaluator"].config == found.graph.nodes["evaluator"].config


def test_an_evaluator_without_any_env_is_reported(problems):
    text = LINKED.replace("- evaluator <-> eval_envs", "").replace(
        "eval_envs: {type: env_manager, count: 2, env: {id: ENV}}", ""
    )
    assert problems(text) == [
        "g.yaml:8:3: nodes.evaluator: it has no env to play in; give it an `env`, or link it to an env manager"
    ]


def test_envs_in_which_the_weights_cannot_act_are_reported(problems):
    what = "learner.weights -> evaluator.weights: learner learns in other spaces than evaluator acts in"
    hint = "give the envs of both the same spaces, for example with the same wrappers"
    assert problems(LINKED.replace("ENV", "Acrobot-v1")) == [
        f"g.yaml:14:5: {what} (obs: float32[4] and float32[6]; action: one of 2 and one of 3); {hint}"
    ]
    found = problems("""
        extends: cartpole_dqn
        nodes: {eval_envs: {type: env_manager, env: {id: Acrobot-v1}}}
        edges: [evaluator <-> eval_envs]
        """)
    assert [p.partition(" (")[0] for p in found] == [f"g.yaml:2:40: {what}"]


@pytest.mark.parametrize(
    ("changes", "where", "what"),
    [
        (
            {
                "buffer.unroll_steps": "20",
                "buffer.burn_in_steps": "4",
                "buffer.memory_columns": "[]",
            },
            "--set buffer.unroll_steps=20",
            "buffer.batches gives other sequences than learner.data needs: unroll_steps is 20 of "
            "buffer.batches and 24 of learner.data, burn_in_steps is 4 of buffer.batches and 8 of "
            "learner.data, memory_columns is [] of buffer.batches and [memory] of learner.data; write "
            "`buffer: {unroll_steps: 24, burn_in_steps: 8, memory_columns: [memory]}`, or change the policy",
        ),
        (
            {"policy.burn_in_steps": "7"},
            "--set policy.burn_in_steps=7",
            "buffer.batches gives other sequences than learner.data needs: burn_in_steps is 8 of "
            "buffer.batches and 7 of learner.data; write `buffer: {burn_in_steps: 7}`, or change the policy",
        ),
    ],
)
def test_sequences_that_do_not_fit_the_policy_are_one_problem(problems, changes, where, what):
    sets = {key.replace(".", "__"): value for key, value in changes.items()}
    assert problems("extends: hiddencartpole_r2d2", **sets) == [f"{where}: {what}"]


def test_single_steps_for_a_policy_that_learns_from_sequences_are_one_problem(problems):
    [found] = problems("""
        extends: cartpole_acer
        nodes: {buffer: {type: naive_buffer, size: 10_000, batch_size: 16}}
        """)
    assert found == (
        "g.yaml:2:38: learner.data needs sequences of steps, and buffer.batches gives none; feed it from "
        "`{type: sequence_buffer, unroll_steps: 16, burn_in_steps: 0, memory_columns: []}`"
    )


def test_sequences_for_a_policy_that_learns_from_single_steps_are_one_problem(problems):
    [found] = problems("""
        extends: cartpole_acer
        policy: {type: dqn}
        """)
    assert found == (
        "g.yaml:2:1: buffer.batches gives sequences of steps, and learner.data needs rows of another kind; put a "
        "buffer of single steps in its place, or take a policy that learns from sequences, such as r2d2"
    )


def test_a_required_output_that_nobody_consumes_is_reported(problems):
    assert problems("nodes: {s: 'toys:Source'}") == [
        "g.yaml:1:9: nodes.s: the output 'out' (samples) is not connected; remove the node, or "
        "add a consumer"
    ]


def test_an_ambiguous_input_lists_the_candidates(problems):
    assert problems("""
        nodes: {s: 'toys:Source', j: 'toys:Join'}
        edges: [s -> j]
        """) == [
        "g.yaml:2:9: edges: 's -> j' is ambiguous; write 's.out -> j.left' or 's.out -> j.right'"
    ]


def test_an_ambiguous_output_lists_the_candidates(problems):
    assert problems("""
        nodes: {s: 'toys:Source', f: 'toys:Fork', t: 'toys:Sink', u: 'toys:Sink'}
        edges: [s -> f, f -> t, f.even -> u]
        """) == [
        "g.yaml:2:17: edges: 'f -> t' is ambiguous; write 'f.odd -> t.data' or 'f.even -> t.data'"
    ]


def test_incompatible_ports_list_the_candidates(problems):
    assert problems("""
        policy: toys:Greedy
        nodes: {s: 'toys:Source', l: 'toys:Learner', b: 'toys:Buffer'}
        edges: [l -> b]
        """)[0] == (
        "g.yaml:3:9: edges: no output of 'l' fits an input of 'b'; outputs of 'l': weights "
        "(weights), priorities (priorities, optional); inputs of 'b': data (samples), demos "
        "(samples, optional), priorities (priorities, optional); optional inputs must be named"
    )


def test_incompatible_links_list_the_candidates(problems):
    assert problems("""
        nodes: {s: 'toys:Source', e: 'toys:Envs', t: 'toys:Sink'}
        edges: [s -> t, s <-> e]
        """)[0] == (
        "g.yaml:2:17: edges: 's' and 'e' have no link and service that fit; services and links "
        "of 's': none; of 'e': serve (envs)"
    )


def test_sources_that_lead_to_different_inputs_are_reported(problems):
    assert problems("""
        nodes: {s: 'toys:Source', e: 'toys:Evaluator', d: 'toys:TwoTypedInputs'}
        edges: ["s, e -> d"]
        """) == [
        "g.yaml:2:9: edges: the sources lead to different inputs: d.data, d.scores; name the port",
    ]


@pytest.mark.parametrize(
    ("edge", "message"),
    [
        ("'e, f <-> r'", "edges: the link r.inner has one service; write one node before '<->'"),
        (
            "'l, m -> v'",
            "edges: the state input v.weights has one source; write one node before '->'",
        ),
    ],
)
def test_links_and_states_have_one_source(problems, edge, message):
    reported = problems(f"""
        policy: toys:Greedy
        nodes: {{e: 'toys:Envs', f: 'toys:Envs', r: 'toys:Relay', l: 'toys:Learner',
                m: 'toys:Learner', v: 'toys:Evaluator'}}
        edges: [{edge}]
        """)
    assert reported[0] == f"g.yaml:4:9: {message}"


def test_an_input_that_is_fed_twice_is_reported(problems):
    assert problems("""
        nodes: {a: 'toys:Source', b: 'toys:Source', t: 'toys:Sink'}
        edges:
          - a -> t
          - b -> t
        """) == [
        "g.yaml:4:5: edges: the input t.data is fed twice (first at g.yaml:3:5); "
        "list the sources together: 'a.out, b.out -> t.data'",
    ]


def test_a_stateful_service_with_two_clients_is_reported(problems):
    assert problems("""
        nodes: {e: 'toys:Envs', r: 'toys:Relay', s: 'toys:Relay'}
        edges:
          - r <-> e
          - s <-> e
        """)[-1] == (
        "g.yaml:4:5: the service e.serve has 2 clients (r.inner, s.inner); a service that keeps "
        "state has one; give each client a node of its own such as 'e'"
    )


def test_a_stateless_service_may_have_several_clients(problems):
    reported = problems("""
        nodes: {e: 'toys:StatelessEnvs', r: 'toys:Relay', s: 'toys:Relay'}
        edges: [r <-> e, s <-> e]
        """)
    assert all("the service 'serve'" in p and "is not connected" in p for p in reported)
    assert len(reported) == 2


def test_links_in_a_cycle_are_reported(problems):
    assert problems("""
        nodes: {r: 'toys:Relay', s: 'toys:Relay'}
        edges:
          - r.inner <-> s.serve
          - s.inner <-> r.serve
        """) == ["g.yaml:3:5: the links form a cycle: r <-> s <-> r; remove one of them"]


# columns


def test_a_missing_column_is_reported(problems):
    assert problems(rl(policy=", gives: [logb], needs: [logp]")) == [
        "g.yaml:9:5: learner.data needs the column 'logp' (float32), and buffer.batches does not "
        "give it; it gives obs float32[4], action int64, logb float32; did you mean 'logb'?"
    ]


def test_a_column_of_another_type_or_shape_is_reported(problems):
    for policy, wanted in ((", shape: 3", "float32[3]"), (", dtype: uint8", "uint8[4]")):
        assert problems(rl(policy=policy)) == [
            f"g.yaml:9:5: learner.data needs the column 'obs' as {wanted}, and buffer.batches "
            "gives it as float32[4]; convert it in between, or change the node that makes it"
        ]


def test_sources_of_one_input_with_other_columns_are_reported(problems):
    assert problems("""
        nodes:
          a: {type: toys:Source, columns: [obs]}
          b: {type: toys:Source, columns: [act]}
          t: toys:Sink
        edges:
          - a, b -> t
        """) == [
        "g.yaml:6:5: a.out, b.out -> t.data: its sources give different columns: a.out gives obs "
        "float32; b.out gives act float32; put a node in between that makes them alike"
    ]


def test_tokens_that_are_no_table_are_reported(problems):
    assert problems("""
        policy: toys:Greedy
        nodes: {s: 'toys:Source', c: 'toys:tally', l: 'toys:Learner', e: 'toys:Evaluator'}
        edges: [s -> c -> l, l -> e: {every: 1}]
        """) == [
        "g.yaml:3:9: l.data needs columns (obs float32[4]), and c.out gives no table; connect what "
        "gives a Batch"
    ]


def test_a_node_whose_describe_returns_no_facts_is_reported(problems):
    (reported,) = problems("nodes: {s: 'toys:WrongFacts', t: 'toys:Sink'}\nedges: [s -> t]")
    assert (
        "nodes.s: describe raised TypeError: it returned dict; expected Facts (describe_call.py:"
        in reported
    )


# rates


def test_rates_that_do_not_balance_are_reported_with_rates_that_would(problems):
    assert problems("""
        nodes:
          s: {type: toys:Source, rate: 2}
          f: toys:Fork
          p: {type: toys:Pipe, takes: 3}
          j: toys:Join
        edges:
          - s -> f
          - f.odd -> p -> j.left
          - f.even -> j.right
        """) == [
        "g.yaml:9:5: the edge f.even -> j.right does not balance: in a round f gives 3 tokens "
        "(3 firings of 1) and j takes 1 token (1 firing of 1); let j.right take 3 in each firing"
    ]


def test_a_rate_of_zero_is_reported(problems):
    assert problems("""
        nodes:
          s: {type: toys:Source, rate: 0}
          t: toys:Sink
        edges: [s -> t]
        """) == ["g.yaml:2:26: nodes.s: rate is 0, and it is the rate of 'out'; make it 1 or more"]


def test_an_auto_rate_that_cannot_be_whole_is_reported(problems):
    assert problems("""
        nodes:
          s: toys:Source
          f: toys:Fork
          p: {type: toys:Pipe, takes: 2}
          a: toys:AutoSink
          j: toys:Join
        edges:
          - s -> f
          - f.odd -> p
          - f.even, p -> a
        """)[-1].startswith("g.yaml:10:5: the edge p.out -> a.data does not balance: in a round p")


def test_an_unordered_fan_in_that_does_not_balance_is_reported(problems):
    assert problems("""
        nodes: {s: 'toys:Source', f: 'toys:Fork', p: {type: 'toys:Pipe', takes: 2}, t: 'toys:Join'}
        edges:
          - s -> f
          - f.odd -> p -> t.left
          - {from: f.even, to: t.right, merge: any}
        """) == [
        "g.yaml:5:5: the edge f.even -> t.right does not balance: in a round its sources give 2 "
        "tokens and t takes 1; change a rate on a path between them"
    ]


def test_a_cycle_without_an_initial_token_is_named(problems):
    assert problems("""
        nodes: {a: 'toys:Pipe', b: 'toys:Pipe', c: 'toys:Pipe'}
        edges:
          - a -> b -> c
          - c -> a
        """) == [
        "g.yaml:4:5: the cycle a -> b -> c -> a has no initial token: each of its nodes waits for "
        "the one before; close a loop through an input that begins with tokens, or carry state on "
        "a state edge"
    ]


def test_a_capacity_below_one_round_is_reported(problems):
    assert problems("""
        nodes:
          s: {type: toys:Source, rate: 4}
          t: toys:Sink
        edges:
          - s -> t: {capacity: 3}
        """) == [
        "g.yaml:5:5: s.out -> t.data: its capacity is 3 and one round puts 4 tokens on it; write "
        "'capacity: 4' or more, or leave it out"
    ]


def test_a_round_of_too_many_firings_is_reported(problems):
    pipes = "".join(f"  p{i}: {{type: 'toys:Pipe', gives: 1000}}\n" for i in range(4))
    reported = problems(
        f"nodes:\n  s: toys:Source\n{pipes}  t: toys:Sink\nedges: [s -> p0 -> p1 -> p2 -> p3 -> t]"
    )
    assert reported == [
        "g.yaml:7:3: nodes.t: a round would be 1000000000000 firings of it; rates with large "
        "common factors keep rounds short"
    ]


# amounts


def test_a_warm_up_that_is_too_short_is_reported(problems):
    phase = "warmup: [{edges: [collector -> buffer], steps: 16}]"
    assert problems(rl(buffer=", batch_size: 64", more=phase)) == [
        "g.yaml:11:10: nodes.buffer: the first batch needs 64 rows (batch_size), and 24 will have "
        "arrived by then; warm up longer: 'warmup: [{edges: [collector -> buffer], steps: 64}]', or "
        "lower batch_size"
    ]


def test_a_missing_warm_up_is_reported(problems):
    assert problems(rl(buffer=", batch_size: 9")) == [
        "g.yaml:5:33: nodes.buffer: the first batch needs 9 rows (batch_size), and 8 will have "
        "arrived by then; warm up longer: 'warmup: [{edges: [collector -> buffer], steps: 9}]', or lower "
        "batch_size"
    ]


def test_rows_are_counted_through_nodes_that_do_not_state_them(problems):
    reported = problems("""
        policy: toys:Greedy
        nodes:
          envs: toys:Envs
          collector: toys:Collector
          pipe: toys:Pipe
          buffer: {type: toys:Buffer, batch_size: 17}
          learner: toys:Learner
        edges:
          - collector <-> envs
          - collector -> pipe -> buffer -> learner
          - learner -> collector
        warmup:
          - {edges: [collector -> buffer], rounds: 1}
        """)
    assert reported[0].startswith(
        "g.yaml:13:5: nodes.buffer: the first batch needs 17 rows (batch_size), and 16 will"
    )


def test_batches_larger_than_their_buffer_are_reported(problems):
    assert problems(rl(buffer=", size: 4, batch_size: 8")) == [
        "g.yaml:5:42: nodes.buffer: batches of 8 rows are drawn from 4; make size larger"
    ]


def test_a_buffer_that_does_not_fit_is_reported_before_anything_is_allocated(problems, monkeypatch):
    monkeypatch.setattr("flowrl.checks.amounts.machine_memory_bytes", lambda: 8_000_000_000)
    assert problems(rl(buffer=", size: 1_000_000_000")) == [
        "g.yaml:5:33: nodes.buffer would take 24.0 GB; this machine has 8.0 GB; make it smaller, "
        "or store smaller columns"
    ]


def test_a_firing_that_gives_more_than_memory_holds_is_reported(monkeypatch):
    monkeypatch.setattr("flowrl.checks.amounts.machine_memory_bytes", lambda: 8_000_000_000)

    def found(updates):
        loaded = load_data({"extends": "cartpole_dqn"}, overrides={UPDATES: updates})
        return [str(problem) for problem in check(loaded).problems]

    assert found("1_000_000") == []
    assert found("10_000_000") == [
        "--set buffer.updates_per_push=10_000_000: buffer.batches -> learner.data: a firing of buffer gives 10,000,000 "
        "tokens, which would take 65.3 GB; this machine has 8.0 GB; let it give fewer at a time, or smaller ones"
    ]


UPDATES = "buffer.updates_per_push"


# time


def test_an_on_policy_learner_behind_a_stale_edge_is_warned_of(checked):
    found = checked(rl(learner=", on_policy: true", weights=": {lag: 1}"))
    assert found.problems == []
    assert [str(w) for w in found.warnings] == [
        "g.yaml:10:5: learner learns on-policy, and learner.weights -> collector.weights is stale "
        "(lag 1); leave the lag out, or use an algorithm that corrects for it"
    ]


def test_an_on_policy_learner_with_fresh_data_is_not_warned_of(checked):
    assert checked(rl(learner=", on_policy: true")).warnings == []


def test_more_staleness_than_is_allowed_is_reported(problems):
    assert problems(rl(weights=": {lag: 3, max_staleness: 2}")) == [
        "g.yaml:10:5: learner.weights -> collector.weights: max_staleness is 2 rounds, and "
        "learner.weights -> collector.weights has lag 3; lower the lag to 2, or allow 3"
    ]


def test_staleness_is_followed_along_streams(problems):
    text = rl(weights=": {lag: 3}").replace(
        "- collector -> buffer -> learner",
        "- collector -> buffer\n      - buffer -> learner: {max_staleness: 2}",
    )
    assert problems(text) == [
        "g.yaml:10:5: buffer.batches -> learner.data: max_staleness is 2 rounds, and "
        "learner.weights -> collector.weights has lag 3; lower the lag to 2, or allow 3"
    ]


def test_lag_and_latest_exclude_each_other(problems):
    assert problems(rl(weights=": {lag: 1, latest: true}")) == [
        "g.yaml:10:5: learner.weights -> collector.weights: 'lag' and 'latest' exclude each "
        "other; leave one out"
    ]


# all at once


def test_several_problems_are_reported_at_once(problems):
    assert problems("""
        seed: -1
        polcy: toys:Greedy
        nodes:
          envs: {type: toys:Envs, count: 0}
          buffer: {type: toys:Bufer}
          sink: {type: toys:Sink, rat: 1}
          source: toys:Source
          pipe: toys:Pipe
        edges:
          - envs -> sink: {cap: 1}
          - source -> pip
        limits: {step: 3, time: soon}
        """) == [
        "g.yaml:4:34: nodes.envs.count is 0; expected greater than or equal to 1",
        "g.yaml:5:18: nodes.buffer: 'toys:Bufer': the module 'toys' has no 'Bufer'; did you mean "
        "'Buffer'?",
        "g.yaml:6:27: nodes.sink: unknown key 'rat'; did you mean 'rate'?",
        "g.yaml:2:1: unknown key 'polcy'; did you mean 'policy'?",
        "g.yaml:10:20: edges: unknown option 'cap'; known: capacity, compress, dtype, every, lag, latest, "
        "max_staleness, merge, when_full",
        "g.yaml:11:5: edges: unknown node 'pip'; did you mean 'pipe'?",
        "g.yaml:1:7: seed is -1; expected a whole number from 0 to 9223372036854775807",
        "g.yaml:12:10: limits: unknown key 'step'; did you mean 'steps'?",
        "g.yaml:12:25: limits.time is 'soon'; expected a time such as 30s, 10m or 2h",
    ]


def test_an_edge_whose_compression_is_not_installed_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = toy_graph({"c": "Source", "d": "Drain"}, [{"c -> d": {"compress": "zstd"}}])
    monkeypatch.setattr("flowrl.channels.wire_format.find_spec", lambda module: None)
    assert [str(problem) for problem in check(load_data(graph)).problems] == [
        "graph: c.data -> d.data: compress is zstd, and the package zstandard is not installed; install it on each "
        "machine of the run: pip install 'flowrl[network]'"
    ]


@pytest.mark.slow
def test_priorities_of_another_number_of_rows_than_a_batch_has_are_refused(problems):
    """The run failed at the buffer's second firing."""
    what = "learner.priorities -> buffer.priorities: each token must have"
    write = "write 'learner.priorities -> split -> buffer.priorities' with the node `split:"
    shards = "extends: cartpole_dqn_per\nnodes: {buffer: {replicas: 2}"
    assert problems(shards + "}") == [
        f"g.yaml:2:9: {what} 128 rows (batch_size), and those of learner.priorities have 256; "
        f"{write} {{type: rows, parts: 2}}`"
    ]
    split = ", split: {type: rows, parts: 2}}\nedges: [learner.priorities -> split -> buffer.priorities]"
    assert problems(shards + split) == []
    assert problems(shards + ", learner: {replicas: 2}}") == []  # one to one


def test_priorities_of_several_buffers_are_refused_where_one_has_to_take_its_own(problems):
    [found] = problems("""
        extends: cartpole_dqn_per
        nodes: {more: {type: advanced_buffer, size: 1000, batch_size: 32, updates_per_push: 8}}
        edges: [collector -> more, "buffer, more -> learner"]
        """)
    assert found.startswith("g.yaml:3:28: learner.priorities -> buffer.priorities: ")
    assert (
        "each token must have 128 rows (batch_size), and those of learner.priorities have 160"
        in found
    )
    assert "`split: {type: rows, first: …, count: 128}`" in found


def test_rows_that_tokens_do_not_have_are_refused(problems):
    def of(split):
        return problems(f"""
        extends: cartpole_dqn_per
        nodes: {{buffer: {{replicas: 2}}, split: {{type: rows, {split}}}}}
        edges: [learner.priorities -> split -> buffer.priorities]
        """)

    assert of("parts: 3") == [
        "g.yaml:2:52: nodes.split: 256 rows cannot be split into 3 equal parts; take a number of rows that is a "
        "multiple of `parts`"
    ]
    assert of("first: 256") == [
        "g.yaml:2:52: nodes.split: a token has 256 rows, but rows from 256 on are to be emitted; rows count from 0"
    ]
    assert of("first: 1, count: 256") == [
        "g.yaml:2:62: nodes.split: a token has 256 rows, but rows 1 to 257 are to be emitted; rows count from 0"
    ]


def test_an_input_is_not_called_unconnected_if_what_feeds_it_has_a_problem(problems):
    assert problems("""
        extends: cartpole_dqn
        nodes: {demos: {type: demos, path: none.npz}, gail: {type: gail}}
        edges: [collector -> gail -> buffer, demos -> gail.expert]
        """) == [
        "g.yaml:2:30: nodes.demos: the file 'none.npz' does not exist; an npz_writer node writes such files"
    ]


def test_tokens_of_one_row_are_refused_where_advantages_are_normalised(problems):
    """The policy did not learn: one advantage without its mean is 0."""
    graph = (
        "extends: cartpole_ppo\nnodes: {collector: {n_sample: 1}}\npolicy: {normalise_advantages: "
    )
    assert problems(graph + "true}") == [
        "g.yaml:3:1: nodes.learner: ppo learns from 2 rows at least, and a token has 1; give it more rows "
        "(`n_sample` of a collector, `batch_size` of a buffer); hundreds are usual"
    ]
    assert problems(graph + "false}") == []
    [found] = problems("extends: pendulum_crossq\nnodes: {buffer: {batch_size: 1}}")  # it failed
    assert "nodes.learner: crossq learns from 2 rows at least, and a token has 1; " in found


def test_an_output_that_must_be_connected_is_proposed_before_optional_ones(problems):
    found = problems("extends: cartpole_dqn\nnodes: {rnd: {type: rnd}}")
    assert "add 'collector.data -> rnd.data'" in found[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (
            "{type: r2d2, unroll_steps: 8, burn_in_steps: 9}",
            "g.yaml:2:22: policy: 9 of 8 steps are burn-in, so no step is learned from; make `unroll_steps` larger",
        ),
        (
            "{model: {type: gru}}",
            "g.yaml:2:10: policy: dqn learns from single steps, and the model is recurrent; take an mlp, or the policy "
            "r2d2, or ppo with `unroll_steps`",
        ),
        (
            "{model: {hidden: [64, 0]}}",
            "g.yaml:2:31: policy.model.hidden.1 is 0; expected greater than 0",
        ),
    ],
)
def test_a_mistake_in_a_shared_policy_is_one_problem_where_the_policy_is_written(
    problems, policy, problem
):
    assert problems(f"extends: cartpole_dqn\npolicy: {policy}") == [problem]


def test_a_share_of_demonstrations_that_priorities_decide_is_refused(problems):
    graph = """
        extends: mountaincar_dqfd
        nodes: {buffer: {demo_share: 0.5}}
        """
    assert problems(graph) == [
        "g.yaml:2:18: nodes.buffer: `demo_share` has no effect with `demo_draw: priority`, which draws by priorities "
        "alone; leave it out"
    ]


def test_a_node_beside_a_stream_is_to_be_put_into_it(problems):
    text = """
        extends: cartpole_dqn
        nodes: {rnd: {type: rnd}}
        edges: [collector -> rnd]
        """
    hint = "write 'collector -> rnd -> buffer.data' in place of 'collector.data -> buffer.data'"
    assert problems(text) == [
        f"g.yaml:2:9: nodes.rnd: the output 'out' (samples) is not connected; {hint}"
    ]
    assert problems(text.replace("collector -> rnd", "collector -> rnd -> buffer.data")) == []


def test_averaged_weights_may_be_the_only_ones_that_are_read(problems):
    assert (
        problems("""
        extends: cartpole_bc
        nodes: {learner: {hooks: [averaged_weights]}}
        edges: ["learner.averaged -> evaluator.weights": {every: 10}]
        """)
        == []
    )
