"""Several env managers behind one collector: as if all envs were one manager's."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrl
from flowrl.batch import Column
from flowrl.errors import GraphError
from flowrl.node import Known, Unsound
from flowrl.nodes.collectors.episode_collector import EpisodeCollector
from flowrl.nodes.collectors.fleet import Fleet, fleet, joined
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.envs.spec import EnvSpec
from tests.nodes.scripted_envs import ScriptedEnvs
from tests.nodes.toy_policies import Toy, weights

LENGTHS = [[3, 5], [2], [7, 1], [4], [6, 2]]
FAILS = {(0, 0): 2, (3, 1): 1, (4, 0): 5}


def apart(cuts: list[int]) -> list[ScriptedEnvs]:
    """The same envs, dealt to several managers."""
    bounds = [0, *sorted(cuts), len(LENGTHS)]
    return [
        Shifted(first, LENGTHS[first:last], {(e - first, k): t for (e, k), t in FAILS.items()})
        for first, last in pairwise(bounds)
        if last > first
    ]


class Shifted(ScriptedEnvs):
    """Observes the env's number among all."""

    def __init__(self, first: int, *args: Any) -> None:
        super().__init__(*args)
        self.first = first

    def _obs(self, at: Any) -> Any:
        return super()._obs(at) + np.array([self.first, 0, 0], np.float32)


def collector(envs: Any, cls: Any = SampleCollector, **params: Any) -> Any:
    spec = fleet(envs).spec()
    policy = Toy(obs=spec.obs, action=spec.action, nstep=2)
    return cls(envs=envs, policy=policy, **params)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 4), max_size=3), st.sampled_from(["together", "halves"]))
def test_rows_do_not_tell_how_many_managers_there_are(cuts: list[int], stepping: str) -> None:
    one = collector(ScriptedEnvs(LENGTHS, FAILS), n_sample=13, stepping=stepping)
    many = collector(apart(cuts), n_sample=13, stepping=stepping)
    for _ in range(5):
        a, b = one.fire(weights(1)), many.fire(weights(1))
        assert one.ctx.take_count() == many.ctx.take_count()
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_episodes_do_not_tell_either() -> None:
    one = collector(ScriptedEnvs(LENGTHS, FAILS), EpisodeCollector, n_episode=7)
    many = collector(apart([2, 3]), EpisodeCollector, n_episode=7)
    for _ in range(3):
        a, b = one.fire(weights(1)), many.fire(weights(1))
        assert all(np.array_equal(a[name], b[name]) for name in set(a) - {"logp"})


def test_as_ready_no_step_is_lost_and_no_manager_forgotten() -> None:
    managers = apart([2, 3])
    node = collector(managers, n_sample=20, stepping="ready", least=2)
    given = [tuple(s) for _ in range(6) for s in node.fire(weights(0))["obs"].tolist()]
    assert len(set(given)) == len(given) == 120
    assert {s[0] for s in given} == set(range(5))


def test_rows_are_received_in_the_order_that_was_asked_for() -> None:
    whole = Fleet(apart([2]))
    whole.reset()
    ids = np.array([4, 0, 3, 1])
    whole.send(ids, np.zeros(4))
    at, steps = whole.recv(np.array([3, 4, 1, 0]))
    assert at.tolist() == steps.obs[:, 0].tolist() == [3, 4, 1, 0]
    whole.send(ids, np.zeros(4))
    at, steps = whole.recv(ids)
    assert [int(at[k]) for k in steps.broken] == [0]  # env 0 fails in its second step


def test_all_managers_step_before_any_is_waited_for() -> None:
    managers, log = apart([2, 3]), []
    for number, manager in enumerate(managers):
        send, recv = manager.send, manager.recv
        manager.send = lambda *a, s=send, n=number: (log.append(("send", n)), s(*a))[1]
        manager.recv = lambda *a, r=recv, n=number: (log.append(("recv", n)), r(*a))[1]
    whole = Fleet(managers)
    whole.reset()
    whole.advance(np.zeros(5))
    assert [what for what, _ in log] == ["send"] * 3 + ["recv"] * 3


def test_one_policy_does_not_act_in_unlike_envs() -> None:
    spec = EnvSpec(Column("float32", (3,)), Column("int64", n=3), 2)
    other = EnvSpec(Column("float32", (4,)), Column("int64", n=3), 2)
    assert joined([spec, spec]).count == 4
    with pytest.raises(Unsound, match="env managers differ"):
        joined([spec, other])
    config = SampleCollector.Config(policy=Toy(obs=spec.obs, action=spec.action))
    with pytest.raises(Unsound, match="link managers of like envs"):
        SampleCollector.describe(config, Known({}, {"envs": [spec, other]}, frozenset()))


GRAPH = """
extends: cartpole_ppo
nodes:
  envs: {count: 3}
  more: {type: env_manager, count: 5}
  evaluator: {episodes: 2}
  collector: {stepping: STEPPING}
edges:
  - envs, more <-> collector
placements:
  apart: {envs: "process:a", more: "process:b"}
"""


def test_a_graph_links_a_collector_to_several_managers(tmp_path: Path) -> None:
    graph = tmp_path / "many.yaml"
    graph.write_text(GRAPH.replace("STEPPING", "together"))
    loaded = flowrl.load(str(graph))
    result = loaded.run(train_iters=2, out=tmp_path / "run")
    assert result.env_steps == 512
    resolved = flowrl.load(str(tmp_path / "run" / "graph.yaml"))
    assert resolved.run(train_iters=2, out=tmp_path / "again").digest == result.digest


def test_a_link_of_one_service_takes_no_more(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(
        "from flowrl import In, Link, Node, StateIn, Out\n"
        "class Alone(Node):\n"
        "    envs = Link('env_manager')\n"
        "    out = Out('samples')\n"
        "    def fire(self): return None\n"
    )
    graph = tmp_path / "alone.yaml"
    graph.write_text(
        "env: {id: CartPole-v1}\n"
        "nodes: {a: env_manager, b: env_manager, alone: 'alone:Alone', w: {type: npz_writer, path: x}}\n"
        "edges: ['a, b <-> alone', alone -> w]\n"
    )
    with pytest.raises(GraphError, match=r"the link alone.envs has one service"):
        flowrl.load(str(graph)).run(out=tmp_path / "run", steps=1)


@pytest.mark.slow
@pytest.mark.parametrize("stepping", ["together", "halves"])
def test_managers_on_other_sites_give_the_same_bits(stepping: str, tmp_path: Path) -> None:
    """One policy in one place, envs in two others: a central inference server."""
    graph = tmp_path / "many.yaml"
    graph.write_text(GRAPH.replace("STEPPING", stepping))
    loaded = flowrl.load(str(graph))
    digests = {
        loaded.run(placement=place, train_iters=4, out=tmp_path / place).digest
        for place in ("serial", "threads", "apart")
    }
    assert len(digests) == 1
