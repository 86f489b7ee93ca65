"""Collectors and evaluators of envs whose agents act in turn: every row leads from an agent's turn to its next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.core.state import State
from flowrl.nodes.collectors.episode_collector import EpisodeCollector
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.evaluators.evaluation import play_episodes
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.ppo import Ppo
from flowrl.nodes.policy import Policy
from tests.nodes.envs.agent_managers import make_manager
from tests.nodes.envs.test_turn_based import turns
from tests.nodes.envs.turn_envs import FIXED_TURNS, RandomTurns, play_by_definition
from tests.nodes.toy_policies import weights

RANDOM: dict[str, Any] = {"agents": 3, "death": 0.05, "again": 0.3}


class SumPolicy(Policy):
    """Its action follows from all observations since the episode began, which are its memory."""

    class Config(BaseConfig):
        gamma: float = param(0.5, "discount")
        nstep: int = param(1, "n")
        unroll_steps: int | None = param(None, "steps of an unroll")
        burn_in_steps: int = param(0, "steps that it shares with the previous unroll")

    def collect_columns(self) -> Schema:
        return {"action": self.action}

    def memory_columns(self) -> Schema:
        return {"memory": Column("float32")}

    def learn_columns(self) -> Schema:
        return {}

    def collect_mode(self, seed: int) -> Any:
        return SumMode()

    eval_mode = collect_mode


class SumMode:
    memory = {"memory": Column("float32")}

    def load(self, state: State) -> None:
        """There are no weights to load."""

    def forward(self, obs: Array, memory: dict[str, Array]) -> dict[str, Array]:
        total = memory["memory"] + obs.sum(1) + 1
        return {"action": total.astype(np.int64) % 3, "memory": total}


def definition(manager: Any, env_id: int, games: int) -> list[list[tuple[Any, ...]]]:
    """The rows of each agent of an env in its first games, as the plain loop over its turns gives them."""
    rows: list[list[tuple[Any, ...]]] = [[] for _ in range(3)]
    for game in range(games):
        memory = [0.0] * 3
        before: list[list[float]] = [[], [], []]

        def act(
            k: int, obs: Any, memory: list[float] = memory, before: list[list[float]] = before
        ) -> int:
            before[k].append(memory[k])
            memory[k] += float(obs.sum()) + 1
            return int(memory[k]) % 3

        seed = manager.statistics.next_seed(env_id, game)
        played = play_by_definition(RandomTurns(**RANDOM), seed, act)
        for k, of in played.rows.items():
            rows[k] += [
                (
                    r.obs.tolist(),
                    r.action,
                    r.reward,
                    r.next_obs.tolist(),
                    r.terminated,
                    r.truncated,
                    memory_of_row,
                )
                for r, memory_of_row in zip(of, before[k], strict=True)
            ]
    return rows


def rows_by_agent(tokens: list[Any], agents: int) -> list[list[tuple[Any, ...]]]:
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(agents)]
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "memory")
    for token in tokens:
        columns = [token[name].tolist() for name in names]
        for agent, *row in zip(token["origin/env"].tolist(), *columns, strict=True):
            found[agent].append(tuple(row))
    return found


def collector(cls: Any = SampleCollector, kind: str = "serial", **params: Any) -> Any:
    envs = params.pop("envs", None) or make_manager(turns(**RANDOM), kind, count=4)
    spec = (envs[0] if isinstance(envs, list) else envs).spec()
    policy = SumPolicy(obs=spec.obs, action=spec.action, **params.pop("policy_params", {}))
    return cls(envs=envs, policy=policy, origin=True, **params)


@pytest.mark.slow
@pytest.mark.parametrize("stepping", ["together", "halves", "independent", "ready"])
@pytest.mark.parametrize("n_sample", [5, 40])
def test_tokens_have_the_rows_of_the_plain_definition(stepping: str, n_sample: int) -> None:
    envs = make_manager(turns(**RANDOM), count=4)
    expected = [rows for env_id in range(4) for rows in definition(envs, env_id, 12)]
    node = collector(n_sample=n_sample, stepping=stepping, envs=envs)
    tokens = [node.fire(weights(0)) for _ in range(240 // n_sample)]
    assert [len(token) for token in tokens] == [n_sample] * len(tokens)
    found = rows_by_agent(tokens, 12)
    for one, of_agent in zip(found, expected, strict=True):
        assert one == of_agent[: len(one)]
    assert node.ctx.take_count().env_steps == n_sample * len(tokens)


@pytest.mark.parametrize("least", [1, 7])
def test_the_rows_of_independent_equal_those_of_together(least: int) -> None:
    plain = collector(n_sample=36)
    envs = make_manager(turns(**RANDOM), "thread", count=4)
    paced = collector(n_sample=36, stepping="independent", envs=envs, least=least)
    try:
        for _ in range(5):
            a, b = plain.fire(weights(0)), paced.fire(weights(0))
            assert list(a) == list(b)
            assert all(np.array_equal(a[name], b[name]) for name in a)
        assert plain._episodes == paced._episodes
    finally:
        envs.close()


def test_origin_steps_count_the_steps_of_an_agent() -> None:
    """Buffers rely on this to find a row's successor in a later token."""
    node = collector(n_sample=25)
    tokens = [node.fire(weights(0)) for _ in range(8)]
    for agent in range(12):
        steps = [token["origin/step"][token["origin/env"] == agent] for token in tokens]
        assert np.concatenate(steps).tolist() == list(range(sum(map(len, steps))))


