"""The recurrent model, and PPO with it: numpy against torch, random_unrolls against steps, and learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.facts import UnsoundError
from flowrl.core.state import State
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.evaluators.evaluator import Evaluator
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.models.recurrent import Gru
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.ppo import Ppo
from flowrl.nodes.returns import gae
from tests.nodes.learn_modes import DISCRETE, OBS, learn_from, same_bits, tensors

SIZE, STEPS = 8, 5
HEADS = {"a": LinearHead(3), "value": LinearHead(1)}
RNG = np.random.default_rng(0)


def gru(**params: Any) -> Gru:
    return Gru(hidden=[6], size=SIZE, **params)


def arrays(module: torch.nn.Module) -> dict[str, Any]:
    return {name: p.detach().numpy() for name, p in module.named_parameters()}


def random_unrolls(n: int) -> tuple[Any, Any, Any]:
    obs = RNG.standard_normal((n, STEPS, *OBS.shape), np.float32)
    memory = RNG.standard_normal((n, SIZE), np.float32)
    return obs, memory, RNG.random((n, STEPS)) < 0.3


def run_unrolls(module: torch.nn.Module, obs: Any, memory: Any, begins: Any) -> Any:
    flat = torch.from_numpy(obs.reshape(-1, *obs.shape[2:]))
    with torch.no_grad():
        return module(flat, torch.from_numpy(memory), torch.from_numpy(begins))


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_numpy_steps_equal_torch_unrolls(activation: str) -> None:
    model = gru(activation=activation)
    module = model.build(OBS, HEADS, 3)
    inference_model = model.inference_model(OBS, HEADS, ("a",))
    inference_model.load(arrays(module))
    obs, memory, begins = random_unrolls(4)
    found = run_unrolls(module, obs, memory, begins)
    for t in range(STEPS):
        memory = np.where(begins[:, t : t + 1], np.float32(0), memory)
        out = inference_model(obs[:, t], memory)
        memory = out["memory"]
        at = np.arange(4) * STEPS + t
        np.testing.assert_allclose(out["a"], found["a"].numpy()[at], atol=1e-6)
        np.testing.assert_allclose(memory, found["memory"].numpy()[at], atol=1e-6)
    assert set(out) == {"a", "memory"}


def test_the_memory_is_cleared_where_an_episode_begins() -> None:
    module = gru().build(OBS, HEADS, 0)
    obs, memory, begins = random_unrolls(2)
    begins[:] = False
    begins[:, 2] = True
    first = run_unrolls(module, obs, memory, begins)["a"].reshape(2, STEPS, -1)
    other = run_unrolls(module, obs, memory * 2 + 1, begins)["a"].reshape(2, STEPS, -1)
    assert not torch.equal(first[:, :2], other[:, :2])
    assert torch.equal(first[:, 2:], other[:, 2:])


def ppo(**params: Any) -> Ppo:
    return Ppo(obs=OBS, action=DISCRETE, model=gru(), unroll_steps=STEPS, **params)


def random_batch(policy: Ppo, n: int) -> Batch:
    """Random unrolls with a collector's columns."""
    obs, memory, over = random_unrolls(n)
    last = over.copy()
    last[:, -1] = True
    terminated = over & (RNG.random(over.shape) < 0.5)
    return Batch(
        {
            "obs": obs,
            "next_obs": RNG.standard_normal(obs.shape, np.float32),
            "action": RNG.integers(2, size=(n, STEPS)),
            "logp": np.full((n, STEPS), np.log(0.5), np.float32),
            "reward": RNG.standard_normal((n, STEPS), np.float32),
            "discount": np.where(terminated, np.float32(0), np.float32(0.9)),
            "terminated": terminated,
            "truncated": over & ~terminated,
            "last": last,
            "memory": memory,
        }
    )


def test_advantages_equal_those_of_the_slow_implementation() -> None:
    policy = ppo(normalise_advantages=False, gamma=0.9, gae_lambda=0.8)
    mode, batch = policy.learn_mode(1), random_batch(policy, 6)
    found, _, _ = mode.targets(tensors(batch))
    module = mode.net.module
    expected = []
    for k in range(6):
        memory, v_t, v_tp1 = batch["memory"][k : k + 1], [], []
        for t in range(STEPS):
            no = np.zeros((1, 1), bool)
            if t and batch["last"][k, t - 1]:
                memory = np.zeros_like(memory)
            out = run_unrolls(module, batch["obs"][k : k + 1, t : t + 1], memory, no)
            memory = out["memory"].numpy()
            after = run_unrolls(module, batch["next_obs"][k : k + 1, t : t + 1], memory, no)
            v_t.append(out["value"].item())
            v_tp1.append(after["value"].item())
        cut = batch["last"][k]
        v_next = np.where(cut, v_tp1, np.append(v_t[1:], 0))
        reward, discount = batch["reward"][k], batch["discount"][k]
        expected.append(gae(reward, discount, np.array(v_t), v_next, cut, 0.8))
    np.testing.assert_allclose(found, np.stack(expected), atol=1e-5)


