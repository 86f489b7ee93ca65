"""Exploring steps that a graph appends to the way in which a policy collects."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Column
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.import_paths import import_any_object
from flowrl.core.saved_state import SavedState
from flowrl.core.state import Count, State
from flowrl.nodes.catalogue import CATALOGUE
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.exploring import (
    ActionNoise,
    EpsilonLadder,
    ExploringStep,
    OuNoise,
    RandomActions,
)
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.observations import NestedColumns
from flowrl.nodes.origin import ENV_COLUMN
from flowrl.nodes.policies.bc import Bc
from flowrl.nodes.policies.ddpg import Ddpg
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.ppo import Ppo
from tests.nodes.learn_modes import CONTINUOUS, DISCRETE, OBS, same_bits

UNIT = Column("float32", (2,), low=-1.0, high=1.0)
THREE = Column("int64", n=3)


def acting(space: Column = UNIT, seed: int = 0, **settings: float) -> Any:
    """What a step sees of the mode in which it acts."""
    return SimpleNamespace(rng=np.random.default_rng(seed), settings=settings, action_space=space)


def ou_state(columns: dict[str, Any]) -> dict[str, Any]:
    return {"ou_noise": columns["ou_noise"]}


def test_action_noise_has_its_deviation_and_stays_within_the_bounds() -> None:
    step, mode = ActionNoise(), acting(**{"explore.0.std": 0.3})
    columns = {"action": np.zeros((20_000, 2), np.float32)}
    step(columns, np.zeros(20_000), mode)
    assert columns["action"].std() == pytest.approx(0.3, rel=0.05)
    assert columns["action"].dtype == np.float32
    columns["action"] = np.full((1000, 2), 0.95, np.float32)
    step(columns, np.zeros(1000), mode)
    assert columns["action"].max() == 1.0


def test_ou_noise_is_the_process_of_its_formula() -> None:
    step, mode = OuNoise(theta=0.25), acting(seed=4, **{"explore.0.std": 0.2})
    rng, x = np.random.default_rng(4), np.zeros((3, 2), np.float32)
    columns: dict[str, Any] = {"ou_noise": x}
    for _ in range(5):
        columns = {**ou_state(columns), "action": np.full((3, 2), 0.1, np.float32)}
        step(columns, np.zeros(3), mode)
        x = np.float32(0.75) * x + np.float32(0.2) * rng.standard_normal((3, 2), np.float32)
        np.testing.assert_array_equal(columns["ou_noise"], x)
        np.testing.assert_array_equal(columns["action"], np.clip(np.float32(0.1) + x, -1, 1))


def test_random_actions_replace_their_share() -> None:
    step, mode = RandomActions(), acting(THREE, **{"explore.0.share": 0.6})
    columns = {"action": np.zeros(30_000, np.int64)}
    step(columns, np.zeros((30_000, 4)), mode)
    shares = np.bincount(columns["action"], minlength=3) / 30_000
    assert shares == pytest.approx([0.6, 0.2, 0.2], abs=0.02)
    real = {"action": np.full((30_000, 2), 0.5, np.float32)}
    step(real, np.zeros((30_000, 4)), acting(UNIT, **{"explore.0.share": 0.6}))
    assert (real["action"] == 0.5).all(1).mean() == pytest.approx(0.4, abs=0.02)
    assert np.abs(real["action"]).max() <= 1


def test_random_actions_obey_the_mask() -> None:
    nested = NestedColumns({"action_mask": Column("int8", (3,), n=2), "x": OBS})
    obs = nested.empty(3000)
    obs["action_mask"], obs["x"] = [1, 0, 1], 0
    columns = {"action": np.zeros(3000, np.int64)}
    RandomActions()(columns, obs, acting(THREE, **{"explore.0.share": 1.0}))
    counts = np.bincount(columns["action"], minlength=3)
    assert counts[1] == 0
    assert counts[[0, 2]] == pytest.approx([1500, 1500], abs=150)


SEVERAL = {  # actions of two choices with 3 and 2 values, and of two with 3 values each
    "choices": (Column("int64", (2,), low=0, high=np.array([2, 1])), [3, 2]),
    "equal choices": (Column("int64", (2,), n=3), [3, 3]),
}


@pytest.mark.parametrize("space", SEVERAL)
def test_random_actions_draw_each_of_several_choices(space: str) -> None:
    action, counts = SEVERAL[space]
    columns = {"action": np.full((30_000, 2), 9)}
    step = RandomActions()
    step(columns, np.zeros((30_000, 4)), acting(action, **{"explore.0.share": 0.5}))
    kept = columns["action"] == 9
    assert (kept[:, 0] == kept[:, 1]).all()  # the choices of a row are replaced together
    assert kept[:, 0].mean() == pytest.approx(0.5, abs=0.02)
    drawn = columns["action"][~kept[:, 0]]
    for choice, count in enumerate(counts):
        shares = np.bincount(drawn[:, choice], minlength=count) / len(drawn)
        assert shares == pytest.approx([1 / count] * count, abs=0.02)


@pytest.mark.parametrize("space", SEVERAL)
def test_random_actions_obey_the_mask_of_several_choices(space: str) -> None:
    action, counts = SEVERAL[space]
    nested = NestedColumns({"action_mask": Column("int8", (sum(counts),), n=2), "x": OBS})
    obs = nested.empty(3000)
    obs["action_mask"], obs["x"] = [1, 0, 1, 0, *[1] * (sum(counts) - 4)], 0
    columns = {"action": np.zeros((3000, 2), np.int64)}
    RandomActions()(columns, obs, acting(action, **{"explore.0.share": 1.0}))
    first, second = (np.bincount(columns["action"][:, i], minlength=3) for i in (0, 1))
    assert first[[0, 2]] == pytest.approx([1500, 1500], abs=150)
    assert second[0] == 0
    assert first.sum() == second.sum() == 3000


def test_a_policy_of_several_choices_explores_by_random_actions() -> None:
    action, _ = SEVERAL["choices"]
    policy = Bc(obs=OBS, action=action, model=Mlp(hidden=[]), explore=[RandomActions(share=1)])
    mode = policy.collect_mode(0)
    mode.load(State(policy.learn_mode(0).weights(), policy.command(Count())))
    found = mode.forward(np.ones((400, 4), np.float32))["action"]
    assert {tuple(row) for row in found.tolist()} == {(i, j) for i in range(3) for j in range(2)}


def test_each_episode_keeps_its_rung_of_the_ladder_and_explores_by_it() -> None:
    step = EpsilonLadder(base=0.5, alpha=3.0, rungs=4)
    mode = acting(THREE)
    columns = {"rung": np.zeros(8000, np.int64), "action": np.zeros(8000, np.int64)}
    step(columns, np.zeros((8000, 1)), mode)
    rung = columns["rung"].copy()
    assert np.bincount(rung, minlength=5)[1:] == pytest.approx([2000] * 4, abs=200)
    explored = np.zeros(8000)
    for _ in range(20):
        columns["action"] = np.full(8000, 9)
        step(columns, np.zeros((8000, 1)), mode)
        np.testing.assert_array_equal(columns["rung"], rung)
        explored += columns["action"] != 9
    for i in range(4):
        share = explored[rung == i + 1].mean() / 20
        assert share == pytest.approx(0.5 ** (1 + 3 * i / 3), rel=0.1)


def test_an_ended_episode_draws_another_rung() -> None:
    step, mode = EpsilonLadder(rungs=50), acting(THREE)
    columns = {"rung": np.array([0, 7] * 100), "action": np.zeros(200, np.int64)}
    step(columns, np.zeros((200, 1)), mode)
    assert (columns["rung"][1::2] == 7).all()
    assert len(set(columns["rung"][::2])) > 10


# In a policy


@pytest.mark.parametrize("step", [ActionNoise(), OuNoise()], ids=["action_noise", "ou_noise"])
def test_noise_is_refused_where_one_of_n_actions_is_chosen(step: ExploringStep) -> None:
    with pytest.raises(UnsoundError, match=r"adds noise to real-valued .*; take `random_actions`"):
        Dqn(obs=OBS, action=DISCRETE, explore=[step])


def test_the_parameters_of_steps_follow_progress() -> None:
    schedule = {"start": 1.0, "end": 0.0, "env_steps": 10}
    policy = Dqn(
        obs=OBS,
        action=DISCRETE,
        epsilon=0.0,
        explore=[RandomActions(share=schedule), RandomActions(share=0.25)],
    )
    assert policy.command(Count(env_steps=5)) == {
        "epsilon": 0.0,
        "lr": 1e-3,
        "explore.0.share": 0.5,
        "explore.1.share": 0.25,
    }


def test_only_collecting_explores() -> None:
    policy = Dqn(
        obs=OBS,
        action=DISCRETE,
        epsilon=0.0,
        model=Mlp(hidden=[]),
        explore=[RandomActions(share=1)],
    )
    state = State(policy.learn_mode(0).weights(), policy.command(Count()))
    obs = np.ones((400, 4), np.float32)
    found = []
    for mode in (policy.collect_mode(0), policy.eval_mode(0)):
        mode.load(state)
        found.append(len(set(mode.forward(obs)["action"].tolist())))
    assert found == [2, 1]


def collector_of(step: ExploringStep, count: int = 4, **params: Any) -> Any:
    env = Gymnasium(id="tests.nodes.toy_envs:AlternatingEnv", kwargs={"ends": "final"})
    envs = SerialEnvManager(env=env, count=count, seed=1)
    spec = envs.spec()
    policy = Dqn(obs=spec.obs, action=spec.action, epsilon=0.0, explore=[step])
    node = SampleCollector(envs=envs, policy=policy, n_sample=24, seed=1, **params)
    return node, policy, State(policy.learn_mode(0).weights(), policy.command(Count()))


class CountedSteps(ExploringStep):
    """Remembers how many steps each episode has, and writes down what it saw."""

    def memory_columns(self, action: Column) -> Any:
        return {"taken": Column("int64")}

    def __call__(self, columns: Any, obs: Any, mode: Any) -> None:
        SEEN.append(columns["taken"].tolist())
        columns["taken"] = columns["taken"] + 1


SEEN: list[list[int]] = []


@pytest.mark.parametrize("stepping", ["together", "halves", "ready"])
def test_each_env_keeps_what_a_step_remembers_until_its_episode_ends(stepping: str) -> None:
    """Episodes have two steps. With halves, only some of the envs step at a time."""
    SEEN.clear()
    node, _, state = collector_of(CountedSteps(), stepping=stepping)
    for _ in range(2):
        node.fire(state)
    assert {len(ids) for ids in SEEN} <= ({4} if stepping == "together" else {1, 2, 3, 4})
    taken = [k for ids in SEEN for k in ids]
    assert set(taken) == {0, 1}
    assert taken.count(0) == pytest.approx(taken.count(1), abs=4)


@pytest.mark.parametrize("stepping", ["together", "halves", "ready"])
def test_ou_noise_keeps_its_process_per_env_until_its_episode_ends(stepping: str) -> None:
    """Without a pull to 0, and without further noise in the second token, the process stays where it is."""
    kwargs = {"space": "Box", "low": -1.0, "high": 1.0, "shape": (2,)}
    env = Gymnasium(id="tests.nodes.toy_envs:SpaceCheckingEnv", kwargs=kwargs, max_episode_steps=20)
    envs = SerialEnvManager(env=env, count=4, seed=1)
    spec = envs.spec()
    policy = Ddpg(
        obs=spec.obs,
        action=spec.action,
        noise=0.0,
        explore=[OuNoise(theta=0.0, std={"start": 0.1, "end": 0.0, "env_steps": 1})],
    )
    zeros = {name: np.zeros_like(a) for name, a in policy.learn_mode(0).weights().items()}
    node = SampleCollector(
        envs=envs, policy=policy, n_sample=48, seed=1, stepping=stepping, origin=True
    )
    first = node.fire(State(zeros, policy.command(Count())))
    second = node.fire(State(zeros, policy.command(Count(env_steps=48))))
    assert first["action"].std() > 0.05
    for k in range(4):
        before, after = (batch["action"][batch[ENV_COLUMN] == k] for batch in (first, second))
        kept = 20 - len(before)  # the steps of the episode that are left
        assert 0 < kept < len(after)
        np.testing.assert_array_equal(after[:kept], np.tile(before[-1], (kept, 1)))
        assert (after[kept:] == 0).all()


def test_rows_have_the_columns_described_before_the_run() -> None:
    """What exploring steps remember is no column of the rows."""
    node, policy, state = collector_of(EpsilonLadder())
    known = Surroundings({}, {"envs": node.envs.spec()}, frozenset({"data"}))
    described = SampleCollector.describe(node.config, known).outs["data"]
    assert node.fire(state).schema == dict(described)
    assert policy.memory_columns() == {}


def exploring_collector(name: str) -> tuple[Any, State]:
    """A collector with an exploring step of the catalogue, and the weights with which it acts."""
    step = import_any_object(CATALOGUE["exploring_step"][name])()
    if not name.endswith("noise"):
        node, _, state = collector_of(step)
        return node, state
    kwargs = {"space": "Box", "low": -1.0, "high": 1.0, "shape": (2,)}
    env = Gymnasium(id="tests.nodes.toy_envs:SpaceCheckingEnv", kwargs=kwargs, max_episode_steps=20)
    envs = SerialEnvManager(env=env, count=4, seed=1)
    spec = envs.spec()
    policy = Ddpg(obs=spec.obs, action=spec.action, noise=0.0, explore=[step])
    node = SampleCollector(envs=envs, policy=policy, n_sample=24, seed=1)
    return node, State(policy.learn_mode(0).weights(), policy.command(Count()))


@pytest.mark.parametrize("name", CATALOGUE["exploring_step"])
def test_a_collector_that_was_loaded_goes_on_exploring_with_the_same_bits(name: str) -> None:
    (whole, state), (half, _), (other, _) = (exploring_collector(name) for _ in range(3))
    expected = [whole.fire(state) for _ in range(5)]
    for _ in range(2):
        half.fire(state)
    other.envs.load_state_dict(half.envs.state_dict())
    other.load_state_dict(SavedState.of(half.state_dict()).state_dict())
    for rows in expected[2:]:
        assert same_bits(dict(other.fire(state).columns), dict(rows.columns))
    actions = np.concatenate([rows["action"] for rows in expected])
    assert len(np.unique(actions)) > 1  # it explores


GRAPH = """
extends: cartpole_dqn
policy:
  epsilon: 0
  explore:
    - {type: epsilon_ladder, rungs: 3}
    - {type: random_actions, share: {start: 1.0, end: 0.0, env_steps: 500}}
