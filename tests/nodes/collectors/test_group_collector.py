"""The collector of groups of agents, compared with a plain, slow loop over the env."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flowrl.core.batch import Batch
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.records import MetricsRecord
from flowrl.core.reseeding import Reseeding
from flowrl.nodes.collectors.group_collector import GroupCollector
from flowrl.nodes.env_managers.episode_statistics import EpisodeStatistics
from flowrl.nodes.envs.agent_columns import env_spec
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.nstep import NstepRule, with_summed_rewards
from flowrl.nodes.policies.ppo import Ppo
from flowrl.nodes.policies.random import Random
from tests.nodes.envs.group_envs import BY_NAME, Pasture, make_manager, pasture
from tests.nodes.group_policies import Following, chosen_action
from tests.nodes.toy_policies import weights

COMPARED = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "memory", "version")
Row = dict[str, Any]


def slow_rows(versions: list[int], steps_of_token: list[int], envs: int = 2) -> Any:
    """The rows of each group and agent, by loops: in token k all envs take `steps_of_token[k]` steps."""
    seeds = EpisodeStatistics(envs, Context("envs", seed=1).seed_for("episodes"), True)
    groups = env_spec(pasture(), 1).groups
    tokens: list[dict[str, list[list[Row]]]] = []
    players = [_PlainGame(Pasture(), env, seeds, groups) for env in range(envs)]
    for version, steps in zip(versions, steps_of_token, strict=True):
        token: dict[str, list[list[Row]]] = {"wolves": [], "sheep": []}
        for player in players:
            rows = player.play(version, steps)
            token["wolves"] += [rows["wolf_0"], rows["wolf_1"]]
            token["sheep"] += [rows["sheep_0"]]
        tokens.append(token)
    return tokens


class _PlainGame:
    """Plays one env as PettingZoo describes it, and writes down each agent's steps."""

    def __init__(self, env: Any, index: int, seeds: EpisodeStatistics, groups: Any) -> None:
        self.env, self.index, self.seeds, self.groups = env, index, seeds, groups
        self._begin()

    def _begin(self) -> None:
        self.obs, _ = self.env.reset(seed=self.seeds.start_episode(self.index))
        self.memory = dict.fromkeys(self.obs, 0.0)

    def play(self, version: int, steps: int) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {agent: [] for agent in self.env.possible_agents}
        for _ in range(steps):
            acting = list(self.env.agents)
            before = {agent: self.obs[agent] for agent in acting}
            actions = {
                agent: chosen_action(self._column(agent), before[agent], version)
                for agent in acting
            }
            self.obs, rewards, terminated, truncated, _ = self.env.step(actions)
            for agent in acting:
                found[agent].append(
                    {
                        "obs": before[agent],
                        "action": actions[agent],
                        "reward": rewards[agent],
                        "next_obs": self.obs[agent],
                        "terminated": terminated[agent],
                        "truncated": truncated[agent],
                        "memory": [self.memory.get(agent, 0.0)],
                        "version": version,
                    }
                )
                over = terminated[agent] or truncated[agent]
                self.memory[agent] = 0.0 if over else self.memory.get(agent, 0.0) + 1
            if not self.env.agents:
                self._begin()
        return found

    def _column(self, agent: str) -> Any:
        return self.groups["wolves" if agent.startswith("wolf") else "sheep"].action


def collector(envs: Any = None, groups: Any = None, n_sample: int = 9, **params: Any) -> Any:
    """A collector of pastures whose policies follow from observations and weights."""
    envs = envs or make_manager(pasture(groups))
    specs = (envs[0] if isinstance(envs, list) else envs).spec().groups
    settings = params.pop("settings", {})
    policies = {n: Following(obs=s.obs, action=s.action, **settings) for n, s in specs.items()}
    policies |= params.pop("policies", {})
    node = GroupCollector(envs=envs, policies=policies, n_sample=n_sample, **params)
    return node


