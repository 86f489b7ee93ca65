"""Hindsight goals and rewards of drawn rows, compared with a model that works row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.nodes.buffers.episode_replay_buffer import EpisodeReplayBuffer
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.buffers.sequence_replay_buffer import SequenceReplayBuffer
from flowrl.nodes.buffers.transforms.her import Her
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.origin import ENV_COLUMN, STEP_COLUMN
from flowrl.nodes.policies.random import Random
from tests.nodes.toy_policies import Toy

ENV_MODULE = "tests.nodes.buffers.transforms.bit_flip"
STRATEGIES = ["future", "final", "episode"]
ACHIEVED, GOAL, NEXT_GOAL = "next_obs/achieved_goal", "obs/desired_goal", "next_obs/desired_goal"


def collect(n: int, tokens: int, seed: int = 0) -> list[Batch]:
    envs = SerialEnvManager(env=Gymnasium(id=f"{ENV_MODULE}:BitFlip"), count=3, seed=seed)
    spec = envs.spec()
    policy = Random(obs=spec.obs, action=spec.action)
    node = SampleCollector(envs=envs, policy=policy, n_sample=n, seed=seed, origin=True)
    return [node.collect() for _ in range(tokens)]


def her(**params: Any) -> Her:
    return Her(**{"reward": f"{ENV_MODULE}:reward", **params})


def buffer(transform: Her, size: int, batch_size: int = 64) -> NaiveReplayBuffer:
    return NaiveReplayBuffer(size=size, batch_size=batch_size, transforms=(transform,), seed=3)


def episodes(rows: Batch) -> dict[int, list[int]]:
    """Map each row to the rows of its episode, in order."""
    found: dict[int, list[int]] = {}
    keys = sorted(range(len(rows)), key=lambda k: (rows[ENV_COLUMN][k], rows[STEP_COLUMN][k]))
    episode: list[int] = []
    for at, k in enumerate(keys):
        episode.append(k)
        found[k] = episode
        after = keys[at + 1] if at + 1 < len(keys) else None
        apart = after is None or (rows[ENV_COLUMN][after], rows[STEP_COLUMN][after]) != (
            rows[ENV_COLUMN][k],
            rows[STEP_COLUMN][k] + 1,
        )
        if rows["terminated"][k] or rows["truncated"][k] or apart:
            episode = []
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("size", [300, 87])
def test_goals_and_rewards_equal_those_of_a_model(strategy: str, size: int) -> None:
    node = buffer(her(strategy=strategy, k=2), size)
    for token in collect(20, 10):
        node.push(token)
    held = node.rows()
    drawn = Context("NaiveReplayBuffer", seed=3).rng("sample").integers(node.count, size=64)
    order = Context("NaiveReplayBuffer", seed=3).rng("transforms")
    batch = node.sample()
    ring = node.ring
    numbers = ring.numbers_of(ring.places_from_oldest(drawn))
    rows = (numbers - (ring.written - ring.row_count)).tolist()
    relabelled = order.random(64) < 2 / 3
    episode_of = episodes(held)
    chosen = [row for row, other in zip(rows, relabelled, strict=True) if other]
    ahead = np.array([len(episode_of[row]) - 1 - episode_of[row].index(row) for row in chosen])
    behind = np.array([episode_of[row].index(row) for row in chosen])
    steps = {
        "future": lambda: order.integers(ahead + 1),
        "final": lambda: ahead,
        "episode": lambda: order.integers(-behind, ahead + 1),
    }[strategy]()
    remaining = iter(steps.tolist())
    for k, row in enumerate(rows):
        goal, reward = held[GOAL][row], held["reward"][row]
        if relabelled[k]:
            episode = episode_of[row]
            goal = held[ACHIEVED][episode[episode.index(row) + next(remaining)]]
            reward = 0.0 if held[ACHIEVED][row].tolist() == goal.tolist() else -1.0
        assert batch[GOAL][k].tolist() == batch[NEXT_GOAL][k].tolist() == goal.tolist()
        assert batch["reward"][k] == reward
        for name in ("obs/observation", ACHIEVED, "action", "terminated", "discount"):
            assert np.array_equal(batch[name][k], held[name][row])
    assert batch.schema == held.schema


def test_stored_rows_do_not_change() -> None:
    node = buffer(her(k=100), 100)
    (token,) = collect(80, 1)
    node.push(token)
    before = {name: array.copy() for name, array in node.rows().columns.items()}
    node.sample()
    assert all(np.array_equal(before[n], array) for n, array in node.rows().columns.items())


@pytest.mark.slow
@pytest.mark.parametrize("k", [0.5, 4.0])
def test_k_rows_are_relabelled_for_each_row_that_keeps_its_goal(k: float) -> None:
    node = buffer(her(strategy="final", k=k), 3000, 3000)
    for token in collect(1000, 3):
        node.push(token)
    batch = node.sample()
    first = Context("NaiveReplayBuffer", seed=3).rng("sample").integers(3000, size=3000)
    moved = (batch[GOAL] != node.ring.columns[GOAL][first]).any(1).mean()
    # Some relabelled rows keep their goal by chance.
    assert k / (k + 1) - 0.12 < moved < k / (k + 1) + 0.04


def test_rows_that_reach_their_new_goal_may_terminate() -> None:
    policy = Toy(obs=Column("float32"), action=Column("int64"), gamma=0.75)
    node = buffer(her(k=4, terminated=f"{ENV_MODULE}:reached", policy=policy), 300)
    for token in collect(100, 3):
        node.push(token)
    batch = node.sample()
    reached = (batch[ACHIEVED] == batch[NEXT_GOAL]).all(1)
    assert reached.sum() > 10
    assert np.array_equal(batch["terminated"], reached)
    assert set(batch["discount"][reached].tolist()) == {0.0}
    # 0.75 for rows with another goal; the other rows keep the discount of the collector, 1
    assert set(batch["discount"][~reached].tolist()) == {0.75, 1.0}


@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("nstep", [1, 2, 4])
def test_all_rewards_of_a_window_are_those_for_the_new_goal(nstep: int, terminates: bool) -> None:
    gamma, ends = 0.75, {"terminated": f"{ENV_MODULE}:reached"} if terminates else {}
    policy = Toy(obs=Column("float32"), action=Column("int64"), gamma=gamma, nstep=nstep)
    transform = her(k=1e9, policy=policy, **ends)
    node = NaiveReplayBuffer(size=200, policy=policy, transforms=(transform,), replace=False)
    for token in collect(30, 6):
        node.push(token)
    held, batch = node.rows(), node.sample(node.count)
    places = {key: k for k, key in enumerate(zip(held[ENV_COLUMN], held[STEP_COLUMN], strict=True))}
    episode_of, shortened = episodes(held), 0
    for k, key in enumerate(zip(batch[ENV_COLUMN], batch[STEP_COLUMN], strict=True)):
        goal, episode = batch[GOAL][k], episode_of[places[key]]
        total, discount, at = 0.0, 1.0, episode.index(places[key])
        for count, row in enumerate(episode[at : at + nstep], 1):
            is_reached = bool((held[ACHIEVED][row] == goal).all())
            total += discount * (is_reached - 1.0)
            discount *= gamma
            terminated = is_reached if terminates else bool(held["terminated"][row])
            if terminated:
                shortened += count < len(episode[at : at + nstep])
                break
        assert batch["reward"][k] == np.float32(total)
        assert batch["terminated"][k] == terminated
        assert (
            batch["next_obs/observation"][k].tolist() == held["next_obs/observation"][row].tolist()
        )
        assert batch["truncated"][k] == held["truncated"][row]
        if terminates or nstep > 1:  # the rows of this collector have another discount
            assert batch["discount"][k] == np.float32(0 if terminated else discount)
    assert (shortened > 5) == (terminates and nstep > 1)


def check(transform: Her, schema: dict[str, Column]) -> None:
    config = NaiveReplayBuffer.Config(transforms=(transform,))
    NaiveReplayBuffer.describe(config, Surroundings({"data": schema}, {}, frozenset()))


def test_missing_columns_and_functions_are_refused() -> None:
    (token,) = collect(6, 1)
    schema = dict(token.schema)
    check(her(), schema)
    with pytest.raises(
        UnsoundError,
        match=r"her needs the column 'obs/target'; the columns are obs.*desired_goal`\)",
    ):
        check(her(desired="target"), schema)
    with pytest.raises(
        UnsoundError, match=rf"the function '{ENV_MODULE}:rewards' cannot be imported .*has no attr"
    ):
        check(her(reward=f"{ENV_MODULE}:rewards"), schema)
    with pytest.raises(
        UnsoundError,
        match=r"the function 'nowhere:reward' cannot be imported \(No module named 'nowhere'\)",
    ):
        check(her(reward="nowhere:reward"), schema)
    with pytest.raises(UnsoundError, match="her with `terminated` needs a policy with `gamma`"):
        check(her(terminated=f"{ENV_MODULE}:reached"), schema)
    node = buffer(her(reward=f"{ENV_MODULE}:scalar"), 30, 6)
    node.push(token)
    with pytest.raises(
        ValueError, match=r"bit_flip:scalar returned the shape \(\) for \d+ goals; return one value"
    ):
        node.sample()


GRAPH = """
about: DQN that flips bits, with hindsight goals.
env: {id: "ENV:BitFlip"}
policy:
  type: dqn
  gamma: 0.9
  lr: 0.003
  model: {type: mlp, hidden: [64]}
  target: {every_iters: 30}
  epsilon: {env_steps: 2000}
