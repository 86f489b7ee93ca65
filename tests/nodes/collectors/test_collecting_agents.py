"""Collectors and evaluators of agents that share a policy: every row is one agent's, none is void."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.config import PartSpec
from flowrl.core.context import Context
from flowrl.core.node import Surroundings, UnsoundError
from flowrl.nodes.collectors.episode_collector import EpisodeCollector
from flowrl.nodes.collectors.joined_managers import join_specs
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.envs.pettingzoo import PettingZoo
from flowrl.nodes.evaluators.evaluation import play_episodes
from flowrl.nodes.evaluators.evaluator import Evaluator
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.ppo import Ppo
from tests.nodes.collectors.recurrent_toy_policy import StepCountingPolicy
from tests.nodes.envs.agent_envs import AGENTS, SCRIPT
from tests.nodes.envs.agent_managers import make_manager, scripted_agents
from tests.nodes.toy_policies import Toy, ToyAct, weights

Row = tuple[
    float, float, float, bool
]  # what it saw, its reward, what it saw then, whether it ended


def expected(k: int, games: int) -> list[Row]:
    """An agent's steps in so many games, as they are written."""
    rows: list[Row] = []
    for t, playing in enumerate(SCRIPT):
        after = SCRIPT[t + 1] if t + 1 < len(SCRIPT) else ""
        if AGENTS[k] in playing:
            rows.append((10 * t + k, 100 * k + t, 10 * t + 10 + k, AGENTS[k] not in after))
    return rows * games


def by_agent(batches: list[Any], steps_of: int = 6) -> list[list[Row]]:
    """The rows of all tokens, agent by agent."""
    found: list[list[Row]] = [[] for _ in range(steps_of)]
    for b in batches:
        ended = b["terminated"] | b["truncated"]
        for row in range(len(b)):
            seen, then = b["obs"][row, 1], b["next_obs"][row, 1]
            found[b["origin/env"][row]].append((seen, b["reward"][row], then, ended[row]))
    return found


def collector(made: Any = SampleCollector, kind: str = "serial", **params: Any) -> Any:
    envs = params.pop("envs", None) or make_manager(scripted_agents(space="choice"), kind)
    spec = envs[0].spec() if isinstance(envs, list) else envs.spec()
    policy = params.pop("policy", Toy)(obs=spec.obs, action=spec.action, **params.pop("learns", {}))
    return made(envs=envs, policy=policy, origin=True, **params)


