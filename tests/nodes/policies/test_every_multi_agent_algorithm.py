"""What every algorithm of several agents must do. An algorithm's own tests hold its mathematics only."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.batch import Array, Batch, Column
from flowrl.core.facts import UnsoundError
from flowrl.core.saved_state import SavedState
from flowrl.core.state import Count, State
from flowrl.nodes.catalogue import CATALOGUE
from flowrl.nodes.groups import ThreadGroup
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.recurrent import Gru
from flowrl.nodes.multi_agent import MultiAgent
from flowrl.nodes.observations import NestedColumns
from tests.nodes.learn_modes import same_bits
from tests.nodes.policies.test_every_algorithm import model_fields, random_column

AGENTS = 3
LEAVES = {"agents": Column("float32", (AGENTS, 4)), "alive": Column("int8", (AGENTS,), n=2)}
OBS = NestedColumns(LEAVES)
MASKED = NestedColumns({**LEAVES, "action_mask": Column("int8", (AGENTS * 4,), n=2)})
WITH_STATE = NestedColumns({**LEAVES, "state": Column("float32", (5,))})
DISCRETE = Column("int64", (AGENTS,), low=(0.0,) * AGENTS, high=(3.0,) * AGENTS)
REAL = Column("float32", (AGENTS, 2), low=-2.0, high=2.0)
ROWS = 24

# Parameters without which an algorithm is slow, or does not fit the small problems here.
SETTINGS: dict[str, dict[str, Any]] = {
    "collaq": {"own_entries": [[0, 2]]},
    "coma": {"epsilon": 0.3},
}
# Settings that collectors and buffers read.
READ_ELSEWHERE = {"gamma", "nstep", "burn_in_steps"}


def algorithms() -> Iterator[tuple[str, type[MultiAgent]]]:
    for name, path in CATALOGUE["policy"].items():
        module, _, cls = path.partition(":")
        found = getattr(importlib.import_module(module), cls)
        if issubclass(found, MultiAgent):
            yield name, found


ALGORITHMS = dict(algorithms())
each_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


def fitting_action(name: str) -> Column:
    return REAL if ALGORITHMS[name].actions == "real" else DISCRETE


def make(
    name: str, obs: NestedColumns = OBS, action: Column | None = None, **params: Any
) -> MultiAgent:
    cls = ALGORITHMS[name]
    models = {field: Mlp(hidden=[16]) for field in model_fields(cls)}
    given = {**models, **SETTINGS.get(name, {}), **params}
    return cls(obs=obs, action=action or fitting_action(name), **given)


def random_batch(policy: MultiAgent, seed: int = 0, rows: int = ROWS, **columns: Array) -> Batch:
    """Rows, or unrolls, with the columns that the algorithm learns from; each is an episode of its own.

    Now and then, an agent is absent.
    """
    rng = np.random.default_rng(seed)
    found = {n: random_column(c, rows, rng) for n, c in policy.learn_columns().items()}
    for n, array in found.items():
        if n.endswith("action_mask"):
            array[:] = 1
        if n.endswith("alive"):
            array[:] = rng.random(array.shape) < 0.8
        if n == "action" and policy.own_action.n is not None:
            array %= policy.own_action.n
    for n, value in {"last": True, "valid": True, "logp": np.log(0.25), "discount": 0.9}.items():
        if n in found:
            found[n][:] = value
    return Batch({**found, **columns})


def obs_rows(policy: MultiAgent, rows: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    assert isinstance(policy.obs, NestedColumns)
    found = policy.obs.empty(rows)
    for leaf, column in policy.obs.columns.items():
        found[leaf] = 1 if leaf == "alive" else random_column(column, rows, rng)
    return found


def state_of(policy: MultiAgent, mode: Any) -> State:
    return State(mode.weights(), policy.command(Count()))


def act(mode: Any, obs: Array) -> dict[str, Array]:
    memory = {n: np.zeros((len(obs), *c.shape), c.dtype) for n, c in mode.memory.items()}
    found: dict[str, Array] = mode.forward(obs, memory) if memory else mode.forward(obs)
    return found


def learn(policy: MultiAgent, mode: Any, seeds: range) -> None:
    for seed in seeds:
        mode.forward(random_batch(policy, seed), policy.command(Count(env_steps=seed)))


@each_algorithm
def test_a_loaded_state_continues_with_the_same_bits(name: str) -> None:
    policy = make(name)
    whole, half = policy.learn_mode(1), policy.learn_mode(1)
    learn(policy, whole, range(4))
    learn(policy, half, range(2))
    saved = half.state_dict()
    learn(policy, half, range(30, 31))  # a state is a copy
    resumed = policy.learn_mode(2)
    torch.manual_seed(3)
    resumed.load_state_dict(saved)
    learn(policy, resumed, range(2, 4))
    assert same_bits(whole.state_dict(), resumed.state_dict())
    assert same_bits(whole.weights(), resumed.weights())


@each_algorithm
def test_a_loaded_collect_mode_continues_its_random_draws(name: str) -> None:
    policy = make(name)
    state, obs = state_of(policy, policy.learn_mode(0)), obs_rows(policy, 64)
    one, other = (policy.collect_mode(seed) for seed in (1, 2))
    for mode in (one, other):
        mode.load(state)
    act(one, obs)
    other.load_state_dict(SavedState.of(one.state_dict()).state_dict())
    assert same_bits(act(one, obs), act(other, obs))


@each_algorithm
@pytest.mark.parametrize("obs", [OBS, MASKED, WITH_STATE], ids=["plain", "masked", "state"])
def test_learning_changes_the_weights_and_gives_finite_metrics(
    name: str, obs: NestedColumns
) -> None:
    if obs is MASKED and ALGORITHMS[name].actions == "real":
        pytest.skip("real-valued actions have no mask")
    policy = make(name, obs)
    mode = policy.learn_mode(0)
    before = mode.weights()
    for seed in range(3):
        result = mode.forward(random_batch(policy, seed), policy.command(Count()))
        assert all(np.isfinite(float(value)) for value in result.metrics.values()), result.metrics
        if result.priorities is not None:
            assert len(result.priorities) == ROWS
            assert (result.priorities >= 0).all()
    assert not same_bits(before, mode.weights())


@pytest.mark.parametrize("name", [n for n, cls in ALGORITHMS.items() if not cls.on_policy])
def test_the_weights_of_a_prioritised_buffer_scale_the_losses_of_their_rows(name: str) -> None:
    policy = make(name)
    share = np.random.default_rng(5).uniform(0.1, 0.9, ROWS).astype(np.float32)
    of_plain, of_share, of_rest = (
        losses_of(policy, random_batch(policy, 1, **columns))
        for columns in ({}, {"weight": share}, {"weight": 1 - share})
    )
    assert of_plain
    for key, value in of_plain.items():
        assert of_share[key] + of_rest[key] == pytest.approx(value, rel=1e-4)
        assert of_share[key] != pytest.approx(share.mean() * value, rel=1e-3)


def losses_of(policy: MultiAgent, batch: Batch) -> dict[str, float]:
    """The losses of values in the first train iteration."""
    found = policy.learn_mode(0).forward(batch, policy.command(Count())).metrics
    names = {"loss", "central_loss", "excess_loss", "critic_loss"} & found.keys()
    return {name: float(found[name]) for name in names}


@each_algorithm
def test_what_absent_agents_do_and_observe_is_not_learned(name: str) -> None:
    """Only critics may see the rows of absent agents, and these are zeros in an env."""
    policy = make(name)
    batch = random_batch(policy)
    columns = dict(batch.columns)
    for when in ("obs", "next_obs"):
        if f"{when}/agents" in columns:
            absent = columns[f"{when}/alive"] == 0
            columns[f"{when}/agents"] = np.where(absent[..., None], 0, columns[f"{when}/agents"])
    absent = columns["obs/alive"] == 0
    others = {
        n: (1 - columns[n] if np.dtype(columns[n].dtype).kind == "i" else columns[n] / 2 - 1)
        for n in ("action", "logp", "unclipped")
        if n in columns
    }
    others = {n: np.abs(x) if np.dtype(x.dtype).kind == "i" else x for n, x in others.items()}
    changed = {}
    for n, other in others.items():
        where = absent.reshape(*absent.shape, *[1] * (other.ndim - absent.ndim))
        changed[n] = np.where(where, other, columns[n]).astype(columns[n].dtype)
    assert not same_bits(changed, {n: columns[n] for n in changed})
    weights = []
    for given in (columns, {**columns, **changed}):
        mode = policy.learn_mode(0)
        mode.forward(Batch(given), policy.command(Count()))
        weights.append(mode.weights())
    for parameter, value in weights[0].items():
        np.testing.assert_allclose(weights[1][parameter], value, atol=1e-6, err_msg=parameter)


@each_algorithm
def test_actions_fit_their_column(name: str) -> None:
    policy = make(name)
    state = state_of(policy, policy.learn_mode(0))
    for mode in (policy.collect_mode(0), policy.eval_mode(0)):
        mode.load(state)
        found = act(mode, obs_rows(policy, 100))
        action, column = found["action"], policy.action
        assert action.dtype == np.dtype(column.dtype)
        assert action.shape == (100, *column.shape)
        assert (action >= np.float32(column.low or 0)).all()
        assert (action <= np.float32(3 if column is DISCRETE else column.high)).all()


@each_algorithm
def test_agents_draw_their_actions_independently(name: str) -> None:
    policy = make(name)
    mode = policy.collect_mode(0)
    mode.load(state_of(policy, policy.learn_mode(0)))
    obs = obs_rows(policy, 2000)
    obs["agents"] = 0
    action = act(mode, obs)["action"].reshape(2000, AGENTS, -1)[:, :, 0].astype(float)
    if (action.std(0) == 0).any():
        pytest.skip("is greedy with these settings")
    correlations = np.corrcoef(action.T)[np.triu_indices(AGENTS, 1)]
    assert np.abs(correlations).max() < 0.12


@each_algorithm
def test_actions_of_another_kind_are_refused(name: str) -> None:
    cls = ALGORITHMS[name]
    if cls.actions == "any":
        pytest.skip("takes actions of any kind")
    other = DISCRETE if cls.actions == "real" else REAL
    with pytest.raises(UnsoundError, match=rf"{name.replace('_', '')} .* the env takes"):
        make(name, action=other)


@each_algorithm
def test_envs_without_agents_are_refused(name: str) -> None:
    env = {"obs": Column("float32", (4,)), "action": Column("int64", n=2)}
    with pytest.raises(UnsoundError, match="give an env of several agents"):
        ALGORITHMS[name](**env, **SETTINGS.get(name, {}))


@each_algorithm
def test_a_recurrent_model_is_refused_where_rows_are_steps(name: str) -> None:
    for field in model_fields(ALGORITHMS[name]):
        with pytest.raises(UnsoundError, match="recurrent"):
            make(name, **{field: Gru(size=8)})


@each_algorithm
def test_a_recurrent_model_learns_from_unrolls_where_that_is_possible(name: str) -> None:
    cls = ALGORITHMS[name]
    if cls.unrolls == "never" or name == "collaq":  # which refuses recurrent models
        pytest.skip("learns from single steps")
    field = "actor" if "actor" in model_fields(cls) else "model"
    policy = make(name, **{field: Gru(size=8), "unroll_steps": 4})
    mode = policy.learn_mode(0)
    before = mode.weights()
    learn(policy, mode, range(2))
    assert not same_bits(before, mode.weights())
    acting = policy.collect_mode(0)
    acting.load(state_of(policy, mode))
    found = act(acting, obs_rows(policy, 5))
    assert found["memory"].shape == (5, AGENTS, 8)


@each_algorithm
def test_termination_and_truncation_are_told_apart(name: str) -> None:
    """Rows that differ only in whether their episode terminated must not teach the same."""
    policy = make(name)
    batch = random_batch(policy)
    flag, zeros = np.ones_like(batch["discount"], bool), np.zeros_like(batch["discount"])
    ends = {n: ~flag for n in ("terminated", "truncated") if n in batch}
    truncated = batch.replace(**{k: (flag if k == "truncated" else v) for k, v in ends.items()})
    terminated = batch.replace(
        discount=zeros, **{k: (flag if k == "terminated" else v) for k, v in ends.items()}
    )
    learned = []
    for rows in (truncated, terminated):
        mode = policy.learn_mode(0)
        mode.forward(rows, policy.command(Count()))
        learned.append({k: v for k, v in mode.state_dict().items() if k != "iters"})
    assert not same_bits(*learned)


@each_algorithm
def test_forbidden_actions_are_never_taken(name: str) -> None:
    if ALGORITHMS[name].actions == "real":
        pytest.skip("real-valued actions have no mask")
    policy = make(name, MASKED)
    learner = policy.learn_mode(0)
    learn(policy, learner, range(2))
    obs = obs_rows(policy, 300)
    allowed = np.random.default_rng(1).random((300, AGENTS, 4)) < 0.5
    allowed[..., 2] |= ~allowed.any(-1)
    obs["action_mask"] = allowed.reshape(300, -1)
    for mode in (policy.collect_mode(0), policy.eval_mode(0)):
        mode.load(state_of(policy, learner))
        action = act(mode, obs)["action"]
        assert np.take_along_axis(allowed, action[..., None], -1).all()


@each_algorithm
def test_every_scheduled_setting_changes_with_progress(name: str) -> None:
    policy = make(name)
    for setting in policy.command(Count()).keys() - policy.ignored_settings().keys():
        schedule = {"start": 0.5, "end": 0.25, "env_steps": 100, "shape": "linear"}
        changed = make(name, **{setting: schedule})
        assert changed.command(Count())[setting] == pytest.approx(0.5)
        assert changed.command(Count(env_steps=1000))[setting] == pytest.approx(0.25)


@each_algorithm
def test_every_setting_is_read(name: str) -> None:
    """A setting that is inherited and not used would be ignored silently. (Schedules are read by `command`.)"""
    cls, read = ALGORITHMS[name], set()

    class RecordedConfig(cls.Config):  # type: ignore[misc, name-defined]
        def __getattribute__(self, attribute: str) -> Any:
            read.add(attribute)
            return super().__getattribute__(attribute)

    params = {field: Mlp(hidden=[16]) for field in model_fields(cls)} | SETTINGS.get(name, {})
    policy = cls(RecordedConfig(**params), obs=OBS, action=fitting_action(name))
    mode = policy.learn_mode(0)
    learn(policy, mode, range(2))
    for acting in (policy.collect_mode(0), policy.eval_mode(0)):
        acting.load(state_of(policy, mode))
        act(acting, obs_rows(policy, 3))
    assert set(cls.Config.model_fields) - read - READ_ELSEWHERE == set()


@each_algorithm
def test_a_group_learns_what_one_learner_learns(name: str) -> None:
    policy = make(name)
    if policy.refuses_groups:
        pytest.skip(policy.refuses_groups)
    alone = policy.learn_mode(0)
    batches = [random_batch(policy, seed) for seed in range(3)]
    for batch in batches:
        alone.forward(batch, policy.command(Count()))
    members = learned_by_group(policy, batches)
    for member in members:
        for parameter, value in alone.weights().items():
            np.testing.assert_allclose(
                member.weights()[parameter], value, atol=1e-4, err_msg=parameter
            )
    assert same_bits(*(member.weights() for member in members))


def learned_by_group(policy: MultiAgent, batches: list[Batch]) -> list[Any]:
    """The learn modes of two learners, of which one has a third of the rows."""
    from concurrent.futures import ThreadPoolExecutor

    from flowrl.nodes.compute import Compute

    groups = ThreadGroup.of_size(2)
    modes = [policy.learn_mode(0, Compute(group=group)) for group in groups]
    parts = (slice(0, ROWS // 3), slice(ROWS // 3, None))

    def run(member: int) -> None:
        for batch in batches:
            own = Batch(
                {n: np.ascontiguousarray(x[parts[member]]) for n, x in batch.columns.items()}
            )
            modes[member].forward(own, policy.command(Count()))

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(run, member) for member in range(2)]:
            done.result()
    return modes