nodes:
  envs: {type: env_manager, count: 4}
  collector: {type: sample_collector, n_sample: 64, origin: true}
  buffer:
    type: naive_buffer
    size: 20_000
    batch_size: 128
    updates_per_push: 16
    transforms:
      - {type: her, reward: "ENV:reward", terminated: "ENV:reached"}
  learner: {type: learner}
  evaluator: {type: evaluator, episodes: 20}
edges:
  - collector <-> envs
  - collector -> buffer -> learner
  - learner -> collector
  - learner -> evaluator: {every: 400}
warmup:
  - {edges: [collector -> buffer], steps: 500, set: {collector.policy: random}}
""".replace("ENV", ENV_MODULE)


@pytest.mark.slow
def test_a_graph_with_her_gives_the_same_bits_in_every_placement(tmp_path: Path) -> None:
    graph = tmp_path / "flip.yaml"
    graph.write_text(GRAPH)
    assert flowrl.load(graph).check().problems == []
    digests = {
        flowrl.load(graph).run(placement=p, train_iters=80, out=tmp_path / p).digest
        for p in ("serial", "threads")
    }
    assert len(digests) == 1


@pytest.mark.exhaustive
def test_bit_flipping_is_learned_with_hindsight_and_not_without(tmp_path: Path) -> None:
    graph = tmp_path / "flip.yaml"
    graph.write_text(GRAPH)
    larger = {"env.kwargs": {"bits": 10, "steps": 10}}
    learned = flowrl.load(graph, larger).run(train_iters=4000, out=tmp_path / "her")
    without = flowrl.load(graph, {**larger, "buffer.transforms": []}).run(
        train_iters=4000, out=tmp_path / "plain"
    )
    assert learned.best_return > without.best_return + 2


def test_a_reward_function_may_take_the_listed_info() -> None:
    [token] = collect(30, 1)
    token = token.replace(**{"info/number": np.arange(30, dtype=np.float32)})
    node = buffer(her(reward=f"{ENV_MODULE}:reward_by_info", k=1e9), 30, 20)
    node.push(token)
    batch = node.sample()
    assert (batch["reward"] == batch["info/number"]).all()
    assert len(set(batch["reward"].tolist())) > 5
    schema = {name: column for name, column in token.schema.items() if "info" not in name}
    with pytest.raises(UnsoundError, match="reward_by_info takes `info`, and the rows have none"):
        her(reward=f"{ENV_MODULE}:reward_by_info").check(schema)


LEAVES = ("observation", "achieved_goal", "desired_goal")


def flat(token: Batch) -> Batch:
    """Rows whose observations are the numbers of all leaves, one leaf after another."""
    rest = {name: column for name, column in token.columns.items() if "obs/" not in name}
    obs = {
        name: np.concatenate([token[f"{name}/{leaf}"] for leaf in LEAVES], 1)
        for name in ("obs", "next_obs")
    }
    return Batch({**rest, **obs})


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("nstep", "terminates"), [(1, False), (1, True), (4, False), (4, True)])
def test_flat_observations_are_relabelled_as_nested_ones(
    strategy: str, nstep: int, terminates: bool
) -> None:
    ends = {"terminated": f"{ENV_MODULE}:reached"} if terminates else {}
    policy = Toy(obs=Column("float32"), action=Column("int64"), gamma=0.75, nstep=nstep)
    tokens = collect(20, 8)
    bits = tokens[0]["obs/observation"].shape[1]
    ranges = {"achieved": [bits, 2 * bits], "desired": [2 * bits, 3 * bits]}
    nested, plain = (
        NaiveReplayBuffer(
            size=87,
            batch_size=64,
            policy=policy,
            transforms=(her(strategy=strategy, policy=policy, **ends, **goals),),
            seed=3,
        )
        for goals in ({}, ranges)
    )
    for token in tokens:
        nested.push(token)
        plain.push(flat(token))
    for _ in range(3):
        expected, found = flat(nested.sample()), plain.sample()
        assert set(found) == set(expected)
        assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_ranges_of_goals_that_do_not_fit_are_refused() -> None:
    (token,) = collect(6, 1)
    schema = dict(flat(token).schema)
    size = schema["obs"].shape[0]
    check(her(achieved=[0, 2], desired=[size - 2, size]), schema)
    for achieved, desired in [([0, 2], [2, 5]), ([2, 2], [3, 3]), ([0, 2], [size - 1, size + 1])]:
        with pytest.raises(UnsoundError, match=r"are not two ranges of one size in observations"):
            check(her(achieved=achieved, desired=desired), schema)
    with pytest.raises(ValueError, match="give two leaves or two ranges"):
        her(achieved=[0, 2])
    with pytest.raises(UnsoundError, match=r"such as \[0, 3\] and \[3, 6\]"):
        check(her(), schema)  # the leaves of nested observations
    with pytest.raises(UnsoundError, match="her needs the column 'obs'"):
        check(her(achieved=[0, 2], desired=[2, 4]), dict(token.schema))


# sequences and episodes


def goals_of(held: Batch, last: int, strategy: str, episode: list[int]) -> list[list[float]]:
    """The goals that a drawn sequence with this last row may get, by definition."""
    at = episode.index(last)
    found = {"future": episode[at:], "final": episode[-1:], "episode": episode}[strategy]
    return [held[ACHIEVED][row].tolist() for row in found]


def check_relabelled(
    held: Batch,
    numbers: list[int],
    drawn: dict[str, Any],
    strategy: str,
    terminates: bool,
) -> tuple[bool, bool]:
    """Check one sequence, row by row; return whether it has another goal, and whether it ends early because of it."""
    episode = episodes(held)[numbers[0]]
    goal = drawn[GOAL][0].tolist()
    allowed = goals_of(held, numbers[-1], strategy, episode)
    own = held[GOAL][numbers[0]].tolist()
    assert goal in [*allowed, own]
    moved, count = goal != own, len(drawn["reward"])
    for k in range(count):
        row = numbers[k]
        assert drawn[GOAL][k].tolist() == drawn[NEXT_GOAL][k].tolist() == goal
        for name in ("obs/observation", "next_obs/observation", ACHIEVED, "action"):
            assert np.array_equal(drawn[name][k], held[name][row])
        reached = held[ACHIEVED][row].tolist() == goal
        if moved:
            assert drawn["reward"][k] == reached - 1.0
            if terminates:
                assert drawn["terminated"][k] == reached
                assert drawn["discount"][k] == (0.0 if reached else 0.75)
                assert not reached or k == count - 1  # nothing follows the goal
    return moved, count < len(numbers)


@pytest.mark.slow
@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sequence_gets_one_goal_and_ends_where_it_reaches_it(
    strategy: str, terminates: bool
) -> None:
    policy = Toy(obs=Column("float32"), action=Column("int64"), gamma=0.75)
    ends = {"terminated": f"{ENV_MODULE}:reached"} if terminates else {}
    transform = her(strategy=strategy, policy=policy, **ends)
    node = SequenceReplayBuffer(
        size=87, batch_size=60, unroll_steps=4, period_steps=1, transforms=(transform,), seed=3
    )
    for token in collect(20, 8):
        node.push(token)
    held = node.rows()
    place = {key: k for k, key in enumerate(zip(held[ENV_COLUMN], held[STEP_COLUMN], strict=True))}
    moved, shorter = [], []
    for batch in (node.sample() for _ in range(3)):
        for k in range(len(batch)):
            valid = batch["valid"][k]
            stored = [
                place[key] for key in zip(batch[ENV_COLUMN][k], batch[STEP_COLUMN][k], strict=True)
            ]
            numbers = list(dict.fromkeys(stored))  # without the repeated last step
            drawn = {name: batch[name][k][valid] for name in batch if batch[name].ndim > 1}
            assert valid.tolist() == sorted(valid, reverse=True)
            assert batch["last"][k].tolist() == (np.arange(4) >= valid.sum() - 1).tolist()
            one, other = check_relabelled(held, numbers, drawn, strategy, terminates)
            moved.append(one)
            shorter.append(other)
    assert 0.4 < np.mean(moved) < 0.9
    assert any(shorter) == terminates


@pytest.mark.parametrize("part_steps", [None, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_episode_gets_one_goal_and_ends_where_it_reaches_it(
    strategy: str, part_steps: int | None
) -> None:
    policy = Toy(obs=Column("float32"), action=Column("int64"), gamma=0.75)
    transform = her(strategy=strategy, policy=policy, terminated=f"{ENV_MODULE}:reached")
    node = EpisodeReplayBuffer(
        size=200, batch_size=60, part_steps=part_steps, transforms=(transform,), seed=3
    )
    rows = Batch.concat(collect(60, 2))
    each = {tuple(episode): episode for episode in episodes(rows).values()}
    ended = [episode for episode in each.values() if is_whole(rows, episode)]
    order = [row for episode in ended for row in episode]
    last = np.isin(order, [episode[-1] for episode in ended])
    held = rows.take(np.array(order)).replace(last=last)
    node.push(held)
    place = {key: k for k, key in enumerate(zip(held[ENV_COLUMN], held[STEP_COLUMN], strict=True))}
    batch, moved, shorter = node.sample(), [], []
    for k in range(60):
        mine = batch["episode"] == k
        drawn = {name: batch[name][mine] for name in batch}
        numbers = [place[key] for key in zip(drawn[ENV_COLUMN], drawn[STEP_COLUMN], strict=True)]
        episode = episodes(held)[numbers[0]]
        full = min(part_steps or len(episode), len(episode))
        first = episode.index(numbers[0])
        assert drawn["last"].tolist() == [False] * (len(numbers) - 1) + [True]
        whole = episode[first : first + full]
        one, other = check_relabelled(held, whole, drawn, strategy, True)
        moved.append(one)
        shorter.append(other)
    assert 0.4 < np.mean(moved) < 0.95
    assert any(shorter)


def is_whole(rows: Batch, episode: list[int]) -> bool:
    """Whether an episode has ended."""
    return bool(rows["terminated"][episode[-1]] or rows["truncated"][episode[-1]])
