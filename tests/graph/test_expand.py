"""The resolved graph is complete, and reads back as the same graph."""

from __future__ import annotations

from textwrap import dedent

import pytest

from flowrl.checks.check import check
from flowrl.graph.bundled import bundled_graphs
from flowrl.graph.expand import expand
from flowrl.graph.loading import load_graph

ALL = """
    about: |
      Everything: at once, "quoted" & 'so on'
    seed: 3
    torch_threads: 2
    params: {width: 2, lr: 1e-5}
    limits: {steps: 100, train_iters: 7, rounds: 3, time: 90m}
    policy: {type: 'toys:Greedy', lr: '${lr}', gives: [logp, 'on', 'a b', '', '3', '~']}
    nodes:
      envs: {type: toys:Envs, replicas: 2}
      collector: toys:Collector
      pair: {type: pair.yaml, on_failure: restart}
      buffer: {type: toys:Buffer, batch_size: 4, updates: '${width}', torch_threads: 3}
      learner: {type: toys:Learner, policy: {lr: 0.5}}
      evaluator: toys:Evaluator
      typed: {type: toys:Typed, must: -1, real: 1e22, text: "# no: comment\\n", table: {a b: 1, '2': 2}}
      s: toys:Source
      a-b: {type: toys:Source, rate: 2}
      t: toys:AutoSink
      clip: {type: toys:clip, low: -3}
      u: toys:Sink
    edges:
      - collector <-> envs
      - collector -> pair -> buffer
      - buffer -> learner: {max_staleness: 3, capacity: 9}
      - learner.priorities -> buffer.priorities
      - learner -> collector: {lag: 2}
      - learner -> evaluator: {every: 5}
      - s, a-b -> t: {merge: any, when_full: drop_oldest}
      - s -> clip -> u
    warmup:
      - {edges: [collector -> pair -> buffer], steps: 16, set: {collector.policy: {type: toys:Greedy, lr: 9}}}
      - {edges: ["s, a-b -> t"], rounds: 1}
    placements:
      parallel: {pair: process, learner: "thread", collector: "node[0-3]:process"}
      by_need: {"envs[0-1]": cpu-*, learner: {place: "gpu-[1-4]", gpus: 1, memory: 1.5 GB, spread: true}}
    """
PAIR = """
    ports: {data: x.data, out: y.out}
    nodes: {x: 'toys:Pipe', y: 'toys:Pipe'}
    edges: [x -> y]
    """


@pytest.fixture
def everything(write, checked):
    write(PAIR, "pair.yaml")
    return checked(ALL)


def again(write, text):
    """The resolved graph, read back from another folder."""
    write(text, "elsewhere/resolved.yaml")
    return check(load_graph("elsewhere/resolved.yaml"))


@pytest.mark.slow
def test_a_graph_with_every_feature_is_read(everything):
    problems = [str(p) for p in everything.problems]
    assert problems == []


def test_the_resolved_graph_reads_back_as_the_same_graph(everything, write):
    text = expand(everything.graph)
    back = again(write, text)
    assert [str(p) for p in back.problems] == []
    assert expand(back.graph).partition("\n")[2] == text.partition("\n")[2]
    old, new = everything.graph, back.graph
    names = ("type", "config", "replicas", "on_failure", "torch_threads")
    assert {n: [getattr(s, k) for k in names] for n, s in new.nodes.items()} == {
        n: [getattr(s, k) for k in names] for n, s in old.nodes.items()
    }
    assert new.nodes["buffer"].torch_threads == 3
    assert [(str(e), e.changed_options()) for e in new.edges] == [
        (str(e), e.changed_options()) for e in old.edges
    ]
    assert [(p.paths, p.steps, p.rounds, p.settings) for p in new.phases] == [
        (p.paths, p.steps, p.rounds, p.settings) for p in old.phases
    ]
    for key in ("about", "seed", "torch_threads", "limits", "placements"):
        assert getattr(new, key) == getattr(old, key)
    ours, theirs = everything.program.round, back.program.round
    assert (theirs.order, theirs.firings, theirs.rates) == (ours.order, ours.firings, ours.rates)


def test_origins_are_comments_with_the_location_of_each_value(everything, write):
    text = expand(everything.graph, origins=True)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "batch_size: 4 # g.yaml:12:43" in lines
    assert "size: 100 # default" in lines
    assert "lr: 0.5 # g.yaml:13:46" in lines
    assert (
        expand(again(write, text).graph).splitlines()[1:]
        == expand(everything.graph).splitlines()[1:]
    )


@pytest.mark.parametrize("name", bundled_graphs())
def test_every_bundled_graph_reads_back_as_itself(write, name):
    write("")
    text = expand(load_graph(name).graph)
    assert expand(again(write, text).graph).splitlines()[1:] == text.splitlines()[1:]


def test_the_resolved_graph_is_complete(checked):
    found = checked("nodes: {s: 'toys:Source', t: 'toys:Sink'}\nedges: [s -> t]")
    assert expand(found.graph) == dedent("""\
        # g, resolved: this file alone repeats the run
        seed: 0
        torch_threads: 1

        nodes:
          s:
            type: toys:Source
            rate: 1
            columns: [obs]
          t:
            type: toys:Sink
            rate: 1

        edges:
          - {from: s.out, to: t.data}
        """)


def test_a_resolved_graph_in_another_folder_finds_the_modules_of_the_original(
    write, checked, tmp_path
):
    write("from toys import Source\n", "for_expansion.py")
    found = checked("nodes: {s: 'for_expansion:Source', t: 'toys:Sink'}\nedges: [s -> t]")
    text = expand(found.graph)
    assert f"modules: [{tmp_path}]" in text
    back = again(write, text)
    assert back.problems == []
    assert expand(back.graph).splitlines()[1:] == text.splitlines()[1:]
