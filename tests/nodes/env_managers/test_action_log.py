"""The log of actions: what an env did since it last began afresh, however long ago that was."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.nodes.env_managers import action_log
from flowrl.nodes.env_managers.action_log import RECENT, ActionLog

COUNT = 3
Chains = list[list[tuple[int, list[int]]]]


def told(log: ActionLog) -> Chains:
    found = []
    for index in range(COUNT):
        episodes, complete = log.episodes(index)
        assert complete
        found.append([(seed, [int(action) for action in actions]) for seed, actions in episodes])
        actions, complete = log.of(index)
        assert complete
        assert [int(action) for action in actions] == found[-1][-1][1]
    return found


steps = st.lists(st.integers(0, COUNT - 1), unique=True, min_size=1)
deferred_effects = st.lists(
    st.one_of(
        st.tuples(st.just("all"), st.none()),
        st.tuples(st.just("some"), steps),
        st.tuples(st.just("begin"), st.integers(0, COUNT - 1)),
        st.tuples(st.just("go on"), st.integers(0, COUNT - 1)),
        st.tuples(st.just("restore"), st.integers(0, COUNT - 1)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(deferred_effects, st.sampled_from([2, 4, 10, 4096]))
def test_it_tells_what_each_env_did_in_each_of_its_episodes(done: Any, recent: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(action_log, "RECENT", recent)
        log, expected = ActionLog(COUNT), [[(0, [])] for _ in range(COUNT)]
        for number, (what, who) in enumerate(done):
            if what in ("all", "some"):
                ids = range(COUNT) if who is None else who
                actions = np.array([10 * number + index for index in ids])
                log.add(None if who is None else np.array(who), actions)
                for index, action in zip(ids, actions.tolist(), strict=True):
                    expected[index][-1][1].append(action)
            elif what == "begin":
                log.begin(who, number)
                expected[who] = [(number, [])]
            elif what == "go on":
                log.go_on(who, number, len(expected[who][-1][1]))
                expected[who].append((number, []))
            else:
                episodes = [(seed, np.array(took, int)) for seed, took in expected[who]]
                log.restore(who, episodes)
        assert told(log) == expected


def test_who_has_most_loses_the_beginning_and_it_is_said(monkeypatch: Any) -> None:
    monkeypatch.setattr(action_log, "RECENT", 8)
    monkeypatch.setattr(action_log, "MOST_BYTES", 8 * 50)
    log = ActionLog(2)
    for k in range(40):
        log.add(None if k % 4 else np.array([0]), np.full(2 if k % 4 else 1, k))
    actions, complete = log.of(0)
    assert not complete
    assert [int(action) for action in actions] == list(range(40 - len(actions), 40))
    assert not log.episodes(0)[1]
    assert log.of(1)[1]  # the other one is whole
    log.begin(0, 7)
    log.add(None, np.array([5, 6]))
    assert log.episodes(0) == ([(7, [5])], True)


def test_a_shared_log_of_short_episodes_holds_only_these() -> None:
    log = ActionLog(2)
    for _ in range(50):
        for _ in range(100):
            log.add(None, np.zeros(2, np.int64))
        log.begin(0, 1), log.begin(1, 1)
        assert not log._recent


@pytest.mark.parametrize(("apart", "steps", "whole"), [(False, 100_000, 3), (True, 200_000, 8)])
def test_episodes_without_end_take_bounded_memory(
    apart: bool, steps: int, whole: int, monkeypatch: Any
) -> None:
    """Eight envs, three real numbers to an action: 1.2 MB each, stepped together; 0.3 MB apart."""
    most = 4 << 20
    monkeypatch.setattr(action_log, "MOST_BYTES", most)
    log, ids = ActionLog(8), np.arange(8)
    tracemalloc.start()
    try:
        for k in range(steps):
            if apart:
                log.add(ids[k % 8 : k % 8 + 1], np.zeros((1, 3), np.float32))
            else:
                log.add(None, np.zeros((8, 3), np.float32))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < most + RECENT * 500
    assert sum(log.of(index)[1] for index in range(8)) == whole
