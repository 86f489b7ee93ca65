"""The collector against an implementation that goes row by row, over envs, windows and tokens."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.core.batch import Batch
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from tests.nodes.toy_policies import Toy, weights

GAMMA = 0.5  # its powers are exact


class Step(NamedTuple):
    """One step of one env, as the env's rules say it is."""

    obs: list[float]
    next_obs: list[float]
    reward: float
    terminated: bool
    truncated: bool
    logp: float


def collector(count: int, n_sample: int, nstep: int, seed: int, **env: Any) -> SampleCollector:
    part = Gymnasium(id="tests.nodes.toy_envs:CountingEnv", kwargs=env)
    envs = SerialEnvManager(env=part, count=count, seed=seed)
    spec = envs.spec()
    policy = Toy(obs=spec.obs, action=spec.action, nstep=nstep, gamma=GAMMA)
    return SampleCollector(envs=envs, policy=policy, n_sample=n_sample, seed=seed)


def life(seeds: list[int], length: int | None, ends: str) -> list[Step]:
    """All steps that an env takes in the episodes of these seeds."""
    steps: list[Step] = []
    for seed in seeds:
        name, lasts = float(seed % 1_000_000), length or 1 + seed % 5
        final = seed % 2 == 0 if ends == "by seed" else ends == "final"
        for t in range(lasts):
            over = t + 1 == lasts
            obs, reached = [name, float(t)], [name, float(t + 1)]
            acts = float(len(steps) + 1)
            steps.append(Step(obs, reached, t + 1.0, over and final, over and not final, acts))
    return steps


def row_of(steps: list[Step], k: int, nstep: int) -> dict[str, Any]:
    """The row that begins at step k: rewards are summed until the window or the episode ends."""
    reward, discount, end = 0.0, 1.0, k
    for j in range(k, k + nstep):
        reward += discount * steps[j].reward
        discount *= GAMMA
        end = j
        if steps[j].terminated or steps[j].truncated:
            break
    at, last = steps[k], steps[end]
    return {
        "obs": at.obs,
        "logp": at.logp,
        "reward": reward,
        "next_obs": last.next_obs,
        "terminated": last.terminated,
        "truncated": last.truncated,
        "discount": 0.0 if last.terminated else discount,
        "last": at.terminated or at.truncated,
    }


def tokens_of(lives: list[list[Step]], amounts: list[int], nstep: int) -> list[list[dict]]:
    """Rows are dealt out over envs, a step at a time; a token sorts its own by env."""
    dealt = ((t, env) for t in range(10**9) for env in range(len(lives)))
    tokens = []
    for n in amounts:
        mine = sorted((env, t) for t, env in islice(dealt, n))
        rows = [row_of(lives[env], t, nstep) for env, t in mine]
        for k, (env, _) in enumerate(mine):
            if k + 1 == n or mine[k + 1][0] != env:
                rows[k]["last"] = True
        tokens.append(rows)
    return tokens


def same(batch: Batch, rows: list[dict[str, Any]]) -> None:
    assert len(batch) == len(rows)
    for name in rows[0]:
        np.testing.assert_array_equal(batch[name], [row[name] for row in rows], err_msg=name)


@settings(max_examples=80, deadline=None)
@given(
    count=st.integers(1, 5),
    amounts=st.lists(st.integers(1, 14), min_size=1, max_size=6),
    nstep=st.integers(1, 5),
    length=st.none() | st.integers(1, 6),
    ends=st.sampled_from(["by seed", "final", "cut"]),
    seed=st.integers(0, 2**62),
)
def test_rows_are_those_of_the_slow_implementation(
    count: int, amounts: list[int], nstep: int, length: int | None, ends: str, seed: int
) -> None:
    node = collector(count, 1, nstep, seed, length=length, ends=ends)
    tokens = [node.collect(n) for n in amounts]
    lives = [life(env.seeds, length, ends) for env in node.envs.local_envs.envs]
    for token, rows in zip(tokens, tokens_of(lives, amounts, nstep), strict=True):
        same(token, rows)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 11), st.integers(1, 4), st.integers(0, 2**62))
def test_every_firing_counts_its_rows_also_where_envs_do_not_divide_them(
    count: int, n_sample: int, nstep: int, seed: int
) -> None:
    node = collector(count, n_sample, nstep, seed)
    for _ in range(4):
        batch = node.fire(weights(0))
        assert len(batch) == n_sample == node.ctx.take_count().env_steps
    stepped = sum(
        env.t + sum(1 + s % 5 for s in env.seeds[:-1]) for env in node.envs.local_envs.envs
    )
    assert 4 * n_sample <= stepped < 4 * n_sample + count * nstep  # no step more than it must


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 2**62))
def test_finished_episodes_are_counted_when_they_are_seen(count: int, n: int, seed: int) -> None:
    node = collector(count, n, 1, seed)
    counted = 0
    for _ in range(5):
        node.fire(weights(0))
        counted += node.ctx.take_count().episodes
    assert counted == sum(len(env.seeds) - 1 for env in node.envs.local_envs.envs)


@pytest.mark.parametrize("nstep", [1, 3])
def test_other_weights_show_in_the_rows_that_were_acted_with_them(nstep: int) -> None:
    """A window that reaches into the next firing's steps keeps the action that began it."""
    node = collector(1, 4, nstep, seed=3, length=50)
    first, second = node.fire(weights(1)), node.fire(weights(2))
    assert first["action"].tolist() == [1] * 4
    already = nstep - 1  # steps that the first firing took for its windows
    assert second["action"].tolist() == [1] * already + [2] * (4 - already)
