"""The envs of an evaluator: linked managers of every kind, its own ones, and what happens when they fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.core.batch import Column
from flowrl.core.context import Context, ServiceExample
from flowrl.core.facts import UnsoundError
from flowrl.core.records import IrregularityRecord, MetricsRecord
from flowrl.graph.loading import load_data
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.env_managers.subprocess_env_managers import SyncSubprocessEnvManager
from flowrl.nodes.env_managers.thread_env_manager import ThreadEnvManager
from flowrl.nodes.env_managers.vector_env_manager import VectorEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.pettingzoo import PettingZoo
from flowrl.nodes.envs.wrappers.rewards import RewardClip
from flowrl.nodes.evaluators.evaluator import Evaluator
from flowrl.runs.evaluation import evaluate_checkpoint
from flowrl.runtime.linked_nodes import context_of
from tests.nodes.env_managers.manager_kinds import KINDS, open_manager
from tests.nodes.toy_policies import Toy, weights
from tests.sites.run_comparison import compare_placements, run_graph

TOYS = "tests.nodes.toy_envs"
FAILING = "tests.nodes.env_managers.failing_envs:FaultyEnv"
COUNTING = Gymnasium(id=f"{TOYS}:CountingEnv")


def evaluator(envs: Any = None, env: Any = COUNTING, **params: Any) -> Evaluator:
    spec = SerialEnvManager(env=env, count=1).spec()
    policy = Toy(obs=spec.obs, action=spec.action)
    given = {"envs": envs} if envs is not None else {"env": env}
    return Evaluator(policy=policy, episodes=7, seed=5, **given, **params)


def records(node: Any, kind: type) -> list[Any]:
    return [record for record in node.ctx.records if isinstance(record, kind)]


@contextmanager
def open_managers(kind: str, counts: Sequence[int], **params: Any) -> Iterator[list[Any]]:
    if not counts:
        yield []
        return
    with (
        open_manager(kind, count=counts[0], **params) as first,
        open_managers(kind, counts[1:], **params) as others,
    ):
        yield [first, *others]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_linked_envs_of_every_kind_play_the_same_episodes_as_its_own(kind: str) -> None:
    own = evaluator(env_count=3)
    expected = [own.eval(weights(1)), own.eval(weights(2))]
    with open_manager(kind, count=3) as envs:
        linked = evaluator(envs)
        assert [linked.eval(weights(1)), linked.eval(weights(2))] == expected


@pytest.mark.parametrize("counts", [[1, 2], [2, 1], [1, 1, 1]])
def test_the_envs_of_several_managers_play_the_same_episodes_as_those_of_one(
    counts: list[int],
) -> None:
    expected = evaluator(env_count=3).eval(weights(1))
    with open_managers("thread", counts) as managers:
        assert evaluator(managers).eval(weights(1)) == expected


def test_agents_of_linked_envs_have_their_own_episodes() -> None:
    env = PettingZoo(id="tests.nodes.envs.agent_envs:NumberedAgents", agents="shared")
    expected = evaluator(env=env, env_count=2).eval(weights(1))
    counts = [
        SerialEnvManager(env=env, count=1, seed=1),
        SerialEnvManager(env=env, count=1, seed=2),
    ]
    assert evaluator(counts, env=env).eval(weights(1)) == expected


def test_a_pool_plays_the_quota_of_each_env() -> None:
    env = Gymnasium(id="CartPole-v1", max_episode_steps=20)
    pool = VectorEnvManager(env=env, count=3)
    node = evaluator(pool, env)
    evaluation = node.eval(weights(1))
    assert [episode.env_id for episode in evaluation.episodes] == [0, 0, 0, 1, 1, 2, 2]
    assert all(episode.length == episode.total > 5 for episode in evaluation.episodes)
    assert node.eval(weights(1)) == evaluation
    pool.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("faults", [("raise", "nan", "reset raises")])
def test_an_evaluation_goes_on_when_envs_fail_and_failures_are_counted(
    kind: str, faults: Sequence[str]
) -> None:
    given = {"probability": 0.3, "max_retry": 20, "retry_waiting_time_s": 0.0}
    with open_manager(kind, FAILING, faults=faults, **given) as envs:
        node = evaluator(envs)
        assert len(node.eval(weights(1)).episodes) == 7
        assert envs.failures.dropped_trajectories > 0
        assert envs.ctx.records


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        ("sync", ("exit", "kill", "segfault")),
        ("sync", ("hang", "reset hangs")),
        ("thread", ("hang", "reset hangs")),
    ],
)
def test_an_evaluation_goes_on_when_envs_hang_or_end_their_process(
    kind: str, faults: Sequence[str]
) -> None:
    given = {"probability": 0.15, "max_retry": 20, "retry_waiting_time_s": 0.0}
    limits = {"step_timeout_s": 0.2, "reset_timeout_s": 0.2} if "hang" in faults else {}
    with open_manager(kind, FAILING, faults=faults, **given, **limits) as envs:
        assert len(evaluator(envs).eval(weights(1)).episodes) == 7
        assert envs.failures.replaced_workers > 0


def like(cls: type[Any], **params: Any) -> Context:
    """The context of an evaluator in a graph whose first manager has these parameters."""
    config = cls.Config(env=COUNTING, **params)
    return Context("evaluator", seed=5, examples={"envs": ServiceExample(cls, config)})


def own_of(context: Context, env: Any = COUNTING) -> Evaluator:
    spec = SerialEnvManager(env=env, count=1).spec()
    policy = Toy(obs=spec.obs, action=spec.action)
    config = Evaluator.Config(env=env, policy=policy, episodes=7, env_count=3)
    return Evaluator(config=config, context=context)


def test_its_own_envs_fail_as_those_of_the_graph_may() -> None:
    env = Gymnasium(id=FAILING, kwargs={"faults": ["raise", "nan"], "probability": 0.3})
    settings = {"max_retry": 20, "retry_waiting_time_s": 0.0}
    node = own_of(like(SerialEnvManager, **settings), env)
    node.fire(weights(1))
    [metrics] = records(node, MetricsRecord)
    assert metrics.values["failures"] == metrics.values["retries"] > 0
    assert "return_mean" in metrics.values
    counted = [r.times for r in records(node, IrregularityRecord) if r.what == "failures"]
    assert sum(counted) == metrics.values["failures"]


@pytest.mark.parametrize("cls", [SyncSubprocessEnvManager, ThreadEnvManager])
def test_its_own_envs_are_of_the_graphs_kind(cls: type[Any]) -> None:
    expected = own_of(Context("evaluator", seed=5)).eval(weights(1))
    node = own_of(like(cls, count=8, max_retry=3, envs_per_worker=2, pre_reset=True))
    try:
        assert type(node.envs) is cls
        config = node.envs.config
        assert (config.count, config.max_retry, config.envs_per_worker) == (3, 3, 2)
        assert not config.pre_reset
        assert node.eval(weights(1)) == expected
    finally:
        node.close()


def test_its_own_envs_are_never_a_pool() -> None:
    assert type(own_of(like(VectorEnvManager)).envs) is SerialEnvManager


def test_in_a_graph_an_evaluator_knows_the_collectors_manager_unless_it_has_a_link() -> None:
    nodes = {"envs": {"type": "thread_env_manager", "max_retry": 4}}
    unlinked = check(load_data({"extends": "cartpole_dqn", "nodes": nodes})).require_sound()
    own = context_of(unlinked, unlinked.graph.nodes["evaluator"], 0, 0).examples["envs"]
    assert own.cls is ThreadEnvManager
    assert own.config.max_retry == 4
    linked = check(load_data(GRAPH)).require_sound()
    contexts = {n: context_of(linked, spec, 0, 0) for n, spec in linked.graph.nodes.items()}
    assert not contexts["evaluator"].examples
    assert contexts["envs"].client_roles == {"collector"}
    assert contexts["eval_envs"].client_roles == {"evaluator"}


GRAPH: dict[str, Any] = {
    "extends": "cartpole_dqn",
    "nodes": {
        "evaluator": {"episodes": 4, "stop_value": None},
        "eval_envs": {"type": "env_manager", "count": 4},
    },
    "edges": ["evaluator <-> eval_envs", {"learner -> evaluator": {"every": 12}}],
}


def with_eval_envs(**params: Any) -> dict[str, Any]:
    nodes = {**GRAPH["nodes"], "eval_envs": {**GRAPH["nodes"]["eval_envs"], **params}}
    return {**GRAPH, "nodes": nodes}


@pytest.mark.slow
def test_linked_envs_change_no_result_in_any_placement(tmp_path: Path) -> None:
    linked = compare_placements(
        GRAPH, tmp_path, "threads", "eval_envs=thread, evaluator=thread", train_iters=30
    )
    nodes = {"evaluator": GRAPH["nodes"]["evaluator"]}
    unlinked = {**GRAPH, "nodes": nodes, "edges": GRAPH["edges"][1:]}
    assert linked.pop("logs/eval_envs.log") == []
    assert linked == run_graph(unlinked, "serial", tmp_path / "unlinked", train_iters=30)
    assert any('"evaluator"' in line for line in linked["metrics.jsonl"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync_subprocess_env_manager", "thread_env_manager"])
def test_linked_envs_in_workers_change_no_result_in_any_placement(
    kind: str, tmp_path: Path
) -> None:
    serial = run_graph(GRAPH, "serial", tmp_path / "own", train_iters=30)
    graph = with_eval_envs(type=kind)
    placements = "processes", "evaluator=process, eval_envs=process"
    assert compare_placements(graph, tmp_path, *placements, train_iters=30) == serial


@pytest.mark.slow
def test_a_run_goes_on_when_linked_envs_fail(tmp_path: Path) -> None:
    env = {"id": FAILING, "kwargs": {"faults": ["raise", "nan"], "probability": 0.7}}
    graph = with_eval_envs(env=env, max_retry=30, retry_waiting_time_s=0.0)
    graph["env"] = {"id": FAILING}
    result = run_graph(graph, "serial", tmp_path / "r", train_iters=30)
    assert result["status"] == "finished"
    assert any("failures" in line for line in result["happened"])
    assert any(
        '"eval_envs"' in line and '"dropped_trajectories"' in line
        for line in result["metrics.jsonl"]
    )


def test_linked_envs_have_the_settings_of_the_evaluation(tmp_path: Path) -> None:
    wrappers = [{"type": "reward_clip", "only": "collect"}]
    graph = {**GRAPH, "env": {"id": "CartPole-v1", "wrappers": wrappers}}
    checked = check(load_data(graph)).require_sound()
    assert checked.deterministic
    envs = SerialEnvManager(
        env=Gymnasium(id="CartPole-v1", wrappers=[RewardClip(only="collect")]),
        context=Context("envs", client_roles=frozenset({"evaluator"})),
    )
    assert envs.part.config.wrappers == ()


def problems(graph: dict[str, Any]) -> str:
    return "\n".join(map(str, check(load_data(graph)).problems))


def test_parameters_of_its_own_envs_are_refused_with_a_link() -> None:
    nodes = {**GRAPH["nodes"], "evaluator": {"env_count": 3}}
    assert "'env_count' has no effect" in problems({**GRAPH, "nodes": nodes})
    with pytest.raises(
        TypeError, match="'env_count' has no effect, because 'envs' takes its place"
    ):
        evaluator(SerialEnvManager(env=COUNTING), env_count=3)
    with pytest.raises(
        UnsoundError, match="it has no env to play in; give it an `env`, or link it"
    ):
        Evaluator(policy=Toy(obs=Column("float32", (3,)), action=Column("int64", n=2)))


def test_the_collectors_envs_cannot_be_the_evaluators_too() -> None:
    graph = {"extends": "cartpole_dqn", "edges": ["evaluator <-> envs"]}
    assert "the service envs.serve has 2 clients" in problems(graph)


def test_what_is_no_manager_is_refused_in_words() -> None:
    with pytest.raises(TypeError, match=r"envs is 3; expected an env manager, such as Serial"):
        evaluator(3)
    with pytest.raises(UnsoundError, match=r"is an env manager; give it as `envs`"):
        evaluator(env=SerialEnvManager(env=COUNTING))


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_in_linked_envs(tmp_path: Path) -> None:
    run_graph(GRAPH, "serial", tmp_path / "r", train_iters=30)
    found = evaluate_checkpoint(tmp_path / "r", episodes=3)
    nodes = {"evaluator": {**GRAPH["nodes"]["evaluator"], "env_count": 4}}
    unlinked = {**GRAPH, "nodes": nodes, "edges": GRAPH["edges"][1:]}
    run_graph(unlinked, "serial", tmp_path / "other", train_iters=30)
    assert evaluate_checkpoint(tmp_path / "other", episodes=3).metrics == found.metrics


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync_subprocess_env_manager", "thread_env_manager"])
def test_a_run_goes_on_when_envs_of_another_site_hang_or_end_their_process(
    kind: str, tmp_path: Path
) -> None:
    faults = ["raise", "nan", "hang", *(["kill", "exit"] if "subprocess" in kind else [])]
    env = {"id": FAILING, "kwargs": {"faults": faults, "probability": 0.7}}
    limits = {"step_timeout_s": 0.3, "max_retry": 30, "retry_waiting_time_s": 0.0}
    graph = {**with_eval_envs(type=kind, env=env, **limits), "env": {"id": FAILING}}
    placement = "evaluator=thread,eval_envs=process"
    result = run_graph(graph, placement, tmp_path / "r", train_iters=30)
    assert result["status"] == "finished"
    assert any(line.startswith("eval_envs: ") and "failures" in line for line in result["happened"])
    assert sum(
        '"return_mean"' in line and '"evaluator"' in line for line in result["metrics.jsonl"]
    )
