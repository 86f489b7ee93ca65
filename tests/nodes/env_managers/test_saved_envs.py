"""Saved env managers: the histories of their envs are replayed, and the envs continue with the same bits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

from flowrl.nodes.collectors.collector import Collector
from flowrl.nodes.collectors.episode_collector import EpisodeCollector
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.policies.random import Random
from tests.nodes.env_managers.manager_kinds import KINDS, open_manager, steps_are_equal
from tests.nodes.envs.agent_managers import make_manager, scripted_agents
from tests.nodes.envs.game import GAME, make_wrapper

PROCESSES = [kind for kind in KINDS if "sync" in kind]  # slow to start, so they get fewer tests
LOCAL = [kind for kind in KINDS if kind not in PROCESSES]
slow_processes = [pytest.param(kind, marks=pytest.mark.slow) for kind in PROCESSES]
kinds = pytest.mark.parametrize("kind", [*LOCAL, *slow_processes])
local_kinds = pytest.mark.parametrize("kind", LOCAL)
WRAPPERS: dict[str, list[Any]] = {
    "none": [],
    "sticky actions": [make_wrapper("sticky_actions", probability=0.5)],
    "no-ops": [make_wrapper("noop_start", most=4)],
    "frame stack": [make_wrapper("frame_stack", n=3)],
    "previous": [make_wrapper("previous")],
    "lives": [make_wrapper("episodic_life")],
    "lives, behind no-ops": [make_wrapper("noop_start", most=3), make_wrapper("episodic_life")],
    "normalised": [make_wrapper("reward_normalise")],
    "lives, normalised, stacked, limited": [
        make_wrapper("sticky_actions"),
        make_wrapper("episodic_life"),
        make_wrapper("reward_normalise"),
        make_wrapper("noop_start", most=3),
        make_wrapper("frame_stack", n=2),
        make_wrapper("time_limit", steps=7),
    ],
}
QUICK_PAIRS = [("sync", "none"), ("sync", "lives, normalised, stacked, limited")]
PROCESS_WRAPPERS = ("none", "no-ops", "previous")


def kinds_and_wrappers() -> Iterator[Any]:
    """Pairs of a kind and the wrappers that it is tested with."""
    for kind in KINDS:
        for name, parts in WRAPPERS.items():
            spans_episodes = any(type(p).spans_episodes for p in parts)
            if "pre-reset" in kind and spans_episodes:
                continue  # refused
            if kind in LOCAL or (kind, name) in QUICK_PAIRS:
                yield kind, name
            elif kind == "sync" or name in PROCESS_WRAPPERS:
                yield pytest.param(kind, name, marks=pytest.mark.slow)


def open_games(kind: str, wrappers: str = "none") -> AbstractContextManager[Any]:
    """A manager of small games, each with other rewards."""
    each = [{"rewards": [1.0, 0.3, -2.7]}, {"rewards": [0.1, 7.9]}, {"length": 9, "lives": 3}]
    return open_manager(kind, env=Gymnasium(id=GAME, each=each, wrappers=WRAPPERS[wrappers]))


def actions(envs: Any, n: int, seed: int) -> list[Any]:
    column = envs.spec().action
    mode = Random(obs=envs.spec().obs, action=column).collect_mode(seed)
    return [mode.forward(np.zeros(envs.spec().count))["action"] for _ in range(n)]


def play(envs: Any, steps: int, seed: int = 0) -> list[Any]:
    return [envs.advance(action) for action in actions(envs, steps, seed)]


def assert_same_steps(envs: Any, other: Any, steps: int, seed: int = 1) -> None:
    for one, two in zip(play(envs, steps, seed), play(other, steps, seed), strict=True):
        assert steps_are_equal(one, two)


def as_from_file(value: Any) -> Any:
    """The value as it comes back from a file: arrays are copies, everything else is plain data."""
    if isinstance(value, dict):
        return {str(name): as_from_file(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_from_file(one) for one in value]
    assert value is None or isinstance(value, bool | int | float | str | np.ndarray), type(value)
    return value.copy() if isinstance(value, np.ndarray) else value


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "wrappers"), list(kinds_and_wrappers()))
def test_a_restored_manager_continues_with_the_same_bits(kind: str, wrappers: str) -> None:
    """It is saved at random steps, and compared with a serial manager that is not interrupted."""
    cuts = np.random.default_rng(len(kind) * 100 + len(wrappers)).integers(
        1, 60, size=2 if kind in LOCAL else 1
    )
    with open_games(kind, wrappers) as envs, open_games("serial", wrappers) as whole:
        assert np.array_equal(envs.reset(), whole.reset())
        for cut in map(int, cuts):
            play(envs, cut), play(whole, cut)
            state = as_from_file(envs.state_dict())
            # Every kind saves the same.
            assert repr(as_from_file(whole.state_dict())) == repr(state)
            with open_games(kind, wrappers) as other:
                other.load_state_dict(state)
                assert repr(as_from_file(other.state_dict())) == repr(state)
                assert_same_steps(whole, other, 25)
                assert other.failures.unrestored_envs == 0
            play(envs, 25, seed=1)


@kinds
@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Acrobot-v1"])
def test_a_state_of_one_kind_can_be_loaded_by_another(kind: str, id: str) -> None:
    with open_manager("serial", id) as envs, open_manager(kind, id) as other:
        envs.reset()
        play(envs, 37)
        other.load_state_dict(envs.state_dict())
        assert_same_steps(envs, other, 60)
        envs.load_state_dict(other.state_dict())  # and back into a manager that has played
        assert_same_steps(envs, other, 40, seed=2)


@local_kinds
@pytest.mark.parametrize("steps", [0, 1])
def test_a_manager_can_be_saved_right_after_its_reset(kind: str, steps: int) -> None:
    with open_manager(kind) as envs, open_manager(kind) as other:
        envs.reset()
        play(envs, steps)
        other.load_state_dict(envs.state_dict())
        assert_same_steps(envs, other, 20)


@local_kinds
def test_a_manager_can_be_saved_before_its_first_reset(kind: str) -> None:
    with open_manager(kind) as envs, open_manager(kind) as other:
        other.reset()
        other.load_state_dict(envs.state_dict())
        assert np.array_equal(other.reset(), envs.reset())


@kinds
def test_envs_that_are_stepped_separately_can_be_saved(kind: str) -> None:
    with open_manager(kind, length=9) as envs, open_manager(kind, length=9) as other:
        envs.reset()
        for k, action in enumerate(actions(envs, 30, 0)):
            ids = np.array([[0], [1, 2], [2, 0]][k % 3])
            envs.advance(action[: len(ids)], ids)
        other.load_state_dict(envs.state_dict())
        assert_same_steps(envs, other, 40)


@local_kinds
def test_a_launched_manager_continues_with_the_same_ready_envs(kind: str) -> None:
    with open_manager("serial") as envs, open_manager(kind) as other:
        envs.launch(episodes=2)
        while len(envs.ready_obs) == 3:
            envs.step(dict.fromkeys(envs.ready_obs, 1))
        other.load_state_dict(envs.state_dict())
        for one in (envs, other):
            assert not one.done
        while not envs.done:
            ready = envs.ready_obs
            assert repr(other.ready_obs) == repr(ready)
            for one in (envs, other):
                last = one.step(dict.fromkeys(ready, 1))
            assert last is not None
        assert other.done


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*LOCAL, "sync"])
def test_each_agents_reward_scale_is_restored(kind: str) -> None:
    if "pre-reset" in kind:
        wrappers: tuple[Any, ...] = ()
    else:
        wrappers = (make_wrapper("reward_normalise"), make_wrapper("frame_stack", n=2))
    envs, other = (make_manager(scripted_agents(*wrappers), kind) for _ in range(2))
    try:
        envs.launch()
        for _ in range(13):
            envs.step({i: np.ones(1, np.float32) for i in envs.ready_obs})
        other.load_state_dict(as_from_file(envs.state_dict()))
        assert other.failures.unrestored_envs == 0
        for _ in range(20):
            assert repr(other.ready_obs) == repr(envs.ready_obs)
            acts = {i: np.ones(1, np.float32) for i in envs.ready_obs}
            assert repr(envs.step(acts)) == repr(other.step(acts))
    finally:
        envs.close(), other.close()


@local_kinds
def test_with_fixed_seeds_a_reset_after_loading_begins_the_first_episodes(kind: str) -> None:
    with (
        open_manager(kind, dynamic_seeds=False) as envs,
        open_manager(kind, dynamic_seeds=False) as other,
    ):
        first = envs.reset()
        play(envs, 12)
        other.load_state_dict(envs.state_dict())
        assert_same_steps(envs, other, 12)
        assert np.array_equal(other.reset(), first)


@local_kinds
def test_a_manager_with_pending_steps_cannot_be_saved(kind: str) -> None:
    with open_manager(kind) as envs:
        envs.reset()
        envs.send(np.array([1]), np.array([0]))
        with pytest.raises(ValueError, match="steps are pending; receive them before"):
            envs.state_dict()
        envs.recv(np.array([1]))
        assert envs.state_dict()["envs"]["actions"].tolist() == [0]


def test_a_state_with_another_number_of_envs_is_refused() -> None:
    with open_manager("serial", count=3) as envs, open_manager("serial", count=4) as other:
        envs.reset()
        with pytest.raises(ValueError, match="the state is that of 3 envs, and this manager has 4"):
            other.load_state_dict(envs.state_dict())


# failures


FAILING = "tests.nodes.env_managers.failing_envs:FaultyEnv"


@pytest.mark.parametrize("kind", ["serial", "thread"])
def test_attempts_and_counts_of_failures_are_restored(kind: str) -> None:
    failing = {"faults": ("raise",), "probability": 0.6, "retry_waiting_time_s": 0.0}
    with (
        open_manager(kind, FAILING, max_retry=30, **failing) as envs,
        open_manager(kind, FAILING, max_retry=30, **failing) as other,
    ):
        envs.reset()
        play(envs, 40)
        while max(envs._failures.attempts) == 1:
            play(envs, 1)
        other.load_state_dict(envs.state_dict())
        assert other._failures.attempts == envs._failures.attempts
        assert_same_steps(envs, other, 40)
        assert other.failures == envs.failures
        assert envs.failures.retries > 5


UNREPRODUCIBLE = "tests.nodes.env_managers.unreproducible_envs"
CHANGED = ["ChangedReward", "ChangedObservation", "ChangedLength", "RaisesOnce"]


@local_kinds
@pytest.mark.parametrize("cls", CHANGED)
def test_an_env_whose_replay_differs_is_restarted_and_recorded(
    kind: str, cls: str, tmp_path: Any
) -> None:
    """In the replay, its reward, observation or length differs, or it raises."""
    mark = str(tmp_path / "mark")
    path = f"{UNREPRODUCIBLE}:{cls}"
    with open_manager(kind, path, mark=mark) as envs, open_manager(kind, path, mark=mark) as other:
        envs.reset()
        play(envs, 4)
        (tmp_path / "mark").write_text("envs differ from now on")
        other.load_state_dict(envs.state_dict())
        counts = other.failures
        assert (counts.unrestored_envs, counts.dropped_trajectories) == (3, 3)
        assert (counts.dropped_steps, counts.failures, counts.retries) == (12, 0, 0)
        records = [str(record) for record in other.ctx.records]
        assert sum("not restored: " in line for line in records) == 3
        assert any(
            "IrregularityRecord(what='unrestored envs', times=3)" in line for line in records
        )
        invalid = other.advance(np.zeros(3, np.int64))  # this step begins new episodes
        assert list(invalid.failed) == [0, 1, 2]
        assert invalid.obs[:, 1].tolist() == [0, 0, 0]
        after = other.advance(np.zeros(3, np.int64))
        assert list(after.failed) == []
        assert after.next_obs[:, 1].tolist() == [1, 1, 1]


def test_only_the_env_whose_replay_differs_is_restarted() -> None:
    for kind in (*LOCAL, "sync"):
        with open_manager(kind, length=20) as envs, open_manager(kind, length=20) as other:
            envs.reset()
            play(envs, 5)
            state = envs.state_dict()
            state["envs"]["seen"][1] += 1
            other.load_state_dict(state)
            one, two = envs.advance(np.ones(3, int)), other.advance(np.ones(3, int))
            assert list(two.failed) == [1]
            assert np.array_equal(one.obs[[0, 2]], two.obs[[0, 2]])
            assert two.obs[1].tolist() != one.obs[1].tolist()
            assert [episode.env_id for k in range(15) for episode in play(other, 1, k)[0].episodes]


def test_every_kind_restarts_an_unrestored_env_with_the_same_episode() -> None:
    with open_manager("serial") as envs:
        envs.reset()
        state = envs.state_dict()
        state["envs"]["seen"][1] += 1
    seen = []
    for kind in (*LOCAL, "sync, pre-reset"):
        with open_manager(kind) as other:
            other.load_state_dict(state)
            seen.append([step.obs.tolist() for step in play(other, 30)])
    assert all(one == seen[0] for one in seen)


def test_an_episode_whose_actions_were_dropped_is_not_restored(monkeypatch: Any) -> None:
    for name, value in (("RECENT_ENTRIES", 16), ("MAX_OLDER_BYTES", 300)):
        monkeypatch.setattr(f"flowrl.nodes.env_managers.action_log.{name}", value)
    with open_manager("serial", length=500) as envs, open_manager("sync", length=500) as other:
        envs.reset()
        play(envs, 100)
        state = envs.state_dict()
        assert state["envs"]["complete"].tolist() == [False] * 3
        other.load_state_dict(state)
        assert other.failures.unrestored_envs == 3
        assert any("too long to keep" in str(record) for record in other.ctx.records)
        assert list(other.advance(np.zeros(3, int)).failed) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "sync, pre-reset"])
def test_a_worker_that_is_killed_during_the_replay_is_replaced(kind: str, tmp_path: Any) -> None:
    params = {"mark": str(tmp_path / "mark"), "envs_per_worker": 2}
    cls = f"{UNREPRODUCIBLE}:KilledOnce"
    with open_manager(kind, cls, **params) as envs, open_manager(kind, cls, **params) as other:
        envs.reset()
        play(envs, 4)
        (tmp_path / "mark").write_text("the next process that plays is killed")
        other.load_state_dict(envs.state_dict())
        assert not (tmp_path / "mark").exists()
        assert other.failures.unrestored_envs == 0
        assert_same_steps(envs, other, 30)


def test_workers_that_are_replaced_after_loading_are_counted() -> None:
    with open_manager("sync") as envs, open_manager("sync") as other:
        envs.reset()
        other.load_state_dict(envs.state_dict())
        for worker in other.pool.workers:
            os.kill(worker.pid, signal.SIGKILL)
        assert_same_steps(envs, other, 3)
        assert other.failures.replaced_workers == len(other.pool.workers)


@pytest.mark.slow
@pytest.mark.parametrize("wrappers", ["lives", "lives, normalised, stacked, limited"])
def test_carry_over_survives_the_death_of_a_worker(wrappers: str) -> None:
    with open_games("serial", wrappers) as base, open_games("sync", wrappers) as envs:
        base.reset(), envs.reset()
        for k in range(6):
            assert_same_steps(base, envs, 7, seed=k)
            for worker in envs.pool.workers:
                os.kill(worker.pid, signal.SIGKILL)
        assert envs.failures.replaced_workers > 0
        assert envs.failures.dropped_trajectories == 0


def test_pre_reset_refuses_envs_that_carry_data_over() -> None:
    """For the user's own wrappers, this is only known when the envs run."""
    with (
        pytest.raises(Exception, match=r"leave .*pre_reset"),
        open_manager("sync, pre-reset", f"{UNREPRODUCIBLE}:CarriesData") as envs,
    ):
        envs.reset()


