"""A collector with several env managers acts as with one manager of all envs."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrl
from flowrl.core.batch import Column
from flowrl.core.errors import FlowError, GraphError
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.nodes.collectors.episode_collector import EpisodeCollector
from flowrl.nodes.collectors.joined_managers import JoinedManagers, join_managers, join_specs
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.envs.spec import EnvSpec
from tests.nodes.scripted_envs import ScriptedEnvs
from tests.nodes.toy_policies import Toy, weights


def slow(value: str) -> Any:
    """A parameter for slow tests."""
    return pytest.param(value, marks=pytest.mark.slow)


LENGTHS = [[3, 5], [2], [7, 1], [4], [6, 2]]
FAILS = {(0, 0): 2, (3, 1): 1, (4, 0): 5}


def split_envs(splits: list[int]) -> list[ScriptedEnvs]:
    """The same envs, split among several managers."""
    bounds = [0, *sorted(splits), len(LENGTHS)]
    return [
        EnvsOfLargerManager(
            first, LENGTHS[first:last], {(e - first, k): t for (e, k), t in FAILS.items()}
        )
        for first, last in pairwise(bounds)
        if last > first
    ]


class EnvsOfLargerManager(ScriptedEnvs):
    """Observes the env's index among the envs of all managers."""

    def __init__(self, first: int, *args: Any) -> None:
        super().__init__(*args)
        self.first = first

    def observe(self, at: Any) -> Any:
        return super().observe(at) + np.array([self.first, 0, 0], np.float32)


def collector(envs: Any, cls: Any = SampleCollector, **params: Any) -> Any:
    spec = join_managers(envs).spec()
    policy = Toy(obs=spec.obs, action=spec.action, nstep=2)
    return cls(envs=envs, policy=policy, **params)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 4), max_size=3), st.sampled_from(["together", "halves"]))
def test_rows_do_not_depend_on_the_number_of_managers(splits: list[int], stepping: str) -> None:
    one = collector(ScriptedEnvs(LENGTHS, FAILS), n_sample=13, stepping=stepping)
    many = collector(split_envs(splits), n_sample=13, stepping=stepping)
    for _ in range(5):
        a, b = one.fire(weights(1)), many.fire(weights(1))
        assert one.ctx.take_count() == many.ctx.take_count()
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_episodes_do_not_depend_on_the_number_of_managers() -> None:
    one = collector(ScriptedEnvs(LENGTHS, FAILS), EpisodeCollector, n_episode=7)
    many = collector(split_envs([2, 3]), EpisodeCollector, n_episode=7)
    for _ in range(3):
        a, b = one.fire(weights(1)), many.fire(weights(1))
        assert all(np.array_equal(a[name], b[name]) for name in set(a) - {"logp"})


def test_with_ready_no_step_is_lost_and_no_manager_is_left_out() -> None:
    managers = split_envs([2, 3])
    node = collector(managers, n_sample=20, stepping="ready", least=2)
    given = [tuple(s) for _ in range(6) for s in node.fire(weights(0))["obs"].tolist()]
    assert len(set(given)) == len(given) == 120
    assert {s[0] for s in given} == set(range(5))


def test_steps_are_received_in_the_order_of_the_ids() -> None:
    whole = JoinedManagers(split_envs([2]))
    whole.reset()
    ids = np.array([4, 0, 3, 1])
    whole.send(ids, np.zeros(4))
    at, steps = whole.recv(np.array([3, 4, 1, 0]))
    assert at.tolist() == steps.obs[:, 0].tolist() == [3, 4, 1, 0]
    whole.send(ids, np.zeros(4))
    at, steps = whole.recv(ids)
    assert [int(at[k]) for k in steps.failed] == [0]  # env 0 fails in its second step


def test_all_managers_step_before_the_first_wait() -> None:
    managers, log = split_envs([2, 3]), []
    for number, manager in enumerate(managers):
        send, recv = manager.send, manager.recv
        manager.send = lambda *a, s=send, n=number: (log.append(("send", n)), s(*a))[1]
        manager.recv = lambda *a, r=recv, n=number: (log.append(("recv", n)), r(*a))[1]
    whole = JoinedManagers(managers)
    whole.reset()
    whole.advance(np.zeros(5))
    assert [what for what, _ in log] == ["send"] * 3 + ["recv"] * 3


def test_managers_of_different_envs_are_refused() -> None:
    spec = EnvSpec(Column("float32", (3,)), Column("int64", n=3), 2)
    other = EnvSpec(Column("float32", (4,)), Column("int64", n=3), 2)
    assert join_specs([spec, spec]).count == 4
    with pytest.raises(UnsoundError, match="env managers differ"):
        join_specs([spec, other])
    config = SampleCollector.Config(policy=Toy(obs=spec.obs, action=spec.action))
    with pytest.raises(UnsoundError, match="link managers of the same kind of env"):
        SampleCollector.describe(config, Surroundings({}, {"envs": [spec, other]}, frozenset()))


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


@pytest.mark.slow
def test_a_graph_links_a_collector_to_several_managers(tmp_path: Path) -> None:
    graph = tmp_path / "many.yaml"
    graph.write_text(GRAPH.replace("STEPPING", "together"))
    loaded = flowrl.load(str(graph))
    result = loaded.run(train_iters=2, out=tmp_path / "run")
    assert result.env_steps == 512
    resolved = flowrl.load(str(tmp_path / "run" / "graph.yaml"))
    assert resolved.run(train_iters=2, out=tmp_path / "again").digest == result.digest


