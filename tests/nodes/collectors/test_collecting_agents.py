"""Collectors and evaluators of envs whose agents share a policy: every row is a step of one agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Batch
from flowrl.core.config import PartSpec
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.records import MetricsRecord
from flowrl.nodes.collectors.episode_collector import EpisodeCollector
from flowrl.nodes.collectors.joined_managers import join_specs
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.envs.pettingzoo import PettingZoo
from flowrl.nodes.evaluators.evaluation import play_episodes
from flowrl.nodes.evaluators.evaluator import Evaluator
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.nstep import NstepRule, with_summed_rewards
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.ppo import Ppo
from tests.nodes.collectors.recurrent_toy_policy import StepCountingPolicy
from tests.nodes.envs.agent_envs import AGENTS, SCRIPT
from tests.nodes.envs.agent_managers import make_manager, scripted_agents
from tests.nodes.toy_policies import Toy, ToyAct, weights

# The observation, the reward, the next observation, and whether the episode ended.
Row = tuple[float, float, float, bool]


def scripted_rows(k: int, games: int) -> list[Row]:
    """The rows of an agent in a number of games, according to the script."""
    rows: list[Row] = []
    for t, playing in enumerate(SCRIPT):
        after = SCRIPT[t + 1] if t + 1 < len(SCRIPT) else ""
        if AGENTS[k] in playing:
            rows.append((10 * t + k, 100 * k + t, 10 * t + 10 + k, AGENTS[k] not in after))
    return rows * games


def rows_by_agent(batches: list[Any], agents: int = 6) -> list[list[Row]]:
    """The rows of all tokens, by agent."""
    found: list[list[Row]] = [[] for _ in range(agents)]
    for b in batches:
        ended = b["terminated"] | b["truncated"]
        for row in range(len(b)):
            obs, next_obs = b["obs"][row, 1], b["next_obs"][row, 1]
            found[b["origin/env"][row]].append((obs, b["reward"][row], next_obs, ended[row]))
    return found


def collector(collector_class: Any = SampleCollector, kind: str = "serial", **params: Any) -> Any:
    envs = params.pop("envs", None) or make_manager(scripted_agents(space="choice"), kind)
    spec = envs[0].spec() if isinstance(envs, list) else envs.spec()
    policy = params.pop("policy", Toy)(
        obs=spec.obs, action=spec.action, **params.pop("policy_params", {})
    )
    return collector_class(envs=envs, policy=policy, origin=True, **params)


@pytest.mark.parametrize("stepping", ["together", "halves", "independent", "ready"])
@pytest.mark.parametrize("n_sample", [5, 12, 40])
def test_tokens_have_the_requested_number_of_rows_and_each_step_once(
    stepping: str, n_sample: int
) -> None:
    node = collector(n_sample=n_sample, stepping=stepping)
    tokens = [node.fire(weights(0)) for _ in range(200 // n_sample)]
    assert [len(token) for token in tokens] == [n_sample] * len(tokens)
    for agent_id, rows in enumerate(rows_by_agent(tokens)):
        assert len(rows) > 10
        assert rows == scripted_rows(agent_id % 3, 20)[: len(rows)]
    assert node.ctx.take_count().env_steps == n_sample * len(tokens)


@pytest.mark.parametrize("least", [1, 5])
def test_the_rows_of_independent_equal_those_of_together(least: int) -> None:
    plain = collector(n_sample=36, policy=StepCountingPolicy, policy_params={"unroll_steps": None})
    envs = make_manager(scripted_agents(space="choice"), "thread")
    params: Any = {
        "policy": StepCountingPolicy,
        "policy_params": {"unroll_steps": None},
        "least": least,
    }
    paced = collector(n_sample=36, stepping="independent", envs=envs, **params)
    try:
        for _ in range(5):
            a, b = plain.fire(weights(0)), paced.fire(weights(0))
            assert list(a) == list(b)
            assert all(np.array_equal(a[name], b[name]) for name in a)
    finally:
        envs.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serial", "sync", "sync, pre-reset", "thread"])
def test_rows_of_failing_games_are_consecutive_steps(kind: str) -> None:
    retries = {"max_retry": 1000, "retry_waiting_time_s": 0.0}
    envs = make_manager(scripted_agents(space="choice", fails=0.1), kind, count=4, **retries)
    try:
        node = collector(n_sample=120, envs=envs, log_every_steps=1)
        tokens = [node.fire(weights(0)) for _ in range(10)]
    finally:
        envs.close()
    assert [len(token) for token in tokens] == [120] * 10
    for token in tokens:
        of_one = zip(rows_by_agent([token], 12), episode_spans(token, 12), strict=True)
        for agent_id, (rows, pieces) in enumerate(of_one):
            played = scripted_rows(agent_id % 3, 1)
            for first, end in pieces:
                at = played.index(rows[first])
                assert rows[first:end] == played[at : at + end - first]
    assert envs.failures.failures > 20
    assert any(
        record.values.get("dropped_steps")
        for record in node.ctx.records
        if isinstance(record, MetricsRecord)
    )


def episode_spans(token: Any, agents: int) -> list[list[tuple[int, int]]]:
    """The spans of each agent's rows from one `last` to the next."""
    lasts = [token["last"][token["origin/env"] == agent] for agent in range(agents)]
    ends = [(np.flatnonzero(last) + 1).tolist() for last in lasts]
    return [list(zip([0, *of[:-1]], of, strict=True)) for of in ends]


