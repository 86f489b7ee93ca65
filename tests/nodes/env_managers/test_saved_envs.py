"""Env managers that are saved: the episodes are played again, and go on as if nothing had been."""

from __future__ import annotations

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
from tests.nodes.envs.test_wrappers import GAME, part

PROCESSES = [kind for kind in KINDS if "sync" in kind]  # slow to start: a few tests for each
HERE = [kind for kind in KINDS if kind not in PROCESSES]
slow_processes = [pytest.param(kind, marks=pytest.mark.slow) for kind in PROCESSES]
kinds = pytest.mark.parametrize("kind", [*HERE, *slow_processes])
kinds_here = pytest.mark.parametrize("kind", HERE)
WRAPPERS: dict[str, list[Any]] = {
    "none": [],
    "sticky actions": [part("sticky_actions", probability=0.5)],
    "no-ops": [part("noop_start", most=4)],
    "frame stack": [part("frame_stack", n=3)],
    "previous": [part("previous")],
    "lives": [part("episodic_life")],
    "lives, behind no-ops": [part("noop_start", most=3), part("episodic_life")],
    "normalised": [part("reward_normalise")],
    "lives, normalised, stacked, limited": [
        part("sticky_actions"),
        part("episodic_life"),
        part("reward_normalise"),
        part("noop_start", most=3),
        part("frame_stack", n=2),
        part("time_limit", steps=7),
    ],
}
QUICK = [("sync", "none"), ("sync", "lives, normalised, stacked, limited")]
FEW = ("none", "no-ops", "previous")


def pairs() -> Iterator[Any]:
    """Kinds and the wrappers that these are tested with."""
    for kind in KINDS:
        for name, parts in WRAPPERS.items():
            across = any(type(p).spans_episodes for p in parts)
            if "pre-reset" in kind and across:
                continue  # they are refused
            if kind in HERE or (kind, name) in QUICK:
                yield kind, name
            elif kind == "sync" or name in FEW:
                yield pytest.param(kind, name, marks=pytest.mark.slow)


def game(kind: str, wrappers: str = "none") -> AbstractContextManager[Any]:
    """A manager of small games, each with rewards of its own."""
    each = [{"rewards": [1.0, 0.3, -2.7]}, {"rewards": [0.1, 7.9]}, {"length": 9, "lives": 3}]
    return open_manager(kind, env=Gymnasium(id=GAME, each=each, wrappers=WRAPPERS[wrappers]))


def actions(envs: Any, n: int, seed: int) -> list[Any]:
    column = envs.spec().action
    mode = Random(obs=envs.spec().obs, action=column).collect_mode(seed)
    return [mode.forward(np.zeros(envs.spec().count))["action"] for _ in range(n)]


def play(envs: Any, steps: int, seed: int = 0) -> list[Any]:
    return [envs.advance(action) for action in actions(envs, steps, seed)]


def goes_on_alike(envs: Any, other: Any, steps: int, seed: int = 1) -> None:
    for one, two in zip(play(envs, steps, seed), play(other, steps, seed), strict=True):
        assert steps_are_equal(one, two)