def test_each_epoch_learns_from_every_unroll_once() -> None:
    policy = ppo(epochs=2, minibatch_size=STEPS * 2)
    mode, batch, seen = policy.learn_mode(0), random_batch(policy, 5), []
    step = mode.descend_minibatch
    mode.descend_minibatch = lambda dealt: (seen.append(dealt.memory), step(dealt))[1]
    learn_from(mode, batch)
    assert [len(memory) for memory in seen] == [2, 2, 1] * 2
    for epoch in (seen[:3], seen[3:]):
        rows = torch.cat(epoch).numpy()
        assert sorted(map(tuple, rows)) == sorted(map(tuple, batch["memory"]))


def test_a_restored_learner_continues_with_the_same_bits() -> None:
    policy = ppo()
    batches = [random_batch(policy, 4) for _ in range(4)]
    mode, again = policy.learn_mode(0), policy.learn_mode(9)
    for batch in batches[:2]:
        learn_from(mode, batch)
    again.load_state_dict(mode.state_dict())
    for batch in batches[2:]:
        learn_from(mode, batch)
        learn_from(again, batch)
    assert same_bits(mode.state_dict(), again.state_dict())


def test_acting_weights_exclude_the_value_head() -> None:
    policy = ppo()
    weights = policy.learn_mode(0).weights()
    assert not any("value" in name for name in weights)
    act = policy.collect_mode(0)
    act.load(State(weights))
    found = act.forward(
        np.zeros((3, *OBS.shape), np.float32), {"memory": np.zeros((3, SIZE), "f4")}
    )
    assert {name: len(column) for name, column in found.items()} == {
        "action": 3,
        "logp": 3,
        "memory": 3,
    }


def test_inconsistent_models_and_unrolls_are_refused() -> None:
    with pytest.raises(UnsoundError, match="a recurrent model must learn from unrolls"):
        Ppo(obs=OBS, action=DISCRETE, model=gru())
    with pytest.raises(UnsoundError, match="a recurrent model must learn from unrolls"):
        Ppo(obs=OBS, action=DISCRETE, unroll_steps=4)
    with pytest.raises(UnsoundError, match="dqn learns from single steps"):
        Dqn(obs=OBS, action=Column("int64", n=2), model=gru())


def mean_return(model: Any, unroll_steps: int | None, iters: int) -> float:
    env = Gymnasium(id="tests.nodes.toy_envs:MemoryEnv")
    envs = SerialEnvManager(env=env, count=8, seed=0)
    spec = envs.spec()
    params = {"model": model} if model else {}
    policy = Ppo(
        obs=spec.obs, action=spec.action, lr=3e-3, unroll_steps=unroll_steps, gamma=0.9, **params
    )
    collector = SampleCollector(envs=envs, policy=policy, n_sample=256, seed=0)
    learner = Learner(policy=policy, seed=0)
    for _ in range(iters):
        learner.train(collector.fire(learner.state()), env_steps=256)
    evaluator = Evaluator(env=env, policy=policy, episodes=40, seed=1)
    return evaluator.eval(learner.state()).return_mean


@pytest.mark.slow
def test_a_recurrent_policy_uses_earlier_observations() -> None:
    """Without memory, no policy is better than chance."""
    assert mean_return(Gru(size=16), 8, 60) > 0.9
    assert mean_return(None, None, 60) < 0.5


@pytest.mark.slow
def test_a_recurrent_graph_has_the_same_digest_on_several_sites(tmp_path: Path) -> None:
    graph = tmp_path / "remembering.yaml"
    graph.write_text(
        "extends: cartpole_ppo\n"
        "policy: {unroll_steps: 16, model: {type: gru, size: 8}}\n"
        "nodes: {evaluator: {episodes: 2}, collector: {stepping: halves}}\n"
    )
    loaded = flowrl.load(str(graph))
    digests = {
        loaded.run(placement=place, train_iters=12, out=tmp_path / place).digest
        for place in ("serial", "threads")
    }
    assert len(digests) == 1
