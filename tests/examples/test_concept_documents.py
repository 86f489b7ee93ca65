"""The examples of the concept documents, with flowrl's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowrl.core.batch import Batch
from flowrl.core.checkpoint import checkpoint_bytes
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.collectors.episode_collector import EpisodeCollector
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.evaluators.evaluator import Evaluator
from flowrl.nodes.greedy_policy import GreedyPolicy
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.models.recurrent import Gru
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.expert import Expert
from flowrl.nodes.policies.r2d2 import R2d2
from flowrl.nodes.policies.random import Random

ENV = Gymnasium(id="CartPole-v1")


@pytest.fixture
def normal_env() -> SerialEnvManager:
    return SerialEnvManager(env=ENV, count=4, seed=0)


def described(envs: Any) -> dict[str, Any]:
    spec = envs.spec()
    return {"obs": spec.obs, "action": spec.action}


def test_env_manager(normal_env: SerialEnvManager) -> None:
    """`env.launch(); while True: obs = env.ready_obs; … timestep = env.step(action) … env.done`."""
    env = normal_env
    random_policy = Random(**described(env)).collect_mode(0)
    transitions = []
    env.launch(episodes=2)
    while True:
        obs = env.ready_obs
        action = random_policy.forward(obs)
        timestep = env.step(action)
        transitions += [(obs[i], action[i], t.obs, t.reward, t.done) for i, t in timestep.items()]
        if env.done:
            break
    assert sum(done for *_, done in transitions) == 8


def test_collectors(normal_env: SerialEnvManager) -> None:
    """`sample_collector.collect(n_sample=100)`, `episode_collector.collect(n_episode=10)`."""
    dqn_policy = Dqn(**described(normal_env))
    learner = Learner(policy=dqn_policy, seed=0)
    sample_collector = SampleCollector(envs=normal_env, policy=dqn_policy.collect_mode, seed=0)

    # collect 100 train sample
    data = sample_collector.collect(n_sample=100, weights=learner.state())
    assert isinstance(data, Batch)
    assert len(data) == 100
    assert all(isinstance(item, dict) for item in data.to_rows())
    assert {"obs", "action", "next_obs", "reward", "terminated", "truncated"} <= set(data)

    # collect 10 env episode
    more = SerialEnvManager(env=ENV, count=4, seed=1)
    episode_collector = EpisodeCollector(envs=more, policy=dqn_policy.collect_mode, seed=0)
    episodes = episode_collector.collect(n_episode=10, weights=learner.state())
    assert isinstance(episodes, list)
    assert len(episodes) == 10
    assert all(e["last"].tolist() == [False] * (len(e) - 1) + [True] for e in episodes)


def test_other_policies(normal_env: SerialEnvManager, tmp_path: Path) -> None:
    """Warm-up with a random policy, then the policy and an expert by turns: `reset_policy`."""
    spaces = described(normal_env)
    dqn_policy, random_policy = Dqn(**spaces), Random(**spaces)
    learner = Learner(policy=dqn_policy, seed=0)
    checkpoint = tmp_path / "expert.safetensors"
    checkpoint.write_bytes(checkpoint_bytes({"learner": learner.state()}, {}))
    expert_policy = Expert(**spaces, checkpoint=str(checkpoint), trained=dqn_policy)
    collector = SampleCollector(envs=normal_env, policy=dqn_policy, seed=0)
    replay_buffer = NaiveReplayBuffer(size=20_000, batch_size=64, seed=0)

    # train beginning(random_policy)
    collector.reset_policy(random_policy.collect_mode)
    random_data = collector.collect(n_sample=1000)
    replay_buffer.push(random_data)
    # main loop
    for _ in range(3):
        collector.reset_policy(dqn_policy.collect_mode)
        data = collector.collect(n_sample=100, weights=learner.state())
        collector.reset_policy(expert_policy.collect_mode)
        expert_data = collector.collect(n_sample=100)
        # train dqn_policy with collected data
        replay_buffer.push(data)
        replay_buffer.push(expert_data.to_rows())  # a list of dicts, as in the documents
        learner.train(replay_buffer.sample(), env_steps=len(data))
    assert learner.train_iter == 3
    assert collector.envstep == 1000 + 3 * (100 + 100)


def test_evaluator(normal_env: SerialEnvManager) -> None:
    """`if evaluator.should_eval(…): stop, reward = evaluator.eval(…, n_episode=10)`."""
    dqn_policy = Dqn(**described(normal_env))
    learner = Learner(policy=dqn_policy, seed=0)
    eval_envs = SerialEnvManager(env=ENV, count=4, seed=1)
    evaluator = Evaluator(envs=eval_envs, policy=dqn_policy.eval_mode, stop_value=195.0, seed=0)
    collector = SampleCollector(envs=normal_env, policy=dqn_policy, seed=0)

    for _ in range(3):
        # Evaluate policy performance
        if evaluator.should_eval(learner.train_iter):
            evaluation = evaluator.eval(learner.state(), n_episode=10)
            stop, reward = evaluation.stop, evaluation.returns
            assert isinstance(reward, list)
            assert len(reward) == 10
            # if stop flag, exit the process
            if stop:
                break
        # if not stop flag, continue to collect data and train the model
        new_data = collector.collect(weights=learner.state())
        learner.train(new_data, env_steps=len(new_data))
    assert not stop


def test_a_policy_with_memory_says_that_it_cannot_act_by_id() -> None:
    env = SerialEnvManager(env=ENV, count=2, seed=0)
    recurrent = R2d2(**described(env), model=Gru(hidden=[8], size=8), unroll_steps=4)
    mode = recurrent.eval_mode(0)
    env.launch()
    with pytest.raises(
        ValueError, match=r"the policy remembers its episode, .*take a GreedyPolicy"
    ):
        mode.forward(env.ready_obs)


def test_the_mode_that_is_given_acts(normal_env: SerialEnvManager) -> None:
    """A collector of an eval mode is greedy: it does not explore."""
    policy = Dqn(**described(normal_env), epsilon=1.0)
    learner = Learner(policy=policy, seed=0)
    collector = SampleCollector(envs=normal_env, policy=policy.eval_mode, seed=0)
    rows = collector.collect(n_sample=32, weights=learner.state())
    greedy = GreedyPolicy(policy, learner.state())
    assert [greedy.act(obs) for obs in rows["obs"]] == rows["action"].tolist()