def plain(value: Any) -> Any:
    """As it comes back from a file: arrays are copies, and what is no array is plain data."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    assert value is None or isinstance(value, bool | int | float | str | np.ndarray), type(value)
    return value.copy() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize(("kind", "wrappers"), list(pairs()))
def test_it_goes_on_from_there(kind: str, wrappers: str) -> None:
    """Cut where nobody chose to, in one kind; the other one is in this process."""
    cuts = np.random.default_rng(len(kind) * 100 + len(wrappers)).integers(
        1, 60, size=2 if kind in HERE else 1
    )
    with game(kind, wrappers) as envs, game("serial", wrappers) as whole:
        assert np.array_equal(envs.reset(), whole.reset())
        for cut in map(int, cuts):
            play(envs, cut), play(whole, cut)
            state = plain(envs.state_dict())
            assert repr(plain(whole.state_dict())) == repr(state)  # whichever kind saves it
            with game(kind, wrappers) as other:
                other.load_state_dict(state)
                assert repr(plain(other.state_dict())) == repr(state)
                goes_on_alike(whole, other, 25)
                assert other.failures.unrestored_envs == 0
            play(envs, 25, seed=1)


@kinds
@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Acrobot-v1"])
def test_what_one_kind_saved_another_loads(kind: str, id: str) -> None:
    with open_manager("serial", id) as envs, open_manager(kind, id) as other:
        envs.reset()
        play(envs, 37)
        other.load_state_dict(envs.state_dict())
        goes_on_alike(envs, other, 60)
        envs.load_state_dict(other.state_dict())  # and back, over what it was
        goes_on_alike(envs, other, 40, seed=2)


@kinds_here
@pytest.mark.parametrize("steps", [0, 1])
def test_one_that_has_hardly_begun_is_saved_too(kind: str, steps: int) -> None:
    with open_manager(kind) as envs, open_manager(kind) as other:
        envs.reset()
        play(envs, steps)
        other.load_state_dict(envs.state_dict())
        goes_on_alike(envs, other, 20)


@kinds_here
def test_one_that_has_not_begun_is_saved_as_that(kind: str) -> None:
    with open_manager(kind) as envs, open_manager(kind) as other:
        other.reset()
        other.load_state_dict(envs.state_dict())
        assert np.array_equal(other.reset(), envs.reset())


@kinds
def test_envs_that_are_stepped_apart_are_saved_too(kind: str) -> None:
    with open_manager(kind, length=9) as envs, open_manager(kind, length=9) as other:
        envs.reset()
        for k, action in enumerate(actions(envs, 30, 0)):
            ids = np.array([[0], [1, 2], [2, 0]][k % 3])
            envs.advance(action[: len(ids)], ids)
        other.load_state_dict(envs.state_dict())
        goes_on_alike(envs, other, 40)


@kinds_here
def test_by_hand_it_goes_on_with_the_same_envs_to_play(kind: str) -> None:
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


@pytest.mark.parametrize("kind", [*HERE, "sync"])
def test_agents_that_share_a_policy_go_on_too_each_with_its_own_unit(kind: str) -> None:
    if "pre-reset" in kind:
        wrappers: tuple[Any, ...] = ()
    else:
        wrappers = (part("reward_normalise"), part("frame_stack", n=2))
    envs, other = (make_manager(scripted_agents(*wrappers), kind) for _ in range(2))
    try:
        envs.launch()
        for _ in range(13):
            envs.step({i: np.ones(1, np.float32) for i in envs.ready_obs})
        other.load_state_dict(plain(envs.state_dict()))
        assert other.failures.unrestored_envs == 0
        for _ in range(20):
            assert repr(other.ready_obs) == repr(envs.ready_obs)
            acts = {i: np.ones(1, np.float32) for i in envs.ready_obs}
            assert repr(envs.step(acts)) == repr(other.step(acts))
    finally:
        envs.close(), other.close()


@kinds_here
def test_with_fixed_seeds_a_reset_begins_the_same_list_again(kind: str) -> None:
    with (
        open_manager(kind, dynamic_seeds=False) as envs,
        open_manager(kind, dynamic_seeds=False) as other,
    ):
        first = envs.reset()
        play(envs, 12)
        other.load_state_dict(envs.state_dict())
        goes_on_alike(envs, other, 12)
        assert np.array_equal(other.reset(), first)


@kinds_here
def test_while_a_step_is_under_way_nothing_is_saved(kind: str) -> None:
    with open_manager(kind) as envs:
        envs.reset()
        envs.send(np.array([1]), np.array([0]))
        with pytest.raises(ValueError, match="steps are under way; receive them before"):
            envs.state_dict()
        envs.recv(np.array([1]))
        assert envs.state_dict()["envs"]["actions"].tolist() == [0]


def test_a_state_of_other_envs_is_refused() -> None:
    with open_manager("serial", count=3) as envs, open_manager("serial", count=4) as other:
        envs.reset()
        with pytest.raises(ValueError, match="3 envs were saved, and there are 4; have as many"):
            other.load_state_dict(envs.state_dict())


# failures


FAILING = "tests.nodes.env_managers.failing_envs:FaultyEnv"


@pytest.mark.parametrize("kind", ["serial", "thread"])
def test_attempts_and_counts_go_on(kind: str) -> None:
    """A third attempt is the third one, restored or not."""
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
        goes_on_alike(envs, other, 40)
        assert other.failures == envs.failures
        assert envs.failures.retries > 5


UNREPRODUCIBLE = "tests.nodes.env_managers.unreproducible_envs"
CHANGED = ["ChangedReward", "ChangedObservation", "ChangedLength", "RaisesOnce"]


@kinds_here
@pytest.mark.parametrize("cls", CHANGED)
def test_an_env_that_does_not_keep_to_its_seed_begins_anew_and_that_is_told(
    kind: str, cls: str, tmp_path: Any
) -> None:
    """It gives other rewards, sees something else, ends, or fails, where it is played again."""
    mark = str(tmp_path / "mark")
    path = f"{UNREPRODUCIBLE}:{cls}"
    with open_manager(kind, path, mark=mark) as envs, open_manager(kind, path, mark=mark) as other:
        envs.reset()
        play(envs, 4)
        (tmp_path / "mark").write_text("from now on it differs")
        other.load_state_dict(envs.state_dict())
        counts = other.failures
        assert (counts.unrestored_envs, counts.dropped_trajectories) == (3, 3)
        assert (counts.dropped_steps, counts.failures, counts.retries) == (12, 0, 0)
        told = [str(record) for record in other.ctx.records]
        assert sum("it is not restored, and is begun anew" in line for line in told) == 3
        assert any("IrregularityRecord(what='unrestored envs', times=3)" in line for line in told)
        void = other.advance(np.zeros(3, np.int64))  # their step is void: a new episode begins
        assert list(void.failed) == [0, 1, 2]
        assert void.obs[:, 1].tolist() == [0, 0, 0]
        after = other.advance(np.zeros(3, np.int64))
        assert list(after.failed) == []
        assert after.next_obs[:, 1].tolist() == [1, 1, 1]


def test_only_the_env_that_cannot_be_restored_begins_anew() -> None:
    for kind in (*HERE, "sync"):
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


def test_every_kind_begins_the_same_episode_where_one_is_not_restored() -> None:
    with open_manager("serial") as envs:
        envs.reset()
        state = envs.state_dict()
        state["envs"]["seen"][1] += 1
    seen = []
    for kind in (*HERE, "sync, pre-reset"):
        with open_manager(kind) as other:
            other.load_state_dict(state)
            seen.append([step.obs.tolist() for step in play(other, 30)])
    assert all(one == seen[0] for one in seen)


def test_an_episode_too_long_to_be_kept_is_not_restored(monkeypatch: Any) -> None:
    for name, value in (("RECENT", 16), ("MOST_BYTES", 300)):
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


@pytest.mark.parametrize("kind", ["sync", "sync, pre-reset"])
def test_a_worker_that_is_killed_while_its_envs_are_restored_costs_time_only(
    kind: str, tmp_path: Any
) -> None:
    params = {"mark": str(tmp_path / "mark"), "envs_per_worker": 2}
    cls = f"{UNREPRODUCIBLE}:KilledOnce"
    with open_manager(kind, cls, **params) as envs, open_manager(kind, cls, **params) as other:
        envs.reset()
        play(envs, 4)
        (tmp_path / "mark").write_text("the next who plays is killed")
        other.load_state_dict(envs.state_dict())
        assert not (tmp_path / "mark").exists()
        assert other.failures.unrestored_envs == 0
        goes_on_alike(envs, other, 30)


@pytest.mark.parametrize("wrappers", ["lives", "lives, normalised, stacked, limited"])
def test_a_killed_worker_does_not_lose_what_envs_carry_across_episodes(wrappers: str) -> None:
    with game("serial", wrappers) as base, game("sync", wrappers) as envs:
        base.reset(), envs.reset()
        for k in range(6):
            goes_on_alike(base, envs, 7, seed=k)
            for worker in envs._crew.workers:
                worker._process.kill()
        assert envs.failures.replaced_workers > 0
        assert envs.failures.dropped_trajectories == 0


def test_what_is_carried_must_not_be_lost_by_resetting_ahead() -> None:
    """Of a wrapper of one's own, this is known only once it runs."""
    with (
        pytest.raises(Exception, match=r"leave .*pre_reset"),
        open_manager("sync, pre-reset", f"{UNREPRODUCIBLE}:CarriesData") as envs,
    ):
        envs.reset()


# collectors


def collectors(stepping: str) -> list[tuple[type[Collector], dict[str, Any]]]:
    samples = (SampleCollector, {"n_sample": 20, "stepping": stepping})
    episodes = (EpisodeCollector, {"n_episode": 4})
    return [samples, episodes] if stepping == "together" else [samples]


@kinds
@pytest.mark.parametrize("stepping", ["together", "halves"])
def test_a_collector_and_its_envs_go_on_with_the_same_rows(kind: str, stepping: str) -> None:
    for cls, params in collectors(stepping):
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


def test_as_ready_a_collector_receives_what_is_under_way_before_its_envs_are_saved() -> None:
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
            assert np.array_equal(other._actor.obs, others._seen)
            given = [other.fire(None) for _ in range(5)]
            assert others.failures.unrestored_envs == 0
            assert sum(len(rows["reward"]) for rows in given) == 100


def test_a_collector_drops_the_trajectory_of_an_env_that_is_not_restored() -> None:
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
        of_it = [step for batch in rows for step in batch["obs"].tolist()]
        seeds = [seed for seed, _ in of_it]
        begun = [step for step in of_it if seeds.count(step[0]) and step[1] == 0]
        assert len(begun) == 1  # the new episode, from its first step on
