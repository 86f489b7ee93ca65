"""The successors of rows within tokens and across them, compared with lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.nodes.buffers.episodes.segments import SegmentIndex
from flowrl.nodes.origin import COLLECTOR_COLUMN, ENV_COLUMN, STEP_COLUMN

Token = list[tuple[int, int, bool]]  # (env, step, whether the episode ends)


def columns(token: Token) -> dict[str, np.ndarray]:
    env = np.array([e for e, _, _ in token], np.int32)
    done = np.array([d for _, _, d in token], bool)
    apart = np.append(env[1:] != env[:-1], True)
    return {
        "last": done | apart,
        "terminated": done,
        "truncated": np.zeros(len(token), bool),
        COLLECTOR_COLUMN: np.zeros(len(token), np.int32),
        ENV_COLUMN: env,
        STEP_COLUMN: np.array([s for _, s, _ in token], np.int64),
    }


def tokens(rng: np.random.Generator, envs: int, count: int) -> list[Token]:
    """Make tokens in which each env takes some steps; sometimes a step is missing."""
    steps, found = [0] * envs, []
    for _ in range(count):
        token: Token = []
        for env in range(envs):
            for _ in range(int(rng.integers(0, 4))):
                token.append((env, steps[env], bool(rng.random() < 0.2)))
                steps[env] += 1
            if token and token[-1][0] == env:
                steps[env] += int(rng.random() < 0.1)  # as if a failed episode had been dropped
        found.append(token)
    return found


def followers(rows: list[tuple[int, int, bool]]) -> dict[int, int]:
    """Map each row to its successor, which is the next step of its env if the episode continues."""
    at = {(env, step): k for k, (env, step, _) in enumerate(rows)}
    return {
        k: at[env, step + 1]
        for k, (env, step, done) in enumerate(rows)
        if not done and (env, step + 1) in at
    }


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 8), st.integers(1, 40), st.booleans()
)
def test_rows_are_followed_as_in_a_list(
    seed: int, envs: int, count: int, size: int, saved: bool
) -> None:
    rng = np.random.default_rng(seed)
    index, rows = SegmentIndex(), []
    for token in tokens(rng, envs, count):
        if token:
            index.push(columns(token), len(rows))
            rows += token
        index.forget_before(max(0, len(rows) - size))
        if saved:
            state, index = index.state_dict(), SegmentIndex()
            index.load_state_dict(state)
    oldest = max(0, len(rows) - size)
    held = np.arange(oldest, len(rows))
    if not len(held):
        return
    after = followers(rows)
    before = {b: a for a, b in after.items() if a >= oldest}
    found, exists = index.follow(held, 4)
    ahead, behind = index.count_after(held), index.count_before(held)
    for k, row in enumerate(held.tolist()):
        chain = [row]
        while chain[-1] in after:
            chain.append(after[chain[-1]])
        past = [row]
        while past[-1] in before:
            past.append(before[past[-1]])
        assert found[k, exists[k]].tolist() == chain[:4]
        assert not exists[k, len(chain) :].any()
        assert (ahead[k], behind[k]) == (len(chain) - 1, len(past) - 1)
        far = [*range(-behind[k], ahead[k] + 1)]
        given_rows = np.full(len(far), row)
        assert index.offset_rows(given_rows, np.array(far)).tolist() == [*past[::-1], *chain[1:]]


def test_without_origin_columns_a_segment_ends_with_its_token() -> None:
    index = SegmentIndex()
    index.push({"last": np.array([False, True, False])}, 0)
    index.push({"last": np.array([False, True])}, 3)
    assert index.count_after(np.arange(5)).tolist() == [1, 0, 0, 1, 0]


def test_rows_after_clear_continue_no_earlier_rows() -> None:
    index = SegmentIndex()
    index.push(columns([(0, 0, False)]), 0)
    index.clear()
    index.push(columns([(0, 1, False), (0, 2, False)]), 1)
    assert index.count_before(np.array([1, 2])).tolist() == [0, 1]
    assert index.count_after(np.array([1, 2])).tolist() == [1, 0]


@pytest.mark.parametrize("rows", [1, 3])
def test_the_space_of_removed_segments_is_reused(rows: int) -> None:
    index = SegmentIndex()
    for k in range(0, 3000, rows):
        index.push({"last": np.ones(rows, bool)}, k)
        index.forget_before(k - 10)
    assert index._table.shape[1] < 60
    assert index.last_rows(index.segments_of(np.array([2995]))).tolist() == [2995]