def test_unrolls_go_from_turn_to_turn() -> None:
    node = collector(n_sample=36, policy_params={"unroll_steps": 3})
    expected = [rows for env_id in range(4) for rows in definition(node.envs.envs, env_id, 12)]
    found: list[list[float]] = [[] for _ in range(12)]
    for _ in range(8):
        token = node.fire(weights(0))
        for row, agent in enumerate(token["origin/env"][:, 0].tolist()):
            assert token["memory"][row] == expected[agent][len(found[agent])][-1]
            found[agent] += token["reward"][row].tolist()
    for one, of_agent in zip(found, expected, strict=True):
        assert one == [row[2] for row in of_agent[: len(one)]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serial", "sync", "thread"])
def test_rows_of_failing_games_are_consecutive_turns(kind: str) -> None:
    retries = {"max_retry": 1000, "retry_waiting_time_s": 0.0}
    part = turns(**{**RANDOM, "fails": 0.1})
    envs = make_manager(part, kind, count=4, **retries)
    try:
        node = collector(n_sample=15, envs=envs)
        tokens = [node.fire(weights(0)) for _ in range(40)]
    finally:
        envs.close()
    assert envs.failures.failures > 10
    for token in tokens:
        follows = ~token["last"][:-1]
        np.testing.assert_array_equal(token["next_obs"][:-1][follows], token["obs"][1:][follows])
        assert (np.diff(token["origin/step"])[follows] == 1).all()
    assert_no_false_successors(tokens)


def assert_no_false_successors(tokens: list[Any]) -> None:
    """By `origin/step`, a buffer takes no row of a later game for the successor of a row of a failed one."""
    names = ("origin/env", "origin/step", "terminated", "truncated", "obs", "next_obs")
    rows = {name: np.concatenate([token[name] for token in tokens]) for name in names}
    for agent in range(12):
        own = {name: array[rows["origin/env"] == agent] for name, array in rows.items()}
        ended = (own["terminated"] | own["truncated"])[:-1]
        follows = (np.diff(own["origin/step"]) == 1) & ~ended
        np.testing.assert_array_equal(own["next_obs"][:-1][follows], own["obs"][1:][follows])


def test_a_step_may_complete_no_row() -> None:
    node = collector(n_sample=4, envs=make_manager(turns(id=FIXED_TURNS, order="abab"), count=1))
    assert rows_by_agent([node.fire(weights(0))], 2)[1][0][2] == 20


def test_a_restored_collector_continues_with_the_same_rows() -> None:
    one = collector(n_sample=17)
    for _ in range(4):
        one.fire(weights(0))
    envs = make_manager(turns(**RANDOM), count=4)
    envs.load_state_dict(one.envs.envs.state_dict())
    other = collector(n_sample=17, envs=envs)
    other.load_state_dict(one.state_dict())
    for _ in range(4):
        a, b = one.fire(weights(0)), other.fire(weights(0))
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_several_managers_act_as_one() -> None:
    parts = [make_manager(turns(**RANDOM), count=2) for _ in range(2)]
    expected = [
        rows for part in parts for env_id in range(2) for rows in definition(part, env_id, 12)
    ]
    node = collector(n_sample=50, envs=parts)
    tokens = [node.fire(weights(0)) for _ in range(5)]
    for one, of_agent in zip(rows_by_agent(tokens, 12), expected, strict=True):
        assert one == of_agent[: len(one)]


@pytest.mark.parametrize("stepping", ["together", "ready"])
def test_episodes_of_agents_are_whole(stepping: str) -> None:
    part = turns(id=FIXED_TURNS, order="ababa")
    envs = make_manager(part, count=2)
    node = collector(EpisodeCollector, n_episode=6, stepping=stepping, envs=envs)
    for _ in range(3):
        episodes = node.collect()
        lengths = [(len(rows), int(rows["origin/env"][0]) % 2) for rows in episodes]
        assert len(lengths) == 6
        assert set(lengths) <= {(3, 0), (2, 1)}
        assert all(
            rows["terminated"].tolist() == [False] * (len(rows) - 1) + [True] for rows in episodes
        )


def test_an_evaluation_plays_the_quota_of_each_agent_also_of_one_that_never_acts() -> None:
    envs = make_manager(turns(id=FIXED_TURNS, order="aa"), count=2)
    played = play_episodes(envs, SumMode0(), 5)
    assert [(e.env_id, e.total, e.length) for e in played] == [
        *[(0, 2.0, 2)] * 2,
        (1, 20.0, 0),
        (2, 2.0, 2),
        (3, 20.0, 0),
    ]


class SumMode0:
    """Takes the action 0."""

    def forward(self, obs: Array) -> dict[str, Array]:
        return {"action": np.zeros(len(obs), np.int64)}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_shared_policy_learns_from_turns_with_masks(algorithm: str) -> None:
    """Each row allows one action, so all rows that are learned from have it, and the losses are finite."""
    envs = make_manager(turns(**RANDOM, masks=True), count=4)
    spec = envs.spec()
    params: dict[str, Any] = {"nstep": 3} if algorithm == "dqn" else {}
    policy = {"ppo": Ppo, "dqn": Dqn}[algorithm](obs=spec.obs, action=spec.action, **params)
    node = SampleCollector(envs=envs, policy=policy, n_sample=64, seed=1)
    learner = Learner(policy=policy, seed=1)
    for _ in range(3):
        batch = node.fire(learner.state())
        assert np.take_along_axis(batch["obs/action_mask"], batch["action"][:, None], 1).all()
        if algorithm == "ppo":
            learner.train(batch)
            assert all(np.isfinite(array).all() for array in learner.state().arrays.values())


GRAPH = """
env:
  type: pettingzoo
  id: "tests.nodes.envs.turn_envs:RandomTurns"
  agents: shared
  kwargs: {agents: 3, death: 0.05, masks: true}
policy: {type: POLICY, gamma: 0.5, lr: 0.01, SETTINGS}
nodes:
  envs: {type: env_manager, count: 4}
  collector: {type: sample_collector, n_sample: 64}
  learner: {type: learner}
  evaluator: {type: evaluator, episodes: 6}
  BUFFER
edges:
  - collector <-> envs
  - DATA
  - learner -> collector
  - learner -> evaluator: {every: 5}
limits: {steps: 20000}
snapshots: {every_rounds: 3}
"""
PPO = {
    "POLICY": "ppo",
    "SETTINGS": "minibatch_size: 32",
    "BUFFER": "",
    "DATA": "collector -> learner",
}
DQN = {
    "POLICY": "dqn",
    "SETTINGS": "nstep: 3",
    "BUFFER": "buffer: {type: naive_buffer, size: 2000, batch_size: 32}",
    "DATA": "collector -> buffer -> learner",
}


@pytest.mark.slow  # the quick suite compares collectors of these envs, and tests/nodes/league compares runs
@pytest.mark.parametrize("words", [PPO, DQN], ids=["ppo", "dqn"])
def test_a_graph_has_the_same_digest_in_every_placement_and_resumed(
    words: dict[str, str], tmp_path: Path
) -> None:
    text = GRAPH
    for word, replacement in words.items():
        text = text.replace(word, replacement)
    path = tmp_path / "turns.yaml"
    path.write_text(text)
    found = set()
    for kind, placement in (
        ("env_manager", "serial"),
        ("env_manager", "processes"),
        ("sync_subprocess_env_manager", "processes"),
    ):
        graph = flowrl.load(path, {"envs.type": kind, "envs.count": 4})
        end = graph.run(placement=placement, train_iters=9, out=tmp_path / f"{kind}-{placement}")
        assert end.deterministic
        found.add(end.digest)
    flowrl.load(path).run(train_iters=5, out=tmp_path / "resumed")
    found.add(flowrl.resume(tmp_path / "resumed", placement="processes", train_iters=9).digest)
    assert len(found) == 1
