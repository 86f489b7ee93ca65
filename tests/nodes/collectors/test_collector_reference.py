"""The sample collector against an implementation that computes row by row, over envs and tokens."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.core.batch import Batch
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from tests.nodes.toy_policies import Toy, weights

GAMMA = 0.5  # its powers are exact


class Step(NamedTuple):
    """One step of an env, according to its rules."""

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


def all_steps(seeds: list[int], length: int | None, ends: str) -> list[Step]:
    """All steps of an env in the episodes with these seeds."""
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


def make_row(step: Step) -> dict[str, Any]:
    """The row of a step, which has one reward."""
    row = step._asdict()
    discount = 0.0 if step.terminated else GAMMA
    return {**row, "discount": discount, "last": step.terminated or step.truncated}


def make_tokens(steps_by_env: list[list[Step]], token_sizes: list[int]) -> list[list[dict]]:
    """The rows of all tokens: envs take turns, step by step; the rows of a token are sorted by env."""
    order = ((t, env) for t in range(10**9) for env in range(len(steps_by_env)))
    tokens = []
    for n in token_sizes:
        chosen = sorted((env, t) for t, env in islice(order, n))
        rows = [make_row(steps_by_env[env][t]) for env, t in chosen]
        for k, (env, _) in enumerate(chosen):
            if k + 1 == n or chosen[k + 1][0] != env:
                rows[k]["last"] = True
        tokens.append(rows)
    return tokens


def assert_rows_equal(batch: Batch, rows: list[dict[str, Any]]) -> None:
    assert len(batch) == len(rows)
    for name in rows[0]:
        np.testing.assert_array_equal(batch[name], [row[name] for row in rows], err_msg=name)


@settings(max_examples=80, deadline=None)
@given(
    count=st.integers(1, 5),
    token_sizes=st.lists(st.integers(1, 14), min_size=1, max_size=6),
    nstep=st.integers(1, 5),
    length=st.none() | st.integers(1, 6),
    ends=st.sampled_from(["by seed", "final", "cut"]),
    seed=st.integers(0, 2**62),
)
def test_rows_equal_those_of_the_slow_implementation(
    count: int, token_sizes: list[int], nstep: int, length: int | None, ends: str, seed: int
) -> None:
    node = collector(count, 1, nstep, seed, length=length, ends=ends)
    tokens = [node.collect(n) for n in token_sizes]
    steps_by_env = [all_steps(env.seeds, length, ends) for env in node.envs.local_envs.envs]
    for token, rows in zip(tokens, make_tokens(steps_by_env, token_sizes), strict=True):
        assert_rows_equal(token, rows)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 11), st.integers(0, 2**62))
def test_every_firing_counts_its_rows_even_if_envs_do_not_divide_them(
    count: int, n_sample: int, seed: int
) -> None:
    node = collector(count, n_sample, 3, seed)
    for _ in range(4):
        batch = node.fire(weights(0))
        assert len(batch) == n_sample == node.ctx.take_count().env_steps
    stepped = sum(
        env.t + sum(1 + s % 5 for s in env.seeds[:-1]) for env in node.envs.local_envs.envs
    )
    assert 4 * n_sample <= stepped < 4 * n_sample + count  # no more steps than necessary


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 2**62))
def test_episodes_are_counted_when_they_end(count: int, n: int, seed: int) -> None:
    node = collector(count, n, 1, seed)
    counted = 0
    for _ in range(5):
        node.fire(weights(0))
        counted += node.ctx.take_count().episodes
    assert counted == sum(len(env.seeds) - 1 for env in node.envs.local_envs.envs)


def test_each_row_has_the_action_of_the_weights_that_acted() -> None:
    node = collector(1, 4, 3, seed=3, length=50)
    first, second = node.fire(weights(1)), node.fire(weights(2))
    assert first["action"].tolist() == [1] * 4
    assert second["action"].tolist() == [2] * 4