def both(wolves: int, sheep: int) -> dict[str, Any]:
    return {"wolves": weights(wolves), "sheep": weights(sheep)}


def test_rows_are_those_of_a_plain_loop_over_the_env() -> None:
    node = collector(n_sample=9)
    # the sheep of two envs act in 5 of 6 steps, so it takes 5 or 6 steps of the envs for 9 rows of theirs
    tokens, steps = [], []
    for version in (0, 1, 5, 7):
        before = node.envstep
        tokens.append(node.fire(weights(version), weights(version)))
        steps.append((node.envstep - before) // 2)
    expected = slow_rows([0, 1, 5, 7], steps)
    for token, rows_of in zip(tokens, expected, strict=True):
        for group in BY_NAME:
            assert_rows(token[group], [row for agent in rows_of[group] for row in agent])
            assert len(token[group]) >= 9
    assert sum(steps) * 2 == node.envstep == node.ctx.take_count().env_steps
    assert {len(token["wolves"]) for token in tokens} != {9}  # wolves have more rows than sheep


def assert_rows(token: Batch, expected: list[Row]) -> None:
    for name in COMPARED:
        column = np.array([row[name] for row in expected], token[name].dtype)
        np.testing.assert_array_equal(token[name], column, err_msg=name)


def test_each_group_acts_with_weights_of_its_own() -> None:
    node = collector()
    token = node.fire(weights(3), weights(8))
    assert set(token["wolves"]["version"]) == {3.0}
    assert set(token["sheep"]["version"]) == {8.0}
    token = node.collect(weights={"sheep": weights(9)})
    assert (set(token["wolves"]["version"]), set(token["sheep"]["version"])) == ({3.0}, {9.0})


def test_tokens_end_when_every_group_has_enough_and_nothing_is_left_over() -> None:
    node = collector(n_sample=1)
    for _ in range(12):
        token = node.collect(weights=both(0, 0))
        assert min(len(rows) for rows in token.values()) >= 1
        assert all(stream.complete_steps == 0 for stream in node._streams.values())
    # no sheep acts in step 2 of the 6 of a game, so the token that begins there has a second step
    assert node.envstep == 2 * (12 + 2)


def test_a_group_may_act_at_random_without_weights() -> None:
    spec = env_spec(pasture(), 1).groups["sheep"]
    node = collector(policies={"sheep": Random(obs=spec.obs, action=spec.action)})
    assert {"wolves", "sheep", "wolves_weights"} <= node.ports.keys()
    assert "sheep_weights" not in node.ports
    assert node.ports["sheep"].optional
    token = node.fire(weights(1))
    assert len(set(token["sheep"]["action"][:, 0])) > 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serial", "sync", "thread"])
def test_rows_of_failing_envs_are_consecutive_steps(kind: str) -> None:
    retries = {"max_retry": 1000, "retry_waiting_time_s": 0.0}
    envs = make_manager(pasture(fails=0.1), kind, count=4, **retries)
    try:
        node = collector(envs, n_sample=60, origin=True, log_every_steps=1)
        tokens = [node.collect(weights=both(0, 0)) for _ in range(4)]
    finally:
        envs.close()
    for group in BY_NAME:
        for rows in of_agents([token[group] for token in tokens]):
            gaps = np.diff(rows["obs"][:, 1]) != 1
            ended = (rows["terminated"] | rows["truncated"] | rows["last"])[:-1]
            assert not (gaps & ~ended).any()
    assert envs.failures.failures > 10
    reports = [r.values for r in node.ctx.records if isinstance(r, MetricsRecord)]
    assert any("wolves/dropped_steps" in values for values in reports)


def test_what_is_in_no_report_yet_is_left_for_the_cut() -> None:
    reports = []
    for every in (1, 10**9):
        node = collector(n_sample=24, log_every_steps=every)
        for _ in range(2):
            node.collect(weights=both(0, 0))
        if node.ctx.unreported is not None:
            node.ctx.unreported()
        rows = [r.values for r in node.ctx.records if isinstance(r, MetricsRecord)]
        reports.append([max(row["wolves/return_max"] for row in rows), len(rows)])
    assert reports[0][0] == reports[1][0]
    assert reports[0][1] > reports[1][1] == 1


def of_agents(tokens: list[Batch]) -> Iterator[dict[str, Any]]:
    """The columns of each agent over all tokens."""
    joined = Batch.concat(tokens)
    for agent in sorted(set(joined["origin/env"].tolist())):
        yield {name: joined[name][joined["origin/env"] == agent] for name in joined}


def test_unrolls_of_a_group_are_consecutive_steps() -> None:
    node = collector(n_sample=8, settings={"unroll_steps": 4})
    for _ in range(4):
        token = node.collect(weights=both(0, 0))
        for rows in token.values():
            assert rows["reward"].shape[1] == 4
            steps, over = rows["obs"][:, :, 1], rows["terminated"] | rows["truncated"]
            assert ((np.diff(steps, axis=1) == 1) | over[:, :-1]).all()
            assert len(rows) * 4 >= 8


def test_rows_link_to_their_successors_where_rewards_are_to_be_summed() -> None:
    node = collector(n_sample=30, settings={"nstep": 3})
    token = node.collect(weights=both(1, 1))["wolves"]
    summed = with_summed_rewards(token, NstepRule(3, 0.5))
    own, over = token["origin/env"], token["terminated"] | token["truncated"]
    for row in range(len(token) - 3):
        total, k = 0.0, row
        while k < row + 3 and own[k] == own[row]:
            total += 0.5 ** (k - row) * token["reward"][k]
            if over[k]:
                break
            k += 1
        assert summed["reward"][row] == pytest.approx(total)


@pytest.mark.parametrize("settings", [{"nstep": 2}, {"unroll_steps": 4}])
def test_a_restored_collector_continues_with_the_same_rows(settings: Any) -> None:
    one = collector(settings=settings)
    for _ in range(3):
        one.collect(weights=both(2, 3))
    envs = make_manager(pasture())
    envs.load_state_dict(one.envs.state_dict())
    other = collector(envs, settings=settings)
    other.load_state_dict(one.state_dict())
    for _ in range(4):
        a, b = (node.collect(weights=both(2, 3)) for node in (one, other))
        for group in BY_NAME:
            assert list(a[group]) == list(b[group])
            for name in a[group]:
                np.testing.assert_array_equal(a[group][name], b[group][name])


def test_another_seed_of_a_fork_changes_what_is_drawn() -> None:
    specs = env_spec(pasture(), 1).groups
    policies = {n: Random(obs=s.obs, action=s.action) for n, s in specs.items()}
    one, other = (collector(policies=policies, n_sample=20) for _ in range(2))
    other.load_state_dict(other.reseeded(one.state_dict(), Reseeding("another")))
    a, b = (node.collect()["wolves"]["action"] for node in (one, other))
    assert len(a) == len(b)
    assert (a != b).any()


def test_new_episodes_begin_where_envs_are_reset() -> None:
    node = collector(n_sample=3)
    node.collect(weights=both(0, 0))
    node.reset_env()
    token = node.collect()
    assert token["wolves"]["obs"][0, 1] == 0
    assert token["wolves"]["memory"][0, 0] == 0


def test_reports_are_about_the_episodes_of_each_group() -> None:
    node = collector(n_sample=50, log_every_steps=1)
    node.collect(weights=both(0, 0))
    values = node.ctx.records[-1].values
    assert values["sheep/length_mean"] == pytest.approx(np.mean([2, 3]), abs=0.2)
    assert values["wolves/length_mean"] == pytest.approx(np.mean([3, 2, 5]), abs=0.4)
    assert "return_mean" not in values


def test_a_group_that_never_acts_is_an_error() -> None:
    node = collector(make_manager(pasture(game=["w0 w1"] * 3)), most_steps=40, n_sample=5)
    with pytest.raises(ValueError, match="the group sheep has 0 of 5 steps after 40 steps of each"):
        node.collect(weights=both(0, 0))


def describe(policies: Any, groups: Any = None) -> Any:
    config = GroupCollector.Config(policies=policies)
    links = {"envs": [env_spec(pasture(groups) if groups != 0 else PLAIN, 2)]}
    return GroupCollector.describe(config, Surroundings({}, links, frozenset()))


PLAIN = pasture()
PLAIN = type(PLAIN)(id="tests.nodes.envs.agent_envs:ScriptedAgents")


def random_policies(*names: str) -> dict[str, Any]:
    specs = env_spec(pasture(), 1).groups
    return {
        name: Random(obs=(s := specs.get(name, specs["sheep"])).obs, action=s.action)
        for name in names
    }


@pytest.mark.parametrize(
    ("names", "groups", "what"),
    [
        (
            ["wolves"],
            None,
            "the env has the groups wolves, sheep, and there is no policy for sheep; add `sheep` to `policies`, such "
            "as `random`",
        ),
        (
            ["wolves", "sheep", "dogs"],
            None,
            "there is a policy for dogs, and the env has the groups wolves, sheep; give each group a policy, by its "
            "name",
        ),
        (
            ["wolves"],
            0,
            "the agents of the env are in no groups, and `policies` are those of groups; write `env: {agents: "
            "{groups: …}, …}`, or take a node with one `policy`",
        ),
    ],
)
def test_every_group_has_exactly_one_policy(names: list[str], groups: Any, what: str) -> None:
    with pytest.raises(UnsoundError) as refused:
        describe(random_policies(*names), groups)
    assert str(refused.value) == what


def test_the_facts_are_those_of_the_rows() -> None:
    specs = env_spec(pasture(), 2).groups
    policies = {n: Following(obs=s.obs, action=s.action, nstep=2) for n, s in specs.items()}
    facts = describe(policies)
    token = collector(settings={"nstep": 2}).collect(weights=both(0, 0))
    for group in BY_NAME:
        assert facts.outs[group] == dict(token[group].schema) | {
            name: column for name, column in facts.outs[group].items() if name.startswith("origin/")
        }
        assert list(facts.outs[group]) == list(token[group])
    assert facts.env_steps is None
    assert facts.acts_on["wolves_weights"]["action"] == specs["wolves"].action


@pytest.mark.slow
def test_both_groups_learn() -> None:
    """A wolf's best action is 1 plus its number, a sheep's is positive; at random a third, and a half, are rewarded."""
    envs = make_manager(pasture(shows_seed=False, game=["w0 w1 s0"] * 2), count=8)
    specs = envs.spec().groups
    settings: Any = {"gamma": 0.0, "lr": 0.02, "minibatch_size": 32, "model": Mlp(hidden=[16])}
    policies = {n: Ppo(obs=s.obs, action=s.action, **settings) for n, s in specs.items()}
    node = GroupCollector(envs=envs, policies=policies, n_sample=64)
    learners = {n: Learner(policy=policy, seed=1) for n, policy in policies.items()}
    rewarded: list[dict[str, float]] = []
    for _ in range(25):
        tokens = node.collect(weights={name: one.state() for name, one in learners.items()})
        # every reward has the number of its step added
        rewarded.append(
            {n: float((t["reward"] - t["obs"][:, 1]).mean()) for n, t in tokens.items()}
        )
        for name, token in tokens.items():
            learners[name].train(token)
    assert 0.15 < rewarded[0]["wolves"] < 0.55
    assert 0.3 < rewarded[0]["sheep"] < 0.75
    assert rewarded[-1]["wolves"] > 0.8
    assert rewarded[-1]["sheep"] > 0.9