nodes: {evaluator: {episodes: 2}}
"""


def test_steps_of_a_graph_have_the_same_digest_in_every_placement(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text(GRAPH)
    graph = flowrl.load(tmp_path / "g.yaml")
    assert graph.check().problems == []
    digests = {
        graph.run(train_iters=12, out=tmp_path / place, placement=place).digest
        for place in ("serial", "threads")
    }
    assert len(digests) == 1


@pytest.mark.slow
def test_steps_of_the_wrong_kind_are_refused_with_their_place(tmp_path: Path) -> None:
    for wrong, what in {
        "random_action": "unknown exploring_step type 'random_action'",
        "adam": "unknown exploring_step type 'adam'",
        "ou_noise": "ou_noise adds noise to real-valued actions",
    }.items():
        (tmp_path / "g.yaml").write_text(GRAPH.replace("epsilon_ladder, rungs: 3", wrong))
        problems = flowrl.load(tmp_path / "g.yaml").check().problems
        assert any(what in problem.what for problem in problems), problems


def test_a_step_by_hand_is_an_object_of_its_class() -> None:
    what = (
        r"explore has 'random_actions'; expected objects .* ExploringStep, such as ActionNoise\(…\)"
    )
    with pytest.raises(TypeError, match=what):
        Dqn(obs=OBS, action=DISCRETE, explore=["random_actions"])
    with pytest.raises(TypeError, match="explore is the model Mlp; expected: exploring_step"):
        Dqn(obs=OBS, action=DISCRETE, explore=[Mlp()])


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
def test_policies_that_learn_from_likelihoods_refuse_exploring_steps(action: Column) -> None:
    """The action of a row would be another one than that whose likelihood the row holds."""
    what = "ppo learns from the likelihood of its actions, .*; leave out `explore`"
    with pytest.raises(UnsoundError, match=what) as error:
        Ppo(obs=OBS, action=action, explore=[RandomActions(share=0.1)])
    assert error.value.key == "policy.explore"