def test_steps_without_an_agent_are_not_counted_as_dropped() -> None:
    node = collector(n_sample=100, log_every_steps=1)
    node.fire(weights(0))
    metrics = node.ctx.records[-1].values
    assert metrics["length_mean"] == pytest.approx(np.mean([2, 2, 4, 3]), abs=0.3)
    assert "dropped_steps" not in metrics


def test_nstep_windows_end_with_the_episode_of_the_agent() -> None:
    node = collector(n_sample=30, policy_params={"nstep": 3, "gamma": 0.5})
    tokens = [node.fire(weights(0)) for _ in range(6)]
    together = Batch.concat(tokens)
    summed = with_summed_rewards(together, NstepRule(3, 0.5))
    summed = summed.replace(**{"origin/env": together["origin/env"]})
    for agent_id, rows in enumerate(rows_by_agent([summed])):
        steps = scripted_rows(agent_id % 3, 20)[: len(rows)]
        for at, (obs, reward, next_obs, ended) in enumerate(rows):
            window = steps[at : at + 3]
            end = next((k for k, step in enumerate(window) if step[3]), len(window) - 1)
            assert obs == window[0][0]
            assert reward == sum(0.5**k * window[k][1] for k in range(end + 1))
            assert (next_obs, ended) == window[end][2:]


def test_origin_steps_of_an_episode_have_no_gaps() -> None:
    """Buffers rely on this to find a row's successor in a later token."""
    node = collector(n_sample=25)
    tokens = [node.fire(weights(0)) for _ in range(8)]
    for agent in range(6):
        mine = [token["origin/env"] == agent for token in tokens]
        steps, ended = (
            np.concatenate([t[name][rows] for t, rows in zip(tokens, mine, strict=True)])
            for name in ("origin/step", "terminated")
        )
        assert (np.diff(steps)[~ended[:-1]] == 1).all()
        # the game continues while an agent is absent
        assert (np.diff(steps)[ended[:-1]] > 1).any()


def test_an_agent_that_returns_starts_with_empty_memory() -> None:
    """The policy's memory counts the steps of the episode."""
    node = collector(n_sample=60, policy=StepCountingPolicy, policy_params={"unroll_steps": None})
    tokens = [node.fire(weights(0)) for _ in range(3)]
    for token in tokens:
        for row in range(1, len(token)):
            if token["origin/env"][row] != token["origin/env"][row - 1]:
                continue
            over = (token["terminated"] | token["truncated"])[row - 1]
            before = token["memory"][row - 1, 0]
            assert token["memory"][row, 0] == (0 if over else before + 1)


