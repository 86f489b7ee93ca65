"""The formulas of reward models, against slow and plain definitions. Each test fails if a term is left out."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flowrl.core.batch import Array, Batch
from flowrl.core.facts import UnsoundError
from flowrl.nodes.rewards.shaping import Shaping
from flowrl.nodes.rewards.trex import episodes_of
from tests.nodes.rewards.reward_models import (
    DISCRETE,
    REAL,
    facts,
    fire,
    make,
    rows,
    schema_of,
)


def trained(name: str, schema: Any = None, **params: Any) -> Any:
    """A reward model after some training."""
    node = make(name, schema, **params)
    for seed in range(5):
        fire(node, rows(schema, seed), rows(schema, 1000 + seed))
    return node


def steps(node: Any, batch: Batch) -> Any:
    found = node.as_steps(node.step_arrays(batch))
    return found


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("action", [DISCRETE, REAL], ids=["discrete", "real"])
@pytest.mark.parametrize("form", ["positive", "negative", "signed"])
def test_gail_rewards_by_the_discriminator(action: Any, form: str) -> None:
    schema = schema_of(action=action)
    node, batch = trained("gail", schema, form=form), rows(schema, 7)
    with torch.no_grad():
        b = steps(node, batch)
        logits = node.discriminator(obs=b.obs, action=b.action)["logit"].tolist()
        found = node.bonus(b).tolist()
    for reward, x in zip(found, logits, strict=True):
        d = sigmoid(x)
        parts = {"positive": -math.log(1 - d), "negative": math.log(d)}
        assert reward == pytest.approx(parts.get(form, sum(parts.values())), abs=1e-5)


def test_the_discriminator_learns_to_tell_the_expert_from_the_agent() -> None:
    node = make("gail", updates_per_token=30, lr=0.01)
    agent = rows(action=np.zeros(40, np.int64))
    expert = rows(seed=1, action=np.ones(40, np.int64))
    for _ in range(10):
        fire(node, agent, expert if node.tokens == 0 else None)
    with torch.no_grad():
        assert node.logit(steps(node, expert)).min() > 0 > node.logit(steps(node, agent)).max()
    rewards = [fire(node, batch)["reward"].mean() for batch in (expert, agent)]
    assert rewards[0] > 5 * rewards[1]


def test_real_valued_actions_are_scaled_and_observations_are_normalised() -> None:
    schema = schema_of(action=REAL)
    node, batch = trained("gail", schema), rows(schema, 3)
    b = steps(node, batch)
    middle, half = np.array([0.0, 1.0]), np.array([2.0, 2.0])
    np.testing.assert_allclose(b.action, (batch["action"] - middle) / half, rtol=1e-6)
    moments = node.obs_moments.moments[""]
    expected = np.clip((batch["obs"] - moments.mean) / moments.std, -5, 5)
    np.testing.assert_allclose(b.obs, expected, rtol=1e-5)
    plain = trained("gail", schema, normalise_obs=False)
    np.testing.assert_array_equal(steps(plain, batch).obs, batch["obs"])


def test_observations_are_normalised_by_the_moments_of_all_rows_so_far() -> None:
    node, tokens = make("rnd"), [rows(seed=1), rows(seed=2)]
    for batch in tokens:
        fire(node, batch)
    seen = np.concatenate([batch["next_obs"] for batch in tokens]).astype(float)
    moments = node.obs_moments.moments[""]
    np.testing.assert_allclose(moments.mean, seen.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(moments.std, seen.std(0), rtol=1e-2)


@pytest.mark.parametrize("action", [DISCRETE, REAL], ids=["discrete", "real"])
def test_icm_rewards_the_error_of_its_forecast(action: Any) -> None:
    schema = schema_of(action=action)
    node, batch = trained("icm", schema), rows(schema, 7)
    with torch.no_grad():
        b = steps(node, batch)
        phi_t, phi_tp1 = (node.encoder(obs)["phi"] for obs in (b.obs, b.next_obs))
        forecast = node.dynamics(phi=phi_t, action=b.action)["next_phi"]
        found = node.bonus(b)
    for row in range(len(batch)):
        squares = [(x - y) ** 2 for x, y in zip(forecast[row], phi_tp1[row], strict=True)]
        assert float(found[row]) == pytest.approx(0.5 * float(sum(squares)), rel=1e-4)


def test_the_loss_of_icm_weighs_forecast_and_action() -> None:
    node = trained("icm", forward_share=0.3)
    b = node.minibatch()
    with torch.no_grad():
        heads = node.inverse(phi=node.encode(b.obs), next_phi=node.encode(b.next_obs))
        logp = heads["logits"].log_softmax(1)[torch.arange(len(b.action)), b.action]
        before = {"forward": node.bonus(b).mean(), "inverse": -logp.mean()}
    found = node.train(b)
    assert float(found["forward_loss"]) == pytest.approx(float(before["forward"]), rel=1e-5)
    assert float(found["inverse_loss"]) == pytest.approx(float(before["inverse"]), rel=1e-5)


@pytest.mark.parametrize(
    ("share", "moved"), [(0.0, {"encoder", "inverse"}), (1.0, {"encoder", "dynamics"})]
)
def test_each_loss_of_icm_trains_its_networks(share: float, moved: set[str]) -> None:
    node = make("icm", forward_share=share)
    before = {n: getattr(node, n).params.clone() for n in ("encoder", "inverse", "dynamics")}
    fire(node, rows())
    changed = {
        n for n, params in before.items() if not torch.equal(params, getattr(node, n).params)
    }
    assert changed == moved


def test_red_rewards_by_the_error_relative_to_the_experts() -> None:
    node, batch = trained("red", sharpness=0.7), rows(seed=7)
    with torch.no_grad():
        b = steps(node, batch)
        goal, guess = (
            n(obs=b.obs, action=b.action)["embedding"] for n in (node.target, node.predictor)
        )
        found = node.bonus(b)
    for row in range(len(batch)):
        error = float(np.mean([(x - y) ** 2 for x, y in zip(goal[row], guess[row], strict=True)]))
        assert float(found[row]) == pytest.approx(
            math.exp(-0.7 * error / node.expert_error), rel=1e-4
        )


def test_red_follows_the_mean_error_on_the_experts_steps() -> None:
    """By an exponential average over gradient steps that keeps 0.9."""
    node = make("red", updates_per_token=1)
    for token in range(6):
        fire(node, rows(seed=token), rows(seed=1000) if token == 0 else None)
    for _ in range(4):
        before = node.expert_error
        loss = float(node.train(node.minibatch())["predictor_loss"])
        assert node.expert_error == pytest.approx(0.9 * before + 0.1 * loss, rel=1e-6)


@pytest.mark.parametrize("action", [DISCRETE, REAL], ids=["discrete", "real"])
def test_rnd_rewards_the_squared_error_on_random_features(action: Any) -> None:
    schema = schema_of(action=action)
    node, batch = trained("rnd", schema), rows(schema, 7)
    with torch.no_grad():
        b = steps(node, batch)
        goal, guess = (n(next_obs=b.next_obs)["embedding"] for n in (node.target, node.predictor))
        found = node.bonus(b)
    for row in range(len(batch)):
        error = float(np.mean([(x - y) ** 2 for x, y in zip(goal[row], guess[row], strict=True)]))
        assert float(found[row]) == pytest.approx(error, rel=1e-4)


def test_red_learns_from_the_experts_steps_alone() -> None:
    def learned(seed: int) -> Tensor:
        node = make("red", normalise_obs=False)
        for token in range(3):
            fire(node, rows(seed=seed + token), rows(seed=1000) if token == 0 else None)
        params: Tensor = node.predictor.params
        return params

    assert torch.equal(learned(0), learned(50))


def test_red_rewards_the_experts_steps_more() -> None:
    node = make("red", updates_per_token=30, features=16, lr=0.005)
    agent, expert = rows(action=np.zeros(40, np.int64)), rows(seed=1, action=np.ones(40, np.int64))
    for token in range(8):
        fire(node, agent, expert if token == 0 else None)
    rewards = [fire(node, batch)["reward"].mean() for batch in (expert, agent)]
    assert rewards[0] > 2 * rewards[1]


def test_the_logit_of_airl_has_reward_shaping_and_likelihood() -> None:
    batch = rows(seed=7, discount=np.where(np.arange(40) % 3 == 0, 0.0, 0.9).astype(np.float32))
    node = trained("airl", lr=0.01)
    with torch.no_grad():
        b = steps(node, batch)
        g = node.reward_network(obs=b.obs, action=b.action)["value"]
        h_t, h_tp1 = (node.shaping_network(obs)["value"] for obs in (b.obs, b.next_obs))
        mode = node.learning.learn_mode(0)  # whose weights the node was given
        logits = mode.net(torch.from_numpy(batch["obs"].copy()))["logits"]  # of raw observations
        found = node.bonus(b).tolist()
    for row, reward in enumerate(found):
        p = logits[row].softmax(0)[int(batch["action"][row])]
        f = g[row] + float(batch["discount"][row]) * h_tp1[row] - h_t[row]
        d = math.exp(f) / (math.exp(f) + float(p))
        assert reward == pytest.approx(math.log(d) - math.log(1 - d), abs=1e-4)


def test_airl_takes_the_likelihood_of_real_valued_actions() -> None:
    schema = schema_of(action=REAL)
    node, batch = trained("airl", schema), rows(schema, 7)
    with torch.no_grad():
        heads = node.learning.learn_mode(0).net(torch.from_numpy(batch["obs"].copy()))
        normal = torch.distributions.Normal(heads["mean"], heads["log_std"].exp())
        expected = normal.log_prob(torch.from_numpy(batch["action"].copy())).sum(1)
    np.testing.assert_allclose(steps(node, batch).logp, expected, rtol=1e-4)


def test_a_reward_of_observations_only_ignores_the_action() -> None:
    node = trained("airl", state_only=True)
    assert list(node.reward_network.inputs) == ["obs"]


def test_airl_refuses_a_policy_without_likelihoods() -> None:
    from flowrl.core.config import PartSpec
    from flowrl.nodes.policies.dqn import Dqn

    with pytest.raises(
        UnsoundError, match="airl needs the likelihoods of actions, and dqn does not"
    ):
        facts("airl", schema_of(), policy=PartSpec("dqn", Dqn, Dqn.Config()))


def ranked_rows() -> Batch:
    """Four episodes of 10 steps, whose returns are 0, 10, 20 and 10; the observation tells the reward."""
    reward = np.repeat([0.0, 1.0, 2.0, 1.0], 10).astype(np.float32)
    obs = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    obs[:, 0] = reward
    return rows(obs=obs, reward=reward)


def test_episodes_are_found_by_their_ends() -> None:
    first, length, returns = episodes_of(dict(ranked_rows().columns))
    assert first.tolist() == [0, 10, 20, 30]
    assert length.tolist() == [10] * 4
    assert returns.tolist() == [0, 10, 20, 10]
    unfinished = {
        "reward": np.ones(5, np.float32),
        "last": np.array([False, True, False, False, False]),
    }
    assert [a.tolist() for a in episodes_of(unfinished)] == [[0], [2], [2.0]]


def test_trex_compares_clips_of_episodes_with_different_returns() -> None:
    node = make("trex", clip_steps=4, batch_size=50, normalise_obs=False)
    fire(node, rows(), ranked_rows())
    b = node.minibatch()
    clips = b.obs[:, 0].view(2, 50, 4).numpy()
    assert (clips == clips[:, :, :1]).all()  # each clip is of one episode
    one, other = clips[:, :, 0]
    assert (one != other).all()
    np.testing.assert_array_equal(b.better.numpy(), one > other)
    assert set(one) == {0, 1, 2}


def test_the_loss_of_trex_is_the_likelihood_of_the_rankings() -> None:
    node = make("trex", clip_steps=4, batch_size=5)
    fire(node, rows(), ranked_rows())
    b = node.minibatch()
    with torch.no_grad():
        rewards = node.bonus(b).view(2, 5, 4).tolist()
    expected = 0.0
    for pair in range(5):
        one, other = (sum(rewards[side][pair]) for side in (0, 1))
        better, worse = (one, other) if b.better[pair] else (other, one)
        expected -= math.log(math.exp(better) / (math.exp(better) + math.exp(worse))) / 5
    assert float(node.train(b)["ranking_loss"]) == pytest.approx(expected, rel=1e-4)


def test_trex_extrapolates_beyond_the_best_demonstration() -> None:
    node = make("trex", updates_per_token=100, lr=0.01, normalise_bonus=False)
    for token in range(3):
        fire(node, rows(), ranked_rows() if token == 0 else None)
    better = np.zeros((40, 3), np.float32)
    better[:, 0] = np.repeat([0.0, 1.0, 2.0, 3.0], 10)
    found = fire(node, rows(obs=better))["reward"].reshape(4, 10).mean(1)
    assert (np.diff(found) > 0).all()


def test_trex_refuses_episodes_that_are_all_as_good() -> None:
    with pytest.raises(ValueError, match="the expert has 4 episodes with one and the same return"):
        fire(make("trex"), rows(), rows(reward=np.ones(40, np.float32)))


@pytest.mark.parametrize(("kept", "episodes"), [(12, 1), (9, 0)])
def test_trex_refuses_a_dataset_of_which_no_episode_is_better_than_another(
    kept: int, episodes: int
) -> None:
    node, expert = make("trex"), ranked_rows()
    few = expert.take(slice(0, kept))
    fire(node, rows(), few)
    message = f"the {kept} rows of the expert have {episodes} whole episodes; trex learns"
    with pytest.raises(ValueError, match=message):
        fire(node, rows(), few.take(slice(0, 0)))


@pytest.mark.parametrize("model", ["gail", "rnd", "shaping"])
def test_a_reward_model_that_leaves_no_reward_is_refused(model: str) -> None:
    with pytest.raises(ValueError, match="with `weight: 0` and `reward_weight: 0`, all rewards"):
        make(model, weight=0.0, reward_weight=0.0)
    make(model, weight=0.0, reward_weight=1.0)
    make(model, weight={"start": 0.0, "end": 1.0, "env_steps": 9}, reward_weight=0.0)


def potential(obs: Array) -> Array:
    return obs[:, 0]


def test_shaping_by_a_potential_is_its_discounted_gain() -> None:
    discount = np.where(np.arange(40) % 4 == 0, 0.0, 0.9).astype(np.float32)
    batch = rows(discount=discount)
    node = make("shaping", function=None, potential=f"{__name__}:potential", weight=2.0)
    found = fire(node, batch)["reward"]
    for row in range(40):
        gain = discount[row] * batch["next_obs"][row, 0] - batch["obs"][row, 0]
        assert found[row] == pytest.approx(batch["reward"][row] + 2 * gain, abs=1e-5)


def two_numbers(argument: Any) -> Array:
    return np.zeros(2, np.float32)


def test_a_wrong_function_of_the_users_is_named() -> None:
    with pytest.raises(ValueError, match="needs a `function` or a `potential`"):
        Shaping()
    with pytest.raises(UnsoundError, match="the function 'nowhere:f' cannot be imported"):
        facts("shaping", schema_of(), function="nowhere:f")
    wrong = make("shaping", function=f"{__name__}:two_numbers")
    with pytest.raises(ValueError, match=r"returned the shape \(2,\) for 40 steps"):
        fire(wrong, rows())


def test_a_constant_replaces_the_reward() -> None:
    assert set(fire(make("constant", weight=0.0), rows())["reward"]) == {0.0}
    assert set(fire(make("constant"), rows())["reward"]) == {1.0}


def pwil_rewards(agent: Array, expert: Array, horizon: int) -> list[float]:
    """The rewards of one episode by algorithm 1 of Dadashi et al. (2021), with fractions of weights."""
    std = expert.std(0)
    pool = [[Fraction(1, len(expert)), atom / std] for atom in expert]
    rewards = []
    for step in agent:
        weight, cost = Fraction(1, horizon), 0.0
        while weight > 0:
            nearest = min(pool, key=lambda one: float(np.linalg.norm(one[1] - step / std)))
            distance = float(np.linalg.norm(nearest[1] - step / std))
            taken = min(weight, nearest[0])
            cost += float(taken) * distance
            weight -= taken
            nearest[0] -= taken
            pool = [one for one in pool if one[0] > 0]
        size = math.sqrt(agent.shape[1])
        rewards.append(5 * math.exp(-5 * horizon / size * cost))
    return rewards


@pytest.mark.parametrize("horizon", [6, 10, 40])
def test_pwil_couples_an_episode_greedily_with_the_expert(horizon: int) -> None:
    schema = schema_of(action=REAL)
    node, expert = make("pwil", schema, horizon_steps=horizon), rows(schema, 9, n=12)
    agent = rows(schema, 3, n=2 * horizon)
    for _ in range(2):  # a token without origin columns begins anew
        found = fire(node, agent, expert if node.tokens == 0 else None)["reward"]
    ends = [0, *(np.flatnonzero(agent["last"]) + 1), 2 * horizon]
    points = [np.concatenate([b["action"], b["obs"]], 1).astype(float) for b in (agent, expert)]
    expected: list[float] = []
    for first, end in itertools.pairwise(ends):
        for begin in range(first, end, horizon):  # after a full episode, all weights are spent
            episode = points[0][begin : min(end, begin + horizon)]
            expected += pwil_rewards(episode, points[1], horizon)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_pwil_follows_the_episodes_of_several_envs_from_token_to_token() -> None:
    def token(first: int, envs: int) -> Batch:
        """Two steps of each env, env by env, from the step `first` on."""
        parts = []
        for env in range(envs):
            part = rows(schema, 3 + env, n=8).take(slice(first, first + 2))
            step = first + np.arange(2)
            origin = {"collector": 0, "env": env, "weights": 0}
            numbers = {f"origin/{k}": np.full(2, v) for k, v in origin.items()}
            parts.append(part.replace(**numbers, **{"origin/step": step}))
        found = Batch.concat(parts)
        done = (found["origin/env"] == 1) & (found["origin/step"] == 3)  # one env ends early
        return found.replace(terminated=done, last=np.array([False, True] * envs))

    schema = schema_of(action=REAL)
    node, expert = make("pwil", schema, horizon_steps=8), rows(schema, 9, n=12)
    fire(node, rows(schema, n=0), expert)
    tokens = [fire(node, token(first, 3)) for first in (0, 2, 4, 6)]
    for env, splits in enumerate([(0, 8), (0, 4, 8), (0, 8)]):
        found = np.concatenate([t["reward"][t["origin/env"] == env] for t in tokens])
        agent, wanted = rows(schema, 3 + env, n=8), []
        points = [np.concatenate([b["action"], b["obs"]], 1).astype(float) for b in (agent, expert)]
        for begin, end in itertools.pairwise(splits):
            wanted += pwil_rewards(points[0][begin:end], points[1], 8)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_the_reward_of_pwil_is_largest_for_the_experts_own_episode() -> None:
    schema = schema_of()
    expert = rows(schema, 9, n=10)
    node = make("pwil", schema, horizon_steps=10)
    assert fire(node, expert, expert)["reward"] == pytest.approx(5.0)
    assert fire(node, rows(schema, 1, n=10))["reward"].max() < 4