# collectors


def collector_params(stepping: str) -> list[tuple[type[Collector], dict[str, Any]]]:
    samples = (SampleCollector, {"n_sample": 20, "stepping": stepping})
    episodes = (EpisodeCollector, {"n_episode": 4})
    return [samples, episodes] if stepping == "together" else [samples]


@pytest.mark.slow
@kinds
@pytest.mark.parametrize("stepping", ["together", "halves"])
def test_a_restored_collector_with_its_envs_collects_the_same_rows(
    kind: str, stepping: str
) -> None:
    for cls, params in collector_params(stepping):
        with open_manager(kind, "CartPole-v1") as envs, open_manager(kind, "CartPole-v1") as others:
            node, other = (
                cls(envs=m, policy=Random(obs=m.spec().obs, action=m.spec().action), **params)
                for m in (envs, others)
            )
            for _ in range(5):
                node.fire(None)
            other.load_state_dict(node.state_dict())
            others.load_state_dict(envs.state_dict())
            for _ in range(8):
                a, b = node.fire(None), other.fire(None)
                assert all(np.array_equal(a[name], b[name]) for name in a)


def test_a_collector_receives_pending_steps_before_its_envs_are_saved() -> None:
    with open_manager("async, received by id", GAME, count=4) as envs:
        policy = Random(obs=envs.spec().obs, action=envs.spec().action)
        make = {"policy": policy, "n_sample": 20, "stepping": "ready"}
        node = SampleCollector(envs=envs, **make)
        for _ in range(3):
            node.fire(None)
        saved = node.state_dict()
        with open_manager("serial", GAME, count=4) as others:
            others.load_state_dict(envs.state_dict())
            other = SampleCollector(envs=others, **make)
            other.load_state_dict(saved)
            assert np.array_equal(other._actor.obs, others.last_obs)
            batches = [other.fire(None) for _ in range(5)]
            assert others.failures.unrestored_envs == 0
            assert sum(len(rows["reward"]) for rows in batches) == 100


def test_a_collector_drops_the_trajectory_of_an_unrestored_env() -> None:
    with open_manager("serial", length=50) as envs, open_manager("serial", length=50) as others:
        policy = Random(obs=envs.spec().obs, action=envs.spec().action)
        node = SampleCollector(envs=envs, policy=policy, n_sample=10)
        other = SampleCollector(envs=others, policy=policy, n_sample=10)
        for _ in range(3):
            node.fire(None)
        state = envs.state_dict()
        state["envs"]["seen"][1] += 1
        others.load_state_dict(state)
        other.load_state_dict(node.state_dict())
        rows = [other.fire(None) for _ in range(4)]
        observed = [obs for batch in rows for obs in batch["obs"].tolist()]
        assert sum(t == 0 for _, t in observed) == 1  # the new episode, from its first step on
