"""Cuts sequences of steps out of episodes while their rows arrive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.buffers.episodes.segments import NO_SEGMENT, SegmentIndex, segment_bounds
from flowrl.nodes.origin import COLLECTOR_COLUMN, ENV_COLUMN

EnvKey = tuple[int, int]  # collector and env
Sequences = list[tuple[int, int]]  # first row and length of each sequence


@dataclass(slots=True)
class OpenEpisode:
    """The newest rows of an episode that has not ended, which a later sequence may contain."""

    rows: Array  # the numbers of the rows
    next_start: int  # the index in `rows` where the next sequence begins
    newest_start: int  # where the newest sequence began; negative if that row was dropped


class SequenceCutter:
    """Cuts sequences of `steps` rows, one every `period` rows.

    Rows with origin columns are followed from token to token, so their sequences are those of whole episodes. The
    last sequence of an episode ends with the episode. It is cut when the episode ends, or when the next rows of its
    env show that the episode does not continue. Other rows are cut within their token.
    """

    def __init__(self, steps: int, period: int) -> None:
        self._steps, self._period = steps, period
        self._segments = SegmentIndex()
        self._open_episodes: dict[EnvKey, OpenEpisode] = {}

    def push(self, columns: Mapping[str, Array], first: int) -> tuple[Array, Array]:
        """Add rows, the first of which has the number `first`; return first rows and lengths of new sequences."""
        if not len(columns["last"]):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        self._segments.push(columns, first)
        if ENV_COLUMN in columns:
            return self._cut_by_env(columns, first)
        firsts, lengths = sequence_windows(columns["last"], self._steps, self._period)
        return firsts + first, lengths

    def rows_of(self, firsts: Array, lengths: Array) -> tuple[Array, Array]:
        """Return the numbers of the rows of sequences (W, T), and which are real. Short ones repeat their last row."""
        ends = self._segments.last_rows(self._segments.segments_of(firsts))
        if (ends >= firsts + lengths - 1).all():
            return window_rows(firsts, lengths, self._steps)
        numbers, _ = self._segments.follow(firsts, self._steps)
        offset = np.arange(self._steps)
        clamped = np.minimum(offset, lengths[:, None] - 1)
        return np.take_along_axis(numbers, clamped, 1), offset < lengths[:, None]

    def forget_before(self, oldest: int) -> None:
        """Remove the rows before this one."""
        self._segments.forget_before(oldest)
        for episode in self._open_episodes.values():
            _drop_rows(episode, int(np.count_nonzero(episode.rows < oldest)))

    def clear(self) -> None:
        self._segments.clear()
        self._open_episodes.clear()

    def _cut_by_env(self, columns: Mapping[str, Array], first: int) -> tuple[Array, Array]:
        sequences: Sequences = []
        index, rows = self._segments, first + np.arange(len(columns["last"]))
        new = np.unique(index.segments_of(rows))
        begins, ends = index.first_rows(new), index.last_rows(new)
        continues = index.previous_segments(new) != NO_SEGMENT
        last = ends - first
        done = (columns["terminated"] | columns["truncated"])[last].tolist()
        collectors, envs = columns[COLLECTOR_COLUMN][last], columns[ENV_COLUMN][last]
        for k, env in enumerate(zip(collectors.tolist(), envs.tolist(), strict=True)):
            if env in self._open_episodes and not continues[k]:
                self._end_episode(env, sequences)
            self._extend_episode(env, np.arange(begins[k], ends[k] + 1), sequences)
            if done[k]:
                self._end_episode(env, sequences)
        firsts, lengths = np.array(sequences, np.int64).reshape(-1, 2).T
        return firsts, lengths

    def _extend_episode(self, env: EnvKey, rows: Array, sequences: Sequences) -> None:
        """Append rows to the episode of an env, and add the full sequences that they complete."""
        empty = OpenEpisode(rows[:0], 0, newest_start=-1)
        episode = self._open_episodes.setdefault(env, empty)
        episode.rows = np.append(episode.rows, rows)
        while episode.next_start + self._steps <= len(episode.rows):
            sequences.append((int(episode.rows[episode.next_start]), self._steps))
            episode.newest_start = episode.next_start
            episode.next_start += self._period
        _drop_rows(episode, max(0, min(episode.next_start, len(episode.rows) - self._steps)))

    def _end_episode(self, env: EnvKey, sequences: Sequences) -> None:
        """Add the last sequence, which ends with the episode. A short episode is one sequence."""
        episode = self._open_episodes.pop(env)
        latest = max(0, len(episode.rows) - self._steps)
        if len(episode.rows) and episode.newest_start != latest:
            sequences.append((int(episode.rows[latest]), len(episode.rows) - latest))

    def state_dict(self) -> dict[str, Any]:
        episodes = [
            [*env, episode.rows, episode.next_start, episode.newest_start]
            for env, episode in self._open_episodes.items()
        ]
        return {"segments": self._segments.state_dict(), "open_episodes": episodes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._segments.load_state_dict(state["segments"])
        self._open_episodes = {
            (int(a), int(b)): OpenEpisode(np.array(rows), int(start), int(newest))
            for a, b, rows, start, newest in state["open_episodes"]
        }


def _drop_rows(episode: OpenEpisode, rows: int) -> None:
    """Drop the oldest rows."""
    episode.rows = episode.rows[rows:]
    episode.next_start = max(episode.next_start - rows, 0)
    episode.newest_start -= rows


def sequence_windows(last: Array, steps: int, period: int) -> tuple[Array, Array]:
    """Return first rows and lengths (W,) of the sequences of a table: `steps` rows, one every `period` rows.

    None crosses the end of a segment. The last sequence of a segment ends with the segment, regardless of the period.
    A segment that is shorter than `steps` gives one shorter sequence.
    """
    starts = []
    for begin, end in zip(*segment_bounds(last), strict=True):
        latest = max(begin, end - steps)
        regular = np.arange(begin, latest + 1, period)
        starts.append(regular if regular[-1] == latest else np.append(regular, latest))
    firsts = np.concatenate(starts) if starts else np.empty(0, np.int64)
    _, ends = segment_bounds(last)
    limit = ends[np.searchsorted(ends, firsts, side="right")] if len(ends) else firsts
    return firsts, np.minimum(limit - firsts, steps)


def window_rows(firsts: Array, lengths: Array, steps: int) -> tuple[Array, Array]:
    """Return the rows (W, steps) of windows, and which are real. A shorter window repeats its last row."""
    offset = np.arange(steps)
    rows = firsts[:, None] + np.minimum(offset, lengths[:, None] - 1)
    return rows, offset < lengths[:, None]


def sequence_priorities(priorities: Array, valid: Array, eta: float) -> Array:
    """Return eta max_t p_t + (1 - eta) mean_t p_t over the valid steps (Kapturowski et al. 2019), (W, T) to (W,)."""
    counted = np.where(valid, priorities, 0.0)
    mean = counted.sum(1) / np.maximum(valid.sum(1), 1)
    return eta * counted.max(1) + (1 - eta) * mean