def test_a_link_for_one_service_refuses_several(tmp_path: Path) -> None:
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


GATED = """
extends: cartpole_ppo
env: {id: "tests.nodes.toy_envs:GatedEnv", kwargs: {role: plays, gate: GATE, after: 30}}
nodes:
  envs: {type: KIND, count: 1, env: {kwargs: {role: FIRST}}}
  more: {type: env_manager, count: 2, env: {kwargs: {role: opens}}}
  collector: {stepping: ready, n_sample: 128}
  evaluator: {episodes: 1}
edges:
  - envs, more <-> collector
"""
APART = {
    "threads": "collector=main,envs=thread:a,more=thread:b",
    "processes": "collector=main,envs=process:a,more=process:b",
    "this site and another": "collector=main,envs=thread:a,more=main",
}


def gated_graph(tmp_path: Path, first: str = "waits", kind: str = "env_manager") -> Any:
    """A graph whose first env waits until another env has taken thirty steps."""
    os.mkfifo(tmp_path / "gate")
    graph = tmp_path / "gated_graph.yaml"
    named = {"GATE": str(tmp_path / "gate"), "FIRST": first, "KIND": kind}
    text = GATED
    for word, value in named.items():
        text = text.replace(word, value)
    graph.write_text(text)
    return flowrl.load(str(graph))


@pytest.mark.slow
@pytest.mark.parametrize("where", APART)
def test_a_slow_manager_does_not_delay_a_ready_one(where: str, tmp_path: Path) -> None:
    result = gated_graph(tmp_path).run(placement=APART[where], steps=128, out=tmp_path / "run")
    assert result.env_steps == 128


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread_env_manager", slow("sync_subprocess_env_manager")])
@pytest.mark.parametrize("other", ["env_manager", "thread_env_manager"])
@pytest.mark.parametrize("where", ["serial", "collector=main,envs=main,more=thread:b"])
def test_a_manager_with_slow_workers_does_not_delay_a_ready_one(
    kind: str, other: str, where: str, tmp_path: Path
) -> None:
    graph = gated_graph(tmp_path, kind=kind)
    result = graph.run(placement=where, steps=128, out=tmp_path / "run", set={"more.type": other})
    assert result.env_steps == 128


@pytest.mark.slow
def test_a_manager_that_dies_during_a_wait_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(FlowError, match="SIGKILL"):
        gated_graph(tmp_path, first="dies").run(
            placement=APART["processes"], steps=128, out=tmp_path / "run"
        )


class RemoteEnvs(ScriptedEnvs):
    """Envs as on another site; a test decides when a call is answered."""

    answers = False

    def begin(self, method: str, *arguments: Any) -> Any:
        self.call = SimpleNamespace(
            ready=lambda: self.answers, take=lambda: getattr(self, method)(*arguments)
        )
        return self.call


def test_steps_received_early_are_kept_for_a_receive_by_id() -> None:
    near, far = ScriptedEnvs([[9]]), RemoteEnvs([[9], [9]])
    whole = JoinedManagers([near, far])
    whole.reset()
    whole.send(np.arange(3), np.zeros(3))
    assert whole.recv()[0].tolist() == [0]  # the other manager has not answered yet
    with pytest.raises(ValueError, match="not all pending envs of their managers; name all"):
        whole.recv(np.array([2]))
    whole.send(np.array([0, 1, 2]), np.zeros(3))
    assert whole.recv()[0].tolist() == [0]
    at, steps = whole.recv(np.array([2, 1]))
    assert at.tolist() == [2, 1]
    assert steps.reward.shape == (2,)
    with pytest.raises(ValueError, match="no env was sent"):
        whole.recv()


def test_a_reset_receives_requested_steps_first() -> None:
    near, far = ScriptedEnvs([[9]]), RemoteEnvs([[9], [9]])
    whole = JoinedManagers([near, far])
    first = whole.reset()
    whole.send(np.arange(3), np.zeros(3))
    whole.recv()
    assert whole.reset().shape == first.shape
    assert not whole.pending


@pytest.mark.slow
@pytest.mark.parametrize("stepping", ["together", "halves", "independent"])
def test_managers_on_other_threads_have_the_same_digest(stepping: str, tmp_path: Path) -> None:
    assert_digests_equal(["serial", "threads"], stepping, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("stepping", ["halves", "independent"])
def test_managers_on_other_sites_have_the_same_digest(stepping: str, tmp_path: Path) -> None:
    """The collector is a central inference server for envs on two other sites."""
    assert_digests_equal(["serial", "apart"], stepping, tmp_path)


def assert_digests_equal(places: list[str], stepping: str, tmp_path: Path) -> None:
    """Check that all placements have the same digest; `independent` has that of `together`."""
    graph = tmp_path / "many.yaml"
    digests = set()
    for place in places:
        ways = {"independent": ["independent", "together"]}.get(stepping, [stepping])
        for way in ways:
            graph.write_text(GRAPH.replace("STEPPING", way))
            loaded = flowrl.load(str(graph))
            run = loaded.run(placement=place, train_iters=2, out=tmp_path / f"{place}-{way}")
            digests.add(run.digest)
    assert len(digests) == 1
