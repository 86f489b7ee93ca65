"""Recurrent DQN: targets by a plain loop, memory as in acting, and learning to remember."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrl
from flowrl.core.batch import Array, Batch, Column
from flowrl.core.facts import UnsoundError
from flowrl.core.state import Count, State
from flowrl.nodes.losses import nstep_targets, rescale_value, restore_value
from flowrl.nodes.models.recurrent import Gru, Lstm
from flowrl.nodes.observations import NestedColumns
from flowrl.nodes.policies.r2d2 import R2d2
from tests.nodes.learn_modes import learn_from, tensors

OBS, ACTION = Column("float32", (3,)), Column("int64", n=2)


def policy(**params: Any) -> R2d2:
    given = {"model": Gru(hidden=[5], size=4), "unroll_steps": 6, **params}
    return R2d2(obs=OBS, action=ACTION, **given)


def plain_target(
    reward: Array, discount: Array, length: int, v: Array, steps: int, t: int
) -> float:
    """Compute one window, one reward after another."""
    total, factor, end = 0.0, 1.0, min(t + steps, length)
    for k in range(t, end):
        total += factor * float(reward[k])
        factor *= float(discount[k])
    return total + factor * float(v[end])


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(st.integers(1, 7), st.integers(1, 9), st.integers(0, 2**31), st.data())
def test_targets_equal_those_of_a_plain_loop(length: int, steps: int, seed: int, data: Any) -> None:
    rng = np.random.default_rng(seed)
    reward, v = rng.standard_normal((2, length)), rng.standard_normal((2, length + 1))
    ends = [data.draw(st.integers(1, length)) for _ in range(2)]
    valid = np.arange(length) < np.array(ends)[:, None]
    discount = np.where(rng.random((2, length)) < 0.2, 0.0, 0.9)
    found = nstep_targets(*map(torch.tensor, (reward, discount, valid, v)), steps).numpy()
    for w, end in enumerate(ends):
        for t in range(end):
            wanted = plain_target(reward[w], discount[w], end, v[w], steps, t)
            assert found[w, t] == pytest.approx(wanted, abs=1e-9)


def test_rescaling_equals_hand_worked_numbers_and_is_inverted() -> None:
    x = torch.tensor([-8.0, 0.0, 3.0, 99.0], dtype=torch.float64)
    by_hand = [-2 - 0.008, 0.0, 1 + 0.003, 9 + 0.099]
    assert rescale_value(x).tolist() == pytest.approx(by_hand)
    assert restore_value(rescale_value(x)).tolist() == pytest.approx(x.tolist(), abs=1e-9)


def test_single_precision_loses_no_digits_in_rescaling_and_back() -> None:
    """The formula as it is written in the paper has an error of several percent at 1e-3."""
    sizes = torch.logspace(-6, 4, 201, dtype=torch.float32)
    x = torch.cat([-sizes, sizes])
    torch.testing.assert_close(restore_value(rescale_value(x)), x, rtol=1e-6, atol=0)
    torch.testing.assert_close(rescale_value(restore_value(x)), x, rtol=1e-6, atol=0)


@pytest.mark.parametrize("rescale", [True, False])
def test_the_target_of_a_terminal_step_is_its_reward(rescale: bool) -> None:
    learn = policy(rescale=rescale, target_steps=1).learn_mode(3)
    table = sequences()
    table["discount"][:] = 0
    q = learn.action_values(learn.q, tensors(Batch(table))).detach()[:, :-1]
    q = q.gather(2, torch.tensor(table["action"]).unsqueeze(2)).squeeze(2)
    goal = torch.tensor(table["reward"])
    result = learn_from(learn, Batch(table))
    wanted = ((rescale_value(goal) if rescale else goal) - q).abs().numpy()
    np.testing.assert_allclose(result.priorities, wanted, atol=1e-6)


def sequences(count: int = 3, steps: int = 6, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    seen = rng.standard_normal((count, steps + 1, 3)).astype(np.float32)
    return {
        "obs": seen[:, :-1].copy(),
        "next_obs": seen[:, 1:].copy(),
        "action": rng.integers(2, size=(count, steps)),
        "reward": rng.standard_normal((count, steps)).astype(np.float32),
        "discount": np.full((count, steps), 0.9, np.float32),
        "valid": np.ones((count, steps), bool),
        "memory": rng.standard_normal((count, 4)).astype(np.float32),
    }


@pytest.mark.parametrize("model", [Gru(hidden=[5], size=4), Lstm(hidden=[5], size=2)])
@pytest.mark.parametrize("burn_in_steps", [0, 2])
def test_learning_has_the_memory_that_acting_would_have(burn_in_steps: int, model: Any) -> None:
    described = policy(burn_in_steps=burn_in_steps, model=model)
    learn, act = described.learn_mode(3), described.eval_mode(0)
    act.load(State(learn.weights()))
    table = sequences()
    seen = np.concatenate([table["obs"][:, :1], table["next_obs"]], 1)
    q = learn.action_values(learn.q, tensors(Batch(table))).detach().numpy()
    memory = table["memory"]
    for t in range(7):
        out = act.model(seen[:, t], memory)
        memory = out["memory"]
        if t >= burn_in_steps:
            np.testing.assert_allclose(q[:, t - burn_in_steps], out["q"], atol=1e-5)


@pytest.mark.parametrize("burn_in_steps", [0, 2])
@pytest.mark.parametrize("model", [Gru(size=4), Lstm(size=4)], ids=["gru", "lstm"])
def test_no_target_includes_a_forbidden_action(model: Any, burn_in_steps: int) -> None:
    nested = NestedColumns({"action_mask": Column("int8", (2,), n=2), "state": OBS})
    described = R2d2(
        obs=nested,
        action=ACTION,
        model=model,
        unroll_steps=6,
        burn_in_steps=burn_in_steps,
        target_steps=1,
        rescale=False,
    )
    [memory] = described.memory_columns().values()
    masks = np.array([[0, 1], [1, 0], [1, 1]], np.int8)[
        np.random.default_rng(1).integers(3, size=(3, 7))
    ]
    table = sequences()
    table["obs/state"], table["next_obs/state"] = table.pop("obs"), table.pop("next_obs")
    table["memory"] = np.full((3, *memory.shape), 0.1, np.float32)
    table["reward"][:] = 0
    table["discount"][:] = 1
    table["action"] = masks[:, :-1].argmax(2)
    learn: Any = described.learn_mode(3)
    ones = {f"{name}/action_mask": np.ones((3, 6, 2), np.int8) for name in ("obs", "next_obs")}
    free = learn.action_values(learn.q, tensors(Batch({**table, **ones}))).detach().numpy()
    table["obs/action_mask"], table["next_obs/action_mask"] = masks[:, :-1], masks[:, 1:]
    result = learn_from(learn, Batch({name: np.ascontiguousarray(a) for name, a in table.items()}))
    allowed = np.where(masks[:, burn_in_steps:] == 0, -np.inf, free)
    assert (allowed.max(2) != free.max(2)).any()
    taken = np.take_along_axis(free[:, :-1], table["action"][:, burn_in_steps:, None], 2)[..., 0]
    wanted = np.abs(allowed[:, 1:].max(2) - taken)  # both networks are equal at first
    np.testing.assert_allclose(result.priorities[:, burn_in_steps:], wanted, rtol=1e-4, atol=1e-6)


def test_burn_in_steps_and_invalid_steps_have_no_effect_on_learning() -> None:
    described = policy(burn_in_steps=2, target_steps=1)
    table = sequences()
    table["valid"][0, 4:] = False
    others = {name: array.copy() for name, array in table.items()}
    others["reward"][:, :2] = 77
    others["reward"][0, 4:] = 99
    learned = []
    for given_table in (table, others):
        learn = described.learn_mode(3)
        result = learn_from(learn, Batch(given_table))
        assert result.priorities is not None
        assert (result.priorities[:, :2] == 0).all()
        assert (result.priorities[0, 4:] == 0).all()
        assert (result.priorities[1:, 2:] > 0).all()
        learned.append(learn.weights())
    assert all(np.array_equal(learned[0][name], learned[1][name]) for name in learned[0])


def test_a_restored_learner_continues_with_the_same_bits() -> None:
    described = policy(target={"every_iters": 2})
    one, other = described.learn_mode(3), described.learn_mode(4)
    batch = Batch({**sequences(), "weight": np.array([1, 0.5, 0.2], np.float32)})
    for _ in range(3):
        learn_from(one, batch)
    other.load_state_dict(one.state_dict())
    learn_from(one, batch)
    learn_from(other, batch)
    assert all(np.array_equal(one.weights()[n], other.weights()[n]) for n in one.weights())


def test_unsupported_configurations_are_refused() -> None:
    with pytest.raises(UnsoundError, match="give `target_steps` instead"):
        policy(nstep=3)
    with pytest.raises(UnsoundError, match="6 of 6 steps are burn-in"):
        policy(burn_in_steps=6)
    with pytest.raises(UnsoundError, match="chooses one of n actions"):
        R2d2(obs=OBS, action=Column("float32", (2,)))
    assert policy(epsilon={"start": 0.5}).command(Count()) == {"epsilon": 0.5, "lr": 1e-3}


GRAPH = """
about: R2D2 recalls what it was shown.
env: {id: "tests.nodes.toy_envs:MemoryEnv"}
policy:
  type: r2d2
  model: {type: gru, size: 16}
  gamma: 0.9
  lr: 0.005
  unroll_steps: 4
  burn_in_steps: BURN
  target_steps: 3
  target: {every_iters: 25}
  epsilon: {env_steps: 1500}