def test_a_restored_collector_continues_with_the_same_rows() -> None:
    one = collector(n_sample=17, policy_params={"nstep": 2})
    for _ in range(4):
        one.fire(weights(0))
    envs = make_manager(scripted_agents(space="choice"))
    envs.load_state_dict(one.envs.envs.state_dict())
    other = collector(n_sample=17, policy_params={"nstep": 2}, envs=envs)
    other.load_state_dict(one.state_dict())
    for _ in range(4):
        a, b = one.fire(weights(0)), other.fire(weights(0))
        for name in set(a) - {"logp"}:  # the toy counts its calls
            np.testing.assert_array_equal(a[name], b[name])


def test_several_managers_act_as_one() -> None:
    env = scripted_agents(space="choice")
    node = collector(n_sample=50, envs=[make_manager(env), make_manager(env, "thread")])
    tokens = [node.fire(weights(0)) for _ in range(5)]
    for agent_id, rows in enumerate(rows_by_agent(tokens, 12)):
        assert rows == scripted_rows(agent_id % 3, 20)[: len(rows)]
    joint = make_manager(PettingZoo(id="tests.nodes.envs.agent_envs:ScriptedAgents"))
    with pytest.raises(UnsoundError, match="env managers have 3 and 1 agents in each env"):
        join_specs([make_manager(env).spec(), joint.spec()])
    node.envs.managers[1].envs.close()


def test_halves_contain_whole_envs() -> None:
    with pytest.raises(UnsoundError, match="one env cannot be split into halves"):
        collector(
            n_sample=6,
            stepping="halves",
            envs=make_manager(scripted_agents(space="choice"), count=1),
        )


@pytest.mark.parametrize("stepping", ["together", "ready"])
def test_tokens_have_the_requested_number_of_complete_episodes(stepping: str) -> None:
    node = collector(EpisodeCollector, n_episode=5, stepping=stepping)
    for _ in range(4):
        episodes = node.collect()
        assert len(episodes) == 5
        for episode in episodes:
            k = int(episode["obs"][0, 1]) % 10
            rows = rows_by_agent([episode], 6)[episode["origin/env"][0]]
            assert rows in (scripted_rows(k, 1), scripted_rows(k, 1)[:2], scripted_rows(k, 1)[2:])
            assert [row[3] for row in rows] == [False] * (len(rows) - 1) + [True]
    assert node.ctx.take_count().episodes == 20


def test_an_agent_that_never_acts_is_an_error() -> None:
    env = scripted_agents(space="choice", game=["ab", "ab"])
    node = collector(EpisodeCollector, n_episode=3, envs=make_manager(env, count=1), most_steps=50)
    with pytest.raises(ValueError, match=r"env 2: .* after 50 steps"):
        node.collect()


def test_an_evaluation_plays_the_quota_of_each_agent() -> None:
    envs = make_manager(scripted_agents(space="choice"), count=2)
    played = play_episodes(envs, ToyAct(), 8)
    totals = [(episode.env_id, episode.total, episode.length) for episode in played]
    first = [(0, 1.0, 2), (0, 7.0, 2), (1, 406.0, 4), (1, 406.0, 4), (2, 612.0, 3)]
    assert totals == [*first[:4], (2, 612.0, 3), (3, 1.0, 2), (4, 406.0, 4), (5, 612.0, 3)] or (
        totals == [*first, (2, 612.0, 3), (3, 1.0, 2), (4, 406.0, 4)]
    )


def test_an_evaluator_makes_only_the_envs_that_its_episodes_need() -> None:
    policy = PartSpec("toy", Toy, Toy.Config())
    node = Evaluator(env=scripted_agents(space="choice"), policy=policy, episodes=4, seed=1)
    assert node.envs.spec().count == 6  # two games
    found = node.eval(weights(0))
    assert found.returns == [1.0, 406.0, 612.0, 1.0]
    assert node.eval(weights(0)).returns == found.returns