@pytest.mark.parametrize("stepping", ["together", "halves", "independent", "ready"])
@pytest.mark.parametrize("n_sample", [5, 12, 40])
def test_rows_are_those_that_were_played_each_once_and_as_many_as_asked(
    stepping: str, n_sample: int
) -> None:
    node = collector(n_sample=n_sample, stepping=stepping)
    tokens = [node.fire(weights(0)) for _ in range(200 // n_sample)]
    assert [len(token) for token in tokens] == [n_sample] * len(tokens)
    for lane, rows in enumerate(by_agent(tokens)):
        assert len(rows) > 10
        assert rows == expected(lane % 3, 20)[: len(rows)]
    assert node.ctx.take_count().env_steps == n_sample * len(tokens)


@pytest.mark.parametrize("least", [1, 5])
def test_at_their_independent_rows_are_those_of_all_together(least: int) -> None:
    plain = collector(n_sample=36, policy=StepCountingPolicy, learns={"unroll_steps": None})
    envs = make_manager(scripted_agents(space="choice"), "thread")
    params: Any = {"policy": StepCountingPolicy, "learns": {"unroll_steps": None}, "least": least}
    paced = collector(n_sample=36, stepping="independent", envs=envs, **params)
    try:
        for _ in range(5):
            a, b = plain.fire(weights(0)), paced.fire(weights(0))
            assert list(a) == list(b)
            assert all(np.array_equal(a[name], b[name]) for name in a)
    finally:
        envs.close()


@pytest.mark.parametrize("kind", ["serial", "sync", "sync, pre-reset", "thread"])
def test_of_games_that_fail_nothing_is_given_but_steps_that_follow_each_other(kind: str) -> None:
    retries = {"max_retry": 1000, "retry_waiting_time_s": 0.0}
    envs = make_manager(scripted_agents(space="choice", fails=0.1), kind, count=4, **retries)
    try:
        node = collector(n_sample=120, envs=envs, log_every_steps=1)
        tokens = [node.fire(weights(0)) for _ in range(10)]
    finally:
        envs.close()
    assert [len(token) for token in tokens] == [120] * 10
    for token in tokens:
        of_one = zip(by_agent([token], 12), in_pieces(token, 12), strict=True)
        for lane, (rows, pieces) in enumerate(of_one):
            played = expected(lane % 3, 1)
            for first, end in pieces:
                at = played.index(rows[first])
                assert rows[first:end] == played[at : at + end - first]
    assert envs.failures.failures > 20
    assert any(record.values.get("dropped_steps") for record in node.ctx.records)


def in_pieces(token: Any, agents: int) -> list[list[tuple[int, int]]]:
    """Where each agent's rows go from one `last` to the next."""
    lasts = [token["last"][token["origin/env"] == agent] for agent in range(agents)]
    ends = [(np.flatnonzero(last) + 1).tolist() for last in lasts]
    return [list(zip([0, *of[:-1]], of, strict=True)) for of in ends]


def test_steps_without_an_agent_are_not_counted_as_dropped() -> None:
    node = collector(n_sample=100, log_every_steps=1)
    node.fire(weights(0))
    told = node.ctx.records[-1].values
    assert told["length_mean"] == pytest.approx(np.mean([2, 2, 4, 3]), abs=0.3)
    assert "dropped_steps" not in told


def test_n_step_windows_end_where_the_agents_episode_does() -> None:
    node = collector(n_sample=30, learns={"nstep": 3, "gamma": 0.5})
    tokens = [node.fire(weights(0)) for _ in range(6)]
    for lane, rows in enumerate(by_agent(tokens)):
        steps = expected(lane % 3, 20)
        for at, (seen, reward, then, ended) in enumerate(rows):
            window = steps[at : at + 3]
            end = next((k for k, step in enumerate(window) if step[3]), 2)
            assert seen == window[0][0]
            assert reward == sum(0.5**k * window[k][1] for k in range(end + 1))
            assert (then, ended) == window[end][2:]


def test_rows_of_an_episode_are_numbered_without_gaps() -> None:
    """So buffers find what follows a row in a later token."""
    node = collector(n_sample=25)
    tokens = [node.fire(weights(0)) for _ in range(8)]
    for agent in range(6):
        mine = [token["origin/env"] == agent for token in tokens]
        steps, ended = (
            np.concatenate([t[name][rows] for t, rows in zip(tokens, mine, strict=True)])
            for name in ("origin/step", "terminated")
        )
        assert (np.diff(steps)[~ended[:-1]] == 1).all()
        assert (np.diff(steps)[ended[:-1]] > 1).any()  # while it was away, the game went on


def test_who_comes_back_remembers_nothing() -> None:
    """The policy remembers how many steps it took in the episode."""
    node = collector(n_sample=60, policy=StepCountingPolicy, learns={"unroll_steps": None})
    tokens = [node.fire(weights(0)) for _ in range(3)]
    for token in tokens:
        for row in range(1, len(token)):
            if token["origin/env"][row] != token["origin/env"][row - 1]:
                continue
            over = (token["terminated"] | token["truncated"])[row - 1]
            before = token["memory"][row - 1, 0]
            assert token["memory"][row, 0] == (0 if over else before + 1)


def test_another_collector_goes_on_from_there() -> None:
    one = collector(n_sample=17, learns={"nstep": 2})
    for _ in range(4):
        one.fire(weights(0))
    envs = make_manager(scripted_agents(space="choice"))
    envs.load_state_dict(one.envs.envs.state_dict())
    other = collector(n_sample=17, learns={"nstep": 2}, envs=envs)
    other.load_state_dict(one.state_dict())
    for _ in range(4):
        a, b = one.fire(weights(0)), other.fire(weights(0))
        for name in set(a) - {"logp"}:  # the toy counts its acts
            np.testing.assert_array_equal(a[name], b[name])


def test_several_managers_are_as_one() -> None:
    env = scripted_agents(space="choice")
    node = collector(n_sample=50, envs=[make_manager(env), make_manager(env, "thread")])
    tokens = [node.fire(weights(0)) for _ in range(5)]
    for lane, rows in enumerate(by_agent(tokens, 12)):
        assert rows == expected(lane % 3, 20)[: len(rows)]
    joint = make_manager(PettingZoo(id="tests.nodes.envs.agent_envs:ScriptedAgents"))
    with pytest.raises(UnsoundError, match="env managers have 3 and 1 agents in each env"):
        join_specs([make_manager(env).spec(), joint.spec()])
    node.envs._managers[1].envs.close()


def test_halves_are_of_whole_envs() -> None:
    with pytest.raises(UnsoundError, match="one env cannot be split into halves"):
        collector(
            n_sample=6,
            stepping="halves",
            envs=make_manager(scripted_agents(space="choice"), count=1),
        )


@pytest.mark.parametrize("stepping", ["together", "ready"])
def test_episodes_are_whole_from_their_beginning_and_as_many_as_asked(stepping: str) -> None:
    node = collector(EpisodeCollector, n_episode=5, stepping=stepping)
    for _ in range(4):
        episodes = node.collect()
        assert len(episodes) == 5
        for episode in episodes:
            k = int(episode["obs"][0, 1]) % 10
            rows = by_agent([episode], 6)[episode["origin/env"][0]]
            assert rows in (expected(k, 1), expected(k, 1)[:2], expected(k, 1)[2:])
            assert [row[3] for row in rows] == [False] * (len(rows) - 1) + [True]
    assert node.ctx.take_count().episodes == 20


def test_an_agent_that_never_comes_is_told_and_not_waited_for() -> None:
    env = scripted_agents(space="choice", game=["ab", "ab"])
    node = collector(EpisodeCollector, n_episode=3, envs=make_manager(env, count=1), most_steps=50)
    with pytest.raises(ValueError, match=r"env 2: .* after 50 steps"):
        node.collect()


def test_an_evaluation_plays_each_agents_share_and_averages_over_them() -> None:
    envs = make_manager(scripted_agents(space="choice"), count=2)
    played = play_episodes(envs, ToyAct(), 8)
    totals = [(episode.env_id, episode.total, episode.length) for episode in played]
    first = [(0, 1.0, 2), (0, 7.0, 2), (1, 406.0, 4), (1, 406.0, 4), (2, 612.0, 3)]
    assert totals == [*first[:4], (2, 612.0, 3), (3, 1.0, 2), (4, 406.0, 4), (5, 612.0, 3)] or (
        totals == [*first, (2, 612.0, 3), (3, 1.0, 2), (4, 406.0, 4)]
    )


def test_an_evaluator_makes_no_more_envs_than_its_episodes_need() -> None:
    policy = PartSpec("toy", Toy, Toy.Config())
    node = Evaluator(env=scripted_agents(space="choice"), policy=policy, episodes=4, seed=1)
    assert node._envs.spec().count == 6  # of two games
    found = node.eval(weights(0))
    assert found.returns == [1.0, 406.0, 612.0, 1.0]
    assert node.eval(weights(0)).returns == found.returns


def test_an_evaluators_steps_are_rows_of_those_episodes() -> None:
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


@pytest.mark.parametrize("learns", ["ppo", "dqn"])
def test_one_policy_learns_to_act_for_each_by_what_it_sees(learns: str) -> None:
    """Each agent sees its number, and is right to do that; some leave early."""
    envs = make_manager(crowd(masks=True, stays=[5, 2, 4]), count=4)
    spec = envs.spec()
    params: Any = {"gamma": 0.0, "lr": 0.01}
    params |= {"epsilon_decay_steps": 2000} if learns == "dqn" else {}
    policy = {"ppo": Ppo, "dqn": Dqn}[learns](obs=spec.obs, action=spec.action, **params)
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


def test_a_graph_ends_with_the_same_bits_wherever_its_agents_are(tmp_path: Path) -> None:
    path = tmp_path / "crowd.yaml"
    path.write_text(GRAPH)
    found = {}
    for kind in ("env_manager", "sync_subprocess_env_manager"):
        for placement in ("serial", "processes"):
            graph = flowrl.load(path, {"envs.type": kind})
            out = tmp_path / f"{kind}-{placement}"
            end = graph.run(placement=placement, train_iters=8, out=out)
            assert end.deterministic
            assert (end.env_steps, end.episodes > 0) == (512, True)
            found[kind, placement] = end.digest
    assert len({*found.values()}) == 1


def test_a_graph_learns_until_its_agents_reach_the_goal(tmp_path: Path) -> None:
    path = tmp_path / "crowd.yaml"
    path.write_text(GRAPH)
    end = flowrl.load(path).run(out=tmp_path / "run")
    assert end.status == "solved"
    assert end.eval_return == pytest.approx((5 + 2 + 4) / 3)