nodes:
  envs: {type: env_manager, count: 4}
  collector: {type: sample_collector, n_sample: SAMPLES, origin: true}
  buffer:
    type: sequence_buffer
    size: 4000
    unroll_steps: 4
    burn_in_steps: BURN
    batch_size: 32
    updates_per_push: 4
    memory_columns: [memory]
    beta_iters: 1000
  learner: {type: learner}
  evaluator: {type: evaluator, episodes: 20, stop_value: 0.95}
edges:
  - collector <-> envs
  - collector -> buffer -> learner
  - learner.priorities -> buffer.priorities
  - learner -> collector
  - learner -> evaluator: {every: 100}
warmup:
  - {edges: [collector -> buffer], steps: 500}
"""


def write_graph(folder: Path, burn_in_steps: int, n_sample: int) -> Path:
    text = GRAPH.replace("BURN", str(burn_in_steps)).replace("SAMPLES", str(n_sample))
    (folder / "recall.yaml").write_text(text)
    return folder / "recall.yaml"


@pytest.mark.slow
@pytest.mark.parametrize(("burn_in_steps", "n_sample"), [(0, 32), (1, 24)])
def test_it_learns_to_remember(burn_in_steps: int, n_sample: int, tmp_path: Path) -> None:
    """Tokens of 6 steps for each env cut episodes of 4 steps."""
    graph = flowrl.load(write_graph(tmp_path, burn_in_steps, n_sample))
    assert graph.check().problems == []
    result = graph.run(train_iters=2500, out=tmp_path / "run")
    assert result.status == "solved"


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["gru", "lstm"])
def test_it_has_the_same_digest_in_every_placement(unit: str, tmp_path: Path) -> None:
    graph = write_graph(tmp_path, 1, 24)
    digests = {
        flowrl.load(graph, {"policy.model.type": unit})
        .run(placement=p, train_iters=60, out=tmp_path / p)
        .digest
        for p in ("serial", "threads")
    }
    assert len(digests) == 1


@pytest.mark.exhaustive
def test_an_lstm_learns_to_remember_too(tmp_path: Path) -> None:
    graph = flowrl.load(write_graph(tmp_path, 1, 24), {"policy.model.type": "lstm"})
    assert graph.run(train_iters=2500, out=tmp_path / "run").status == "solved"


def test_check_refuses_a_buffer_with_other_sequences(tmp_path: Path) -> None:
    graph = flowrl.load(write_graph(tmp_path, 0, 32), {"buffer.unroll_steps": 5})
    [problem] = graph.check().problems
    assert problem.what.startswith("buffer.batches gives other sequences than learner.data needs")
