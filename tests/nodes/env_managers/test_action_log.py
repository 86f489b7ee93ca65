"""The action log: the actions of each env since it last began afresh, within bounded memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.nodes.env_managers import action_log
from flowrl.nodes.env_managers.action_log import RECENT_ENTRIES, ActionLog
from flowrl.nodes.env_managers.episode_start import EpisodeStart
from tests.quick_selection import examples

COUNT = 3
Episodes = list[list[tuple[EpisodeStart, list[int]]]]  # by env: starts and actions


def logged_episodes(log: ActionLog) -> Episodes:
    found = []
    for index in range(COUNT):
        episodes, complete = log.episodes(index)
        assert complete
        found.append([(start, [int(action) for action in actions]) for start, actions in episodes])
        actions, complete = log.current_episode(index)
        assert complete
        assert [int(action) for action in actions] == found[-1][-1][1]
        assert log.current_start(index) == found[-1][-1][0]
    return found


some_envs = st.lists(st.integers(0, COUNT - 1), unique=True, min_size=1)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("all"), st.none()),
        st.tuples(st.just("some"), some_envs),
        st.tuples(st.just("begin"), st.integers(0, COUNT - 1)),
        st.tuples(st.just("continue"), st.integers(0, COUNT - 1)),
        st.tuples(st.just("restore"), st.integers(0, COUNT - 1)),
    ),
    max_size=60,
)


@examples(150)
@given(operations, st.sampled_from([2, 4, 10, 4096]))
def test_the_log_has_the_actions_of_each_env_and_episode(sequence: Any, recent: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(action_log, "RECENT_ENTRIES", recent)
        log = ActionLog(COUNT)
        expected: Episodes = [[(EpisodeStart(0), [])] for _ in range(COUNT)]
        for number, (what, who) in enumerate(sequence):
            start = EpisodeStart(number, f"options {number}")
            if what in ("all", "some"):
                ids = range(COUNT) if who is None else who
                actions = np.array([10 * number + index for index in ids])
                log.add(None if who is None else np.array(who), actions)
                for index, action in zip(ids, actions.tolist(), strict=True):
                    expected[index][-1][1].append(action)
            elif what == "begin":
                log.begin_afresh(who, start)
                expected[who] = [(start, [])]
            elif what == "continue":
                log.begin_continuing(who, start, len(expected[who][-1][1]))
                expected[who].append((start, []))
            else:
                episodes = [(began, np.array(took, int)) for began, took in expected[who]]
                log.restore(who, episodes)
        assert logged_episodes(log) == expected


def test_the_env_with_most_actions_loses_its_earliest_ones(monkeypatch: Any) -> None:
    monkeypatch.setattr(action_log, "RECENT_ENTRIES", 8)
    monkeypatch.setattr(action_log, "MAX_OLDER_BYTES", 8 * 50)
    log = ActionLog(2)
    for k in range(40):
        log.add(None if k % 4 else np.array([0]), np.full(2 if k % 4 else 1, k))
    actions, complete = log.current_episode(0)
    assert not complete
    assert [int(action) for action in actions] == list(range(40 - len(actions), 40))
    assert not log.episodes(0)[1]
    assert log.current_episode(1)[1]  # the other one is complete
    log.begin_afresh(0, EpisodeStart(7))
    log.add(None, np.array([5, 6]))
    assert log.episodes(0) == ([(EpisodeStart(7), [5])], True)


def test_finished_episodes_are_dropped_from_the_log() -> None:
    log = ActionLog(2)
    for _ in range(50):
        for _ in range(100):
            log.add(None, np.zeros(2, np.int64))
        log.begin_afresh(0, EpisodeStart(1)), log.begin_afresh(1, EpisodeStart(1))
        assert not log._recent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("separately", "steps", "complete"), [(False, 25_000, 3), (True, 50_000, 8)]
)
def test_endless_episodes_take_bounded_memory(
    separately: bool, steps: int, complete: int, monkeypatch: Any
) -> None:
    """Eight envs with three floats per action: 0.3 MB each if stepped together, 75 KB separately."""
    max_bytes = 1 << 20
    monkeypatch.setattr(action_log, "MAX_OLDER_BYTES", max_bytes)
    log, ids = ActionLog(8), np.arange(8)
    tracemalloc.start()
    try:
        for k in range(steps):
            if separately:
                log.add(ids[k % 8 : k % 8 + 1], np.zeros((1, 3), np.float32))
            else:
                log.add(None, np.zeros((8, 3), np.float32))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < max_bytes + RECENT_ENTRIES * 500
    assert sum(log.current_episode(index)[1] for index in range(8)) == complete
