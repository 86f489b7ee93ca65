"""What every algorithm of the catalogue must do. An algorithm's own tests hold its mathematics only.

Those of several agents are in `test_every_multi_agent_algorithm.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.facts import UnsoundError
from flowrl.core.saved_state import SavedState
from flowrl.core.state import Count, State
from flowrl.nodes import network_learn_mode
from flowrl.nodes.algorithm import Algorithm
from flowrl.nodes.catalogue import CATALOGUE
from flowrl.nodes.models.cnn import Cnn
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.recurrent import Gru
from flowrl.nodes.multi_agent import MultiAgent
from flowrl.nodes.observations import NestedColumns, ObsColumns, leaf_columns
from tests.nodes.learn_modes import same_bits

OBS = Column("float32", (3,))
NESTED = NestedColumns({"position": Column("float32", (2,)), "colour": Column("int64", n=3)})
MASKED = NestedColumns({"features": OBS, "action_mask": Column("int8", (4,), n=2)})
IMAGE = Column("uint8", (36, 36, 3))
DISCRETE = Column("int64", n=4)
REAL = Column("float32", (2,), low=(-2.0, -1.0), high=(2.0, 3.0))
ROWS = 48

# Parameters without which an algorithm is slow or does not fit the small problems here.
SETTINGS: dict[str, dict[str, Any]] = {
    "r2d2": {"unroll_steps": 4, "burn_in_steps": 1, "target_steps": 2},
    "redq": {"critics": 3, "actor_every_iters": 2},
    "d4pg": {"v_min": -8.0, "v_max": 2.0},
    "c51": {"v_min": -1.0, "v_max": 2.0},
    "rainbow": {"v_min": -1.0, "v_max": 2.0},
    "acer": {"unroll_steps": 4},
    "ppg": {"auxiliary_every_iters": 2, "auxiliary_epochs": 2},
    "crossq": {"actor_every_iters": 2},
}
RECURRENT = ("r2d2",)
SEQUENCES = (*RECURRENT, "acer")  # rows are sequences of steps


def algorithms() -> Iterator[tuple[str, type[Algorithm]]]:
    for name, path in CATALOGUE["policy"].items():
        module, _, cls = path.partition(":")
        found = getattr(importlib.import_module(module), cls)
        if issubclass(found, Algorithm) and not issubclass(found, MultiAgent):
            yield name, found


ALGORITHMS = dict(algorithms())
each_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


def model_fields(cls: type[Algorithm]) -> list[str]:
    """The parameters of an algorithm that are models."""
    fields = cls.Config.model_fields.items()
    return [n for n, i in fields if (i.json_schema_extra or {}).get("part") == "model"]  # type: ignore[union-attr]


def small_models(name: str, **params: Any) -> dict[str, Any]:
    cls = ALGORITHMS[name]
    if name in RECURRENT:
        return {"model": Gru(size=8)}
    return {field: Mlp(hidden=[32], **params) for field in model_fields(cls)}


def fitting_action(cls: type[Algorithm]) -> Column:
    return REAL if cls.actions == "real" else DISCRETE


def make(
    name: str, obs: ObsColumns = OBS, action: Column | None = None, **params: Any
) -> Algorithm:
    cls = ALGORITHMS[name]
    given = {**small_models(name), **SETTINGS.get(name, {}), **params}
    return cls(obs=obs, action=action or fitting_action(cls), **given)


def random_column(column: Column, rows: int, rng: np.random.Generator) -> Array:
    shape, dtype = (rows, *column.shape), np.dtype(column.dtype)
    if dtype.kind == "b":
        return np.zeros(shape, bool)
    if column.n is not None:
        return rng.integers(column.n, size=shape).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 200, size=shape).astype(dtype)
    if column.low is not None:
        low, high = np.asarray(column.low, dtype), np.asarray(column.high, dtype)
        return rng.uniform(low, high, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def random_batch(policy: Algorithm, seed: int = 0, **columns: Array) -> Batch:
    """Rows with the columns that the algorithm learns from: each is an episode of its own, or each unroll is."""
    rng = np.random.default_rng(seed)
    schema: Schema = policy.learn_columns()
    found = {n: random_column(c, ROWS, rng) for n, c in schema.items()}
    for n in found:
        if n.endswith("action_mask"):
            found[n][:] = 1
    if "last" in found:
        found["last"][:] = True
    if "valid" in found:
        found["valid"][:] = True
    if "logp" in found:
        found["logp"][:] = np.log(0.25)
    if "discount" in found:
        found["discount"][:] = 0.9
    return Batch({**found, **columns})


def obs_rows(obs: ObsColumns, rows: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    leaves = {leaf: random_column(c, rows, rng) for leaf, c in leaf_columns(obs).items()}
    if not isinstance(obs, NestedColumns):
        return leaves[""]
    found = obs.empty(rows)
    for leaf, array in leaves.items():
        found[leaf] = array
    return found


def state_of(policy: Algorithm, mode: Any) -> State:
    return State(mode.weights(), policy.command(Count()))


def act(policy: Algorithm, mode: Any, obs: Array) -> dict[str, Array]:
    memory = {n: np.zeros((len(obs), *c.shape), c.dtype) for n, c in mode.memory.items()}
    found: dict[str, Array] = mode.forward(obs, memory) if memory else mode.forward(obs)
    return found


def learn(policy: Algorithm, mode: Any, seeds: range) -> None:
    for seed in seeds:
        mode.forward(random_batch(policy, seed), policy.command(Count(env_steps=seed)))


@each_algorithm
def test_a_loaded_state_continues_with_the_same_bits(name: str) -> None:
    policy = make(name)
    whole, half = policy.learn_mode(1), policy.learn_mode(1)
    learn(policy, whole, range(6))
    learn(policy, half, range(3))
    saved = half.state_dict()
    learn(policy, half, range(30, 31))  # a state is a copy
    resumed = policy.learn_mode(2)
    torch.manual_seed(3)
    resumed.load_state_dict(saved)
    learn(policy, resumed, range(3, 6))
    assert same_bits(whole.state_dict(), resumed.state_dict())
    assert same_bits(whole.weights(), resumed.weights())


@each_algorithm
def test_a_loaded_collect_mode_continues_its_random_draws(name: str) -> None:
    policy = make(name)
    state = state_of(policy, policy.learn_mode(0))
    one, other = (policy.collect_mode(seed) for seed in (1, 2))
    for mode in (one, other):
        mode.load(state)
    obs = obs_rows(OBS, 64)
    act(policy, one, obs)
    other.load_state_dict(SavedState.of(one.state_dict()).state_dict())
    assert same_bits(act(policy, one, obs), act(policy, other, obs))


@each_algorithm
def test_learning_changes_the_weights_and_gives_finite_metrics(name: str) -> None:
    policy = make(name)
    mode = policy.learn_mode(0)
    before = mode.weights()
    for seed in range(3):
        result = mode.forward(random_batch(policy, seed), policy.command(Count()))
        assert all(np.isfinite(float(value)) for value in result.metrics.values()), result.metrics
        if result.priorities is not None:
            column = policy.priority_column()
            assert result.priorities.shape == (ROWS, *column.shape)
            assert (result.priorities >= 0).all()
    assert not same_bits(before, mode.weights())


@each_algorithm
def test_the_weights_suffice_to_act_and_numpy_agrees_with_torch(name: str) -> None:
    policy = make(name)
    mode = policy.learn_mode(0)
    learn(policy, mode, range(2))
    net, heads = policy.nets[policy.acting_network], policy.acting_heads()
    inference = net.model.inference_model(OBS, net.heads, heads)
    inference.load(mode.weights())
    obs = obs_rows(OBS, 16)
    module = getattr(mode, policy.acting_network).module
    with torch.no_grad():
        if policy.memory_columns():
            zeros = np.zeros((16, *policy.memory_columns()["memory"].shape), np.float32)
            arguments = (torch.from_numpy(zeros), torch.zeros((16, 1), dtype=torch.bool))
            acted, expected = inference(obs, zeros), module(torch.from_numpy(obs), *arguments)
        elif name == "iqn":
            from flowrl.nodes.models.numpy_model import acting_fractions

            tau = torch.from_numpy(acting_fractions()).unsqueeze(0)
            acted, expected = inference(obs), module(torch.from_numpy(obs), tau=tau)
        else:
            for layer in module.modules():
                if hasattr(layer, "noise"):
                    layer.noise = None
            acted, expected = inference(obs), module(torch.from_numpy(obs))
    # cos(63 pi tau) multiplies the rounding of the fractions that fqf proposes by 200.
    tolerance = 4e-5 if name == "fqf" else 2e-6
    for head in heads:
        np.testing.assert_allclose(acted[head], expected[head].numpy(), atol=tolerance)


@each_algorithm
def test_actions_fit_their_column(name: str) -> None:
    policy = make(name)
    state = state_of(policy, policy.learn_mode(0))
    for mode in (policy.collect_mode(0), policy.eval_mode(0)):
        mode.load(state)
        action = act(policy, mode, obs_rows(OBS, 200))["action"]
        column = policy.action
        assert action.dtype == np.dtype(column.dtype)
        assert action.shape == (200, *column.shape)
        if column.n is not None:
            assert set(action) <= set(range(column.n))
        else:
            assert (action >= np.float32(column.low)).all()
            assert (action <= np.float32(column.high)).all()


@each_algorithm
def test_actions_of_another_kind_are_refused(name: str) -> None:
    cls = ALGORITHMS[name]
    if cls.actions == "any":
        pytest.skip("takes actions of any kind")
    other = DISCRETE if cls.actions == "real" else REAL
    with pytest.raises(UnsoundError, match=rf"{name.replace('_', '')} .* the env takes"):
        make(name, action=other)


@each_algorithm
def test_unbounded_actions_are_refused_where_they_are_scaled(name: str) -> None:
    if not ALGORITHMS[name].squashes:
        pytest.skip("does not scale its actions")
    with pytest.raises(UnsoundError, match="scales its actions to their bounds"):
        make(name, action=Column("float32", (2,)))


@each_algorithm
def test_a_recurrent_model_is_refused_where_rows_are_steps(name: str) -> None:
    if name in SEQUENCES:
        pytest.skip("can learn with a recurrent model")
    for field in model_fields(ALGORITHMS[name]):
        with pytest.raises(UnsoundError, match="recurrent"):
            make(name, **{field: Gru(size=8)})


@each_algorithm
def test_termination_and_truncation_are_told_apart(name: str) -> None:
    """Rows that differ only in whether their episode terminated must not teach the same."""
    policy = make(name)
    if "discount" not in policy.reads:
        pytest.skip("does not look beyond an episode's end")
    batch = random_batch(policy)
    flag, zeros = np.ones_like(batch["discount"], bool), np.zeros_like(batch["discount"])
    ends = {"terminated": ~flag, "truncated": ~flag}
    ended = {k: v for k, v in ends.items() if k in batch}
    truncated = batch.replace(**{k: (flag if k == "truncated" else v) for k, v in ended.items()})
    terminated = batch.replace(
        discount=zeros, **{k: (flag if k == "terminated" else v) for k, v in ended.items()}
    )
    modes = [policy.learn_mode(0), policy.learn_mode(0)]
    for mode, rows in zip(modes, (truncated, terminated), strict=True):
        mode.forward(rows, policy.command(Count()))
    learned = [{k: v for k, v in mode.state_dict().items() if k != "iters"} for mode in modes]
    assert not same_bits(*learned)


@each_algorithm
def test_forbidden_actions_are_never_taken(name: str) -> None:
    if ALGORITHMS[name].actions == "real":
        pytest.skip("real-valued actions have no mask")
    policy = make(name, obs=MASKED)
    learner = policy.learn_mode(0)
    learn(policy, learner, range(2))
    obs = obs_rows(MASKED, 300)
    allowed = np.random.default_rng(1).random((300, 4)) < 0.5
    allowed[:, 2] |= ~allowed.any(1)
    obs["action_mask"] = allowed
    for mode in (policy.collect_mode(0), policy.eval_mode(0)):
        mode.load(state_of(policy, learner))
        action = act(policy, mode, obs)["action"]
        assert allowed[np.arange(300), action].all()


@each_algorithm
def test_nested_observations_are_learned_from_and_acted_on(name: str) -> None:
    policy = make(name, obs=NESTED)
    learner = policy.learn_mode(0)
    learn(policy, learner, range(2))
    mode = policy.eval_mode(0)
    mode.load(state_of(policy, learner))
    assert len(act(policy, mode, obs_rows(NESTED, 5))["action"]) == 5


@each_algorithm
def test_images_get_a_convolutional_network_by_default(name: str) -> None:
    cls = ALGORITHMS[name]
    params = {k: v for k, v in SETTINGS.get(name, {}).items() if k != "critics"}
    policy = cls(obs=IMAGE, action=fitting_action(cls), **params)
    acting = policy.nets[policy.acting_network].model
    assert isinstance(acting, Cnn) or acting.image_layers(IMAGE)  # type: ignore[attr-defined]
    assert policy.imported_modules(learn=False) == ("torch",)


@each_algorithm
def test_every_scheduled_setting_changes_with_progress(name: str) -> None:
    policy = make(name)
    settings = policy.command(Count())
    for setting in settings:
        schedule = {"start": 0.5, "end": 0.25, "env_steps": 100, "shape": "linear"}
        changed = make(name, **{setting: schedule})
        assert changed.command(Count())[setting] == pytest.approx(0.5)
        assert changed.command(Count(env_steps=1000))[setting] == pytest.approx(0.25)


# Settings that collectors and buffers read, and those of conditions that do not arise here.
READ_ELSEWHERE = {"gamma", "nstep", "burn_in_steps"}


@each_algorithm
def test_every_setting_is_read(name: str) -> None:
    """A setting that is inherited and not used would be ignored silently. (Schedules are read by `command`.)"""
    cls, read = ALGORITHMS[name], set()

    class RecordedConfig(cls.Config):  # type: ignore[misc, name-defined]
        def __getattribute__(self, attribute: str) -> Any:
            read.add(attribute)
            return super().__getattribute__(attribute)

    params = {**small_models(name), **SETTINGS.get(name, {})}
    policy = cls(RecordedConfig(**params), obs=OBS, action=fitting_action(cls))
    mode = policy.learn_mode(0)
    learn(policy, mode, range(2))
    for acting in (policy.collect_mode(0), policy.eval_mode(0)):
        acting.load(state_of(policy, mode))
        act(policy, acting, obs_rows(OBS, 3))
    assert set(cls.Config.model_fields) - read - READ_ELSEWHERE == set()


class RecordedSettings(dict[str, float]):
    """Settings that come with weights, and the names of those that were read."""

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> float:
        self.read.add(name)
        return super().__getitem__(name)


@each_algorithm
def test_every_scheduled_setting_is_read_when_learning_or_acting(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[str] = set()

    class RecordedNow(SimpleNamespace):
        def __getattribute__(self, attribute: str) -> Any:
            read.add(attribute)
            return super().__getattribute__(attribute)

    monkeypatch.setattr(network_learn_mode, "SimpleNamespace", RecordedNow)
    policy = make(name)
    mode = policy.learn_mode(0)
    learn(policy, mode, range(2))
    settings = RecordedSettings(policy.command(Count()))
    acting = policy.collect_mode(0)
    acting.load(State(mode.weights(), settings))
    act(policy, acting, obs_rows(OBS, 3))
    assert settings.keys() - read - settings.read == set()


def bandit(policy: Algorithm, seed: int) -> tuple[Batch, Array, Array]:
    """Rows of one step each: the right action depends on the observation, and others are worse."""
    rng = np.random.default_rng(seed)
    obs = rng.standard_normal((ROWS, 3)).astype(np.float32)
    if policy.action.n is not None:
        right: Array = (obs[:, 0] > 0).astype(np.int64) + 2 * (obs[:, 1] > 0)
        action = rng.integers(4, size=ROWS)
        reward = (action == right).astype(np.float32)
        logp = np.full(ROWS, np.log(0.25), np.float32)
        extra = {"logp": logp}
    else:
        right = np.stack([np.tanh(obs[:, 0]), 1 + np.tanh(obs[:, 1])], 1).astype(np.float32)
        action = rng.uniform(policy.action.low, policy.action.high, (ROWS, 2)).astype(np.float32)
        reward = -np.square(action - right).sum(1)
        extra = {}
    if not set(policy.reads) & {"reward"}:
        action = right
    columns = {"obs": obs, "next_obs": obs, "action": action, "reward": reward, **extra}
    zeros = np.zeros(ROWS, np.float32)
    ends = {
        "discount": zeros,
        "terminated": zeros == 0,
        "truncated": zeros != 0,
        "last": zeros == 0,
    }
    columns |= {**ends, "offset": zeros.astype(np.int32), "is_demo": zeros != 0}
    if "scores" in policy.reads:
        columns["scores"] = 5 * np.eye(4, dtype=np.float32)[right]
    return Batch({n: columns[n] for n in policy.learn_columns()}), obs, right


ITERATIONS, ACTS_EVERY = 400, 50
# Larger learning rates, no entropy bonus, which would keep actions away from the best ones, and advantages that tell
# actions apart (all four actions are equally frequent in the data, and their values differ by at most 1).
QUICK_SETTINGS: dict[str, dict[str, Any]] = {
    "reinforce": {"lr": 0.01, "entropy_weight": 0.0},
    **{name: {"critic_lr": 0.01} for name in ("td3", "ddpg")},
    "d4pg": {"critic_lr": 0.01, "v_min": -20.0, "v_max": 0.0},
    "awac": {"critic_lr": 0.01, "temperature": 0.2},
    "iql": {"critic_lr": 0.01, "inverse_temperature": 10.0},
    **{
        name: {"critic_lr": 0.01, "alpha": 0.01, "learn_alpha": False}
        for name in ("sac", "tqc", "redq")
    },
}


@pytest.mark.slow
@each_algorithm
def test_a_problem_of_one_step_is_solved(name: str) -> None:
    """It fails if a gradient has the wrong sign, if actions are scaled wrongly, or if a head is not trained."""
    if name in SEQUENCES:
        pytest.skip("learns from sequences")
    policy = make(name, **{"lr": 0.003, **QUICK_SETTINGS.get(name, {})})
    mode = policy.learn_mode(0)
    for seed in range(1, ITERATIONS + 1):
        batch, _, _ = bandit(policy, seed)
        mode.forward(batch, policy.command(Count(env_steps=10**6)))
        if seed % ACTS_EVERY == 0 and solves_bandit(policy, mode):
            return
    pytest.fail(f"it is not solved after {ITERATIONS} iterations")


def solves_bandit(policy: Algorithm, mode: Any) -> bool:
    """Whether most actions are right, or near to the right ones."""
    _, obs, right = bandit(policy, 10**6)
    greedy = policy.eval_mode(0)
    greedy.load(state_of(policy, mode))
    action = greedy.forward(obs)["action"]
    if policy.action.n is not None:
        return bool((action == right).mean() > 0.75)
    return bool(np.abs(action - right).mean() < 0.3)
