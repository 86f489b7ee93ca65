"""The report of `flowrl check` on a sound graph, as text and as JSON."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest

from flowrl.checks.check import check
from flowrl.core.wording import count_text
from flowrl.graph.loading import load_graph
from flowrl.graph.placement import read_placement, resolve_placement
from flowrl.graph.site_layout import make_layout
from flowrl.machine.resources import MachineResources
from flowrl.render import placement_needs as placement_needs_module
from flowrl.render.placement_needs import placement_needs
from flowrl.render.report import check_json, check_text
from flowrl.runtime.executor import limit_reached

RL = """
    policy: toys:Greedy
    nodes:
      envs: {type: toys:Envs, replicas: 2}
      collector: toys:Collector
      buffer: {type: toys:Buffer, updates: 3}
      learner: toys:Learner
      evaluator: toys:Evaluator
    edges:
      - collector <-> envs
      - collector -> buffer -> learner
      - learner.priorities -> buffer.priorities
      - learner -> collector: {lag: 1}
      - learner -> evaluator: {every: 10}
    warmup:
      - {edges: [collector -> buffer], steps: 40}
    """


def test_the_report_of_a_sound_graph_has_schedule_edges_and_determinism(checked):
    assert check_text(checked(RL)) == dedent("""\
        g: sound. 5 nodes, 6 edges.

        Schedule
          warm-up 1, 3 rounds: collector (2 replicas), buffer
          every round: collector (2 replicas), buffer, learner x 3
          every 10 firings of learner: evaluator

        Edges
          envs.serve         <-> collector.envs     envs, calls
          collector.data     ->  buffer.data        samples, 1 token a round, room for 1
          buffer.batches     ->  learner.data       samples, 3 tokens a round, room for 3
          learner.priorities ->  buffer.priorities  priorities, 3 tokens a round, room for 3, 3 initial
          learner.weights    =>  collector.weights  weights, lag 1 (1 round older than the last)
          learner.weights    =>  evaluator.weights  weights, every 10 versions

        Deterministic: the same seed gives the same bits, in every placement.""")


def test_the_report_has_the_memory_that_snapshots_take():
    buffer = {"buffer.size": "1000"}
    lines = check_text(check(load_graph("cartpole_dqn", buffer))).splitlines()
    assert not any("napshot" in line for line in lines)
    lines = check_text(check(load_graph("cartpole_dqn", {**buffer, "snapshots.every_s": "60"})))
    expected = (
        "A snapshot copies at most 83.0 KB (buffer) between two rounds, and of rows only those that are new since the "
        "last one."
    )
    assert lines.splitlines()[-1] == expected


def test_the_report_has_the_memory_of_large_copies_for_precautions():
    buffer = {"buffer.size": "2_000_000"}
    *_, line = check_text(check(load_graph("cartpole_dqn", buffer))).splitlines()
    assert line == (
        "Ahead of a snapshot, at most 142.0 MB (buffer) are copied, 16.8 MB at a time. At its round, it copies at most "
        "67.1 MB of these, what has arrived meanwhile, and other data of at most 24.0 MB (buffer)."
    )
    off = {**buffer, "snapshots": "false"}
    assert "snapshot" not in check_text(check(load_graph("cartpole_dqn", off)))


def test_the_report_has_the_sites_of_a_placement(checked):
    graph = checked(RL).graph
    layout = make_layout(graph, resolve_placement(graph, "collector=cpu,learner=thread"))
    lines = check_text(checked(RL), layout).splitlines()
    assert lines[lines.index("Sites") + 1 :][:4] == [
        "  main             thread: buffer, evaluator",
        "  cpu:collector    process on cpu: envs, collector",
        "  cpu:collector#1  process on cpu: envs#1, collector#1",
        "  thread:learner   thread: learner",
    ]
    assert check_json(checked(RL), layout)["sites"] == {
        "main": ["buffer", "evaluator"],
        "cpu:collector": ["envs", "collector"],
        "cpu:collector#1": ["envs#1", "collector#1"],
        "thread:learner": ["learner"],
    }


@pytest.mark.slow
def test_the_report_has_the_needs_of_a_placement(checked, monkeypatch):
    monkeypatch.setattr(
        placement_needs_module, "machine_resources", lambda: MachineResources(4, 8 * 10**9)
    )
    graph = checked(RL).graph
    spread = {"place": "cpu-*", "cores": 2, "spread": True}
    written = {"collector": spread, "learner": {"gpus": 1, "memory": "1GB"}, "buffer": "process"}
    placement = read_placement(graph, written)
    needs = placement_needs(graph, placement)
    lines = check_text(checked(RL), make_layout(graph, placement), needs).splitlines()
    assert lines[lines.index("Needs") + 1 :][:5] == [
        "  cpu-*:collector  2 replicas, each 2 cores and on another host: 4 cores, 2 hosts",
        "  any:learner      1 GPU, 1.0 GB",
        "  In all, the hosts need 1 GPU, 4 cores, 1.0 GB; at least 2 hosts.",
        "  A host like this machine (4 cores, 8.0 GB, no GPU) has too little: learner needs 1 GPU, 1.0 GB.",
        "",
    ]
    found = check_json(checked(RL), None, needs)["needs"]
    assert found["not_like_here"] == ["learner needs 1 GPU, 1.0 GB"]
    assert found["sites"]["cpu-*:collector"] == {
        **{"replicas": 2, "cores": 4, "memory_bytes": 0, "gpus": 0, "hosts": 2}
    }


def test_a_placement_without_needs_has_no_such_lines(checked):
    graph = checked(RL).graph
    placement = read_placement(graph, {"collector": "cpu"})
    needs = placement_needs(graph, placement)
    assert "Needs" not in check_text(checked(RL), make_layout(graph, placement), needs)


def test_the_report_says_why_a_graph_is_not_deterministic(checked):
    text = RL.replace("{lag: 1}", "{latest: true}").replace(
        "updates: 3", "updates: 1, on_failure: restart"
    )
    assert check_text(checked(text)).splitlines()[-3:] == [
        "Not deterministic:",
        "  learner.weights -> collector.weights: latest (the version depends on speed)",
        "  buffer: on_failure restart",
    ]


def test_problems_come_first_and_are_counted(checked):
    text = RL.replace("updates: 3", "updates: 0, size: 0")
    assert check_text(checked(text)).splitlines()[-2:] == ["", "g: 2 problems"]


def test_the_report_of_a_sound_graph_has_warnings(checked):
    text = check_text(
        checked(
            RL.replace("learner: toys:Learner", "learner: {type: toys:Learner, on_policy: true}")
        )
    )
    assert text.startswith(
        "warning: g.yaml:12:5: learner learns on-policy, and learner.weights -> "
    )
    assert "g: sound." in text


def test_the_json_report_has_the_same_content(checked):
    found = json.loads(json.dumps(check_json(checked(RL))))
    assert (found["ok"], found["deterministic"], found["reasons"]) == (True, True, [])
    assert found["problems"] == found["warnings"] == []
    assert found["nodes"]["collector"] == {"type": "toys:Collector", "replicas": 2, "firings": 1}
    assert found["nodes"]["learner"]["firings"] == 3
    assert found["schedule"] == {
        "warmup": [{"rounds": 3, "firings": {"buffer": 1, "collector": 1}}],
        "round": {"buffer": 1, "collector": 1, "learner": 3},
        "order": ["collector", "buffer", "learner"],
        "paced": [{"source": "learner.weights", "every": 10, "firings": {"evaluator": 1}}],
    }
    assert {"kind": "state", "from": ["learner.weights"], "to": "collector.weights",
            "type": "weights", "lag": 1, "every": None, "latest": False,
            "max_staleness": None, "dtype": "float32", "compress": "none"} in found["edges"]  # fmt: skip


def test_a_problem_in_json_has_where_what_and_hint(checked):
    found = check_json(checked("nodes: {a: 'toys:Sourc'}"))
    assert found["ok"] is False
    assert found["problems"] == [
        {
            "where": "g.yaml:1:12",
            "what": "nodes.a: 'toys:Sourc': the module 'toys' has no 'Sourc'",
            "hint": "did you mean 'Source'?",
        }
    ]


@pytest.mark.parametrize(
    ("number", "text", "reason"),
    [
        (0, "0 rounds", "0 rounds were asked for"),
        (1, "1 round", "1 round was asked for"),
        (2000, "2,000 rounds", "2000 rounds were asked for"),
    ],
)
def test_one_is_singular(number, text, reason):
    assert (count_text(number, "round"), limit_reached("rounds", number)[1]) == (text, reason)