def test_an_evaluator_outputs_the_rows_of_its_episodes() -> None:
    policy = PartSpec("toy", Toy, Toy.Config())
    config = Evaluator.Config(env=scripted_agents(space="choice"), policy=policy, episodes=4)
    node = Evaluator(
        config=config, context=Context("evaluator", consumed_outputs=frozenset({"data"}))
    )
    rows = node.fire(weights(0))
    assert rows is not None
    assert rows["obs"][:, 1].tolist() == [0, 10, 1, 11, 21, 31, 32, 42, 52, 0, 10]
    facts = Evaluator.describe(node.config, Surroundings({}, {}, frozenset({"data"})))
    assert facts.outs["data"] == dict(rows.schema)


def crowd(**kwargs: Any) -> PettingZoo:
    return PettingZoo(
        id="tests.nodes.envs.agent_envs:NumberedAgents", agents="shared", kwargs=kwargs
    )


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_shared_policy_learns_to_act_on_each_agents_observation(algorithm: str) -> None:
    """Each agent observes its number, which is also its best action; some leave early."""
    envs = make_manager(crowd(masks=True, stays=[5, 2, 4]), count=4)
    spec = envs.spec()
    params: Any = {"gamma": 0.0, "lr": 0.01}
    params |= {"epsilon": {"env_steps": 2000}} if algorithm == "dqn" else {}
    policy = {"ppo": Ppo, "dqn": Dqn}[algorithm](obs=spec.obs, action=spec.action, **params)
    node = SampleCollector(envs=envs, policy=policy, n_sample=128, seed=1)
    learner = Learner(policy=policy, seed=1)
    for _ in range(40):
        batch = node.fire(learner.state())
        assert np.take_along_axis(batch["obs/action_mask"], batch["action"][:, None], 1).all()
        learner.train(batch, 128)
    greedy = policy.eval_mode(0)
    greedy.load(learner.state())
    assert {e.total / e.length for e in play_episodes(envs, greedy, 12)} == {1.0}


GRAPH = """
env: {type: pettingzoo, id: "tests.nodes.envs.agent_envs:NumberedAgents", agents: shared, kwargs: {stays: [5, 2, 4]}}
policy: {type: ppo, gamma: 0.5, lr: 0.01, minibatch_size: 32}
nodes:
  envs: {type: env_manager, count: 4}
  collector: {type: sample_collector, n_sample: 64}
  learner: {type: learner}
  evaluator: {type: evaluator, episodes: 6, stop_value: 3.6}
edges:
  - collector <-> envs
  - collector -> learner
  - learner -> collector
  - learner -> evaluator: {every: 5}
limits: {steps: 20000}
"""


@pytest.mark.slow
def test_a_graph_has_the_same_digest_in_every_placement(tmp_path: Path) -> None:
    path = tmp_path / "crowd.yaml"
    path.write_text(GRAPH)
    found = {}
    for kind in ("env_manager", "sync_subprocess_env_manager"):
        for placement in ("serial", "processes"):
            graph = flowrl.load(path, {"envs.type": kind, "envs.count": 4})
            out = tmp_path / f"{kind}-{placement}"
            end = graph.run(placement=placement, train_iters=8, out=out)
            assert end.deterministic
            assert (end.env_steps, end.episodes > 0) == (512, True)
            found[kind, placement] = end.digest
    assert len({*found.values()}) == 1


@pytest.mark.slow
def test_a_graph_learns_until_its_agents_reach_the_goal(tmp_path: Path) -> None:
    path = tmp_path / "crowd.yaml"
    path.write_text(GRAPH)
    end = flowrl.load(path).run(out=tmp_path / "run")
    assert end.status == "solved"
    assert end.eval_return == pytest.approx((5 + 2 + 4) / 3)
