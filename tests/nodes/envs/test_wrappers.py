"""Wrappers: what each does, that it is reproducible, passes gymnasium's checker, and does not change returns."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.utils.env_checker import check_env

from flowrl.core.batch import Column
from flowrl.core.config import Config as BaseConfig
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.nodes.catalogue import CATALOGUE
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.wrappers.images import make_resizer
from flowrl.nodes.envs.wrappers.wrapper import Wrapper
from flowrl.nodes.observations import NestedColumns
from tests.nodes.env_managers.manager_kinds import KINDS, steps_are_equal
from tests.nodes.envs.game import GAME, make_wrapper

NESTED = "tests.nodes.nested_envs:Robot"

PARAMS: dict[str, dict[str, Any]] = {  # of each wrapper, for the game
    "frame_stack": {"n": 3},
    "gray": {},
    "resize": {"height": 5, "width": 7},
    "reward_clip": {},
    "reward_goal": {},
    "reward_normalise": {},
    "sticky_actions": {"probability": 0.5},
    "action_repeat": {"n": 2, "brightest": True},
    "action_mask": {},
    "previous": {},
    "noop_start": {"most": 4},
    "fire_on_reset": {},
    "episodic_life": {},
    "time_limit": {"steps": 6},
    "wrapper": {"id": "gymnasium.wrappers:FlattenObservation"},
}
OTHER_ENVS: dict[str, tuple[str, dict[str, Any]]] = {  # that do not fit the game
    "action_scale": ("Pendulum-v1", {}),
    "select": ("CartPole-v1", {"keep": [2, 0]}),
}


def make_game(*wrappers: Wrapper, **kwargs: Any) -> Any:
    return Gymnasium(id=GAME, kwargs=kwargs, wrappers=wrappers).make(0)


def play(env: Any, seed: int, actions: int = 40) -> list[Any]:
    """All results as text; a new episode has the next seed."""
    rng, results = np.random.default_rng(0), [repr(env.reset(seed=seed))]
    for _ in range(actions):
        stepped = env.step(rng.integers(env.action_space.n))
        results.append(repr(stepped))
        if stepped[2] or stepped[3]:
            seed += 1
            results.append(repr(env.reset(seed=seed)))
    return results


def test_every_wrapper_is_tested_here() -> None:
    assert {*PARAMS, *OTHER_ENVS} == set(CATALOGUE["wrapper"])


def env_in(name: str) -> Gymnasium:
    """An env in a wrapper of the catalogue."""
    if name in PARAMS:
        game = {"rewards": [1.0, 0.3, -2.7], "length": 9, "lives": 3}
        return Gymnasium(id=GAME, kwargs=game, wrappers=[make_wrapper(name, **PARAMS[name])])
    id, params = OTHER_ENVS[name]
    return Gymnasium(id=id, wrappers=[make_wrapper(name, **params)], max_episode_steps=9)


@pytest.mark.parametrize("name", [*PARAMS, *OTHER_ENVS])
def test_a_saved_env_goes_on_in_each_wrapper_with_the_same_bits(name: str) -> None:
    whole, half, other = (SerialEnvManager(env=env_in(name), count=2, seed=3) for _ in range(3))
    space = env_in(name).make(0).action_space
    space.seed(0)
    actions = [np.array([space.sample() for _ in range(2)]) for _ in range(40)]
    whole.reset(), half.reset()
    steps = [whole.advance(action) for action in actions]
    for action in actions[:13]:
        half.advance(action)
    other.load_state_dict(half.state_dict())
    assert other.failures.unrestored_envs == 0
    for action, step in zip(actions[13:], steps[13:], strict=True):
        assert steps_are_equal(other.advance(action), step)
    assert sum(len(step.episodes) for step in steps[:13]) > 0
    for manager in (whole, half, other):
        manager.close()


@pytest.mark.parametrize("name", PARAMS)
def test_gymnasiums_checker_accepts_each_wrapped_env(name: str) -> None:
    with warnings.catch_warnings():
        # The checker warns about the style of the env: infinite bounds, and frames that are no images.
        warnings.filterwarnings("ignore", module="gymnasium")
        warnings.filterwarnings("ignore", message=".*WARN.*")
        check_env(make_game(make_wrapper(name, **PARAMS[name])), skip_render_check=True)


def test_selected_components_are_observed_in_their_order() -> None:
    env = Gymnasium(id="CartPole-v1", wrappers=[make_wrapper("select", keep=[2, 0])]).make(0)
    plain = gymnasium.make("CartPole-v1")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*WARN.*")
        check_env(env, skip_render_check=True)
    obs, whole = env.reset(seed=3)[0], plain.reset(seed=3)[0]
    np.testing.assert_array_equal(obs, whole[[2, 0]])
    np.testing.assert_array_equal(env.step(1)[0], plain.step(1)[0][[2, 0]])
    space = plain.observation_space
    assert env.observation_space == Box(space.low[[2, 0]], space.high[[2, 0]], dtype=np.float32)


@pytest.mark.parametrize("keep", [[4], [-1], [0, 0]])
def test_components_that_there_are_not_are_refused(keep: list[int]) -> None:
    with pytest.raises(UnsoundError, match=r"of 4 components, keep is .* name some of 0 to 3"):
        Gymnasium(id="CartPole-v1", wrappers=[make_wrapper("select", keep=keep)]).make(0)


def test_gymnasiums_checker_accepts_scaled_actions() -> None:
    env = Gymnasium(id="Pendulum-v1", wrappers=[make_wrapper("action_scale")]).make(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*WARN.*")
        check_env(env, skip_render_check=True)
    assert env.action_space == Box(-1, 1, (1,), np.float32)
    env.reset(seed=1)
    bare = Gymnasium(id="Pendulum-v1").make(0)
    bare.reset(seed=1)
    scaled, plain = env.step(np.array([0.5], np.float32)), bare.step(np.array([1.0], np.float32))
    np.testing.assert_array_equal(scaled[0], plain[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", PARAMS)
def test_everything_that_a_wrapper_draws_follows_from_the_seed(name: str) -> None:
    wrapper = make_wrapper(name, **PARAMS[name])
    if name != "reward_normalise":  # whose scale is measured over episodes
        env = make_game(wrapper)
        play(env, 50, 13)
        if name != "episodic_life":  # a life continues where the last one ended
            assert play(env, 3) == play(make_game(wrapper), 3)
    assert play(make_game(wrapper), 3) == play(make_game(wrapper), 3) != play(make_game(wrapper), 4)


def test_frames_are_stacked_oldest_first_and_begin_with_copies_of_the_first() -> None:
    part_ = Gymnasium(id=GAME, wrappers=[make_wrapper("gray"), make_wrapper("frame_stack", n=3)])
    column = part_.spec()[0]
    assert column == Column("uint8", (3, 8, 10))
    assert isinstance(column, Column)
    assert column.frames == 3
    env = part_.make(0)
    first = env.reset(seed=1)[0]
    assert (first == first[0]).all()
    seen = [first] + [env.step(0)[0] for _ in range(4)]
    for before, after in itertools.pairwise(seen):
        np.testing.assert_array_equal(before[1:], after[:-1])
    np.testing.assert_array_equal(first, env.reset(seed=1)[0])
    assert not np.shares_memory(seen[0], seen[1])


def test_consecutive_rows_of_a_stacked_column_share_frames() -> None:
    """As docs/envs.md says."""
    from flowrl.nodes.collectors.sample_collector import SampleCollector
    from flowrl.nodes.policies.random import Random

    stack = [make_wrapper("gray"), make_wrapper("frame_stack", n=3)]
    envs = SerialEnvManager(env=Gymnasium(id=GAME, wrappers=stack), count=2, seed=4)
    policy = Random(obs=envs.spec().obs, action=envs.spec().action)
    collector = SampleCollector(envs=envs, policy=policy, n_sample=60)
    for _ in range(2):
        batch = collector.collect()
        goes_on = ~batch["last"][:-1]
        assert 40 < goes_on.sum() < 59
        obs, next_obs = batch["obs"], batch["next_obs"]
        np.testing.assert_array_equal(obs[1:, :-1][goes_on], obs[:-1, 1:][goes_on])
        np.testing.assert_array_equal(next_obs[:-1][goes_on], obs[1:][goes_on])
        np.testing.assert_array_equal(next_obs[:, :-1], obs[:, 1:])


def test_a_leaf_can_be_changed_and_stacked() -> None:
    wrappers = [make_wrapper("previous"), make_wrapper("gray", leaf="observation")]
    wrappers += [make_wrapper("frame_stack", n=2, leaf="observation")]
    spec = Gymnasium(id=GAME, wrappers=wrappers).spec()[0]
    assert isinstance(spec, NestedColumns)
    assert spec.columns == {
        "last_action": Column("int64"),
        "last_reward": Column("float32", (1,)),
        "observation": Column("uint8", (2, 8, 10)),
    }
    assert spec.columns["observation"].frames == 2


def test_a_leaf_of_a_dict_in_a_dict_can_be_changed_and_stacked() -> None:
    wrappers = [make_wrapper("gray", leaf="robot/eye")]
    wrappers += [make_wrapper("frame_stack", n=2, leaf="robot/eye")]
    envs = SerialEnvManager(env=Gymnasium(id=NESTED, wrappers=wrappers), count=1)
    spec = envs.spec().obs
    assert isinstance(spec, NestedColumns)
    assert {leaf: column.shape for leaf, column in spec.columns.items()} == {
        "camera": (2, 3, 3),
        "robot/eye": (2, 2, 3),
        "robot/load": (),
    }
    first = envs.reset()
    assert first["robot/eye"].tolist() == [[[[0] * 3] * 2] * 2]
    following = envs.advance(np.zeros(1, np.int64)).next_obs
    assert following["robot/eye"].tolist() == [[[[0] * 3] * 2, [[1] * 3] * 2]]
    assert following["camera"].tolist() == first["camera"].tolist()


@pytest.mark.parametrize("shape", [(21, 16), (21, 16, 3), (7, 5)])
def test_a_resized_pixel_is_the_mean_of_its_area(shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).integers(256, size=shape).astype(np.uint8)
    height, width = 4 if shape[0] == 7 else 8, 3 if shape[0] == 7 else 16
    found = make_resizer((shape[0], shape[1]), (height, width))(image)
    assert found.dtype == np.uint8
    # Blown up until each new pixel covers whole ones, the mean is a plain one.
    fine = image.repeat(height, 0).repeat(width, 1).astype(np.float64)
    expected = fine.reshape(height, shape[0], width, shape[1], *shape[2:]).mean((1, 3))
    np.testing.assert_allclose(found, expected, atol=0.501)


def test_float_images_are_not_rounded() -> None:
    image = np.arange(4, dtype=np.float32).reshape(2, 2)
    np.testing.assert_array_equal(make_resizer((2, 2), (1, 1))(image), [[1.5]])


def test_gray_is_the_luma_of_the_colours() -> None:
    env = make_game(make_wrapper("gray"))
    colour, grey = make_game().reset(seed=2)[0], env.reset(seed=2)[0]
    expected = np.rint(colour @ np.array([0.299, 0.587, 0.114]))
    np.testing.assert_allclose(grey, expected, atol=1)
    assert env.observation_space == Box(0, 255, (8, 10), np.uint8)


@pytest.mark.parametrize(
    ("params", "expected"),
    [({}, [1, -1, 0.5]), ({"how": "sign"}, [1, -1, 1]), ({"low": 0, "high": 9}, [3, 0, 0.5])],
)
def test_rewards_are_clipped_or_replaced_by_their_sign(
    params: dict[str, Any], expected: list[float]
) -> None:
    env = make_game(make_wrapper("reward_clip", **params), rewards=[3.0, -2.0, 0.5])
    env.reset(seed=0)
    assert [env.step(0)[1] for _ in range(3)] == expected
    assert env.unwrapped_return == 1.5


@pytest.mark.parametrize(
    ("params", "expected"),
    [({}, [0, 0, 1]), ({"reached": 5, "otherwise": -0.25}, [-0.25, -0.25, 5])],
)
def test_a_reward_for_the_goal_replaces_those_of_the_env(
    params: dict[str, Any], expected: list[float]
) -> None:
    env = make_game(make_wrapper("reward_goal", **params), rewards=[-1.0], length=3)
    env.reset(seed=0)
    steps = [env.step(0) for _ in range(3)]
    assert [step[1] for step in steps] == expected
    assert [step[2] for step in steps] == [False, False, True]
    assert env.unwrapped_return == -3


def test_an_episode_that_is_cut_off_has_not_reached_its_goal() -> None:
    cut, goal = make_wrapper("time_limit", steps=2), make_wrapper("reward_goal")
    env = make_game(cut, goal, length=9)
    env.reset(seed=0)
    steps = [env.step(0) for _ in range(2)]
    assert [step[1] for step in steps] == [0, 0]
    assert steps[-1][3]


def test_rewards_are_divided_by_the_deviation_of_the_return_so_far() -> None:
    env = make_game(make_wrapper("reward_normalise", gamma=0.5), rewards=[4.0, 0.0, 2.0])
    env.reset(seed=0)
    found = [env.step(0)[1] for _ in range(3)]
    sums = [4.0, 2.0, 3.0]
    assert found == pytest.approx([4 / 1, 0.0, 2 / np.std(sums)])


@pytest.mark.parametrize("name", sorted(PARAMS))
def test_returns_sum_the_envs_own_rewards(name: str) -> None:
    env = Gymnasium(
        id=GAME, kwargs={"rewards": [2.0, -0.5]}, wrappers=[make_wrapper(name, **PARAMS[name])]
    )
    envs = SerialEnvManager(env=env, count=3, seed=1)
    envs.reset()
    episodes, own = [], np.zeros(3)
    inner = [one.unwrapped for one in envs.local_envs.envs]
    while len(episodes) < 9:
        before = [e.total for e in inner]
        ended = envs.advance(np.full(3, 2)).episodes
        own += [e.total - b if e.total >= b else 0 for e, b in zip(inner, before, strict=True)]
        episodes += ended
    if name in ("noop_start", "fire_on_reset", "episodic_life"):
        return  # their steps within resets are tested below
    for episode in episodes:
        steps = episode.length * (2 if name == "action_repeat" else 1)
        assert min(steps, 20) // 2 * 1.5 <= episode.total + 2 <= steps // 2 * 1.5 + 4


def test_rewards_within_a_reset_do_not_count_for_the_return() -> None:
    wrappers = [make_wrapper("noop_start", most=5), make_wrapper("fire_on_reset")]
    env = make_game(*wrappers, rewards=[1.0], length=30)
    _, _ = env.reset(seed=1)
    assert env.unwrapped.t >= 2
    steps = 0
    over = False
    while not over:
        over = env.step(0)[2]
        steps += 1
    assert env.unwrapped_return == steps < 29


def test_a_lost_life_ends_the_episode_and_the_game_continues() -> None:
    env = Gymnasium(id=GAME, kwargs={"lives": 3, "length": 12, "rewards": [1.0]})
    wrapped = Gymnasium(**env.config.model_dump() | {"wrappers": [make_wrapper("episodic_life")]})
    envs = SerialEnvManager(env=wrapped, count=1)
    envs.reset()
    ends = [envs.advance(np.zeros(1, np.int64)) for _ in range(20)]
    episodes = [(e.total, e.length) for s in ends for e in s.episodes]
    # A life is four steps. The step that begins the next life is not the agent's.
    assert episodes[:4] == [(4.0, 4), (3.0, 3), (3.0, 3), (4.0, 4)]
    assert all(s.terminated[0] for s in ends if s.episodes)


def test_only_restricts_a_wrapper_to_collecting_or_evaluating() -> None:
    env = Gymnasium(
        id=GAME,
        wrappers=[
            make_wrapper("gray"),
            make_wrapper("reward_clip", only="collect"),
            make_wrapper("time_limit", steps=2, only="evaluate"),
        ],
    )
    assert env.spec()[0] == env.for_evaluation().spec()[0] == Column("uint8", (8, 10))
    steps = {}
    for name, one in {"collect": env.make(0), "evaluate": env.for_evaluation().make(0)}.items():
        one.reset(seed=0)
        steps[name] = [one.step(0)[1:4] for _ in range(2)]
    assert steps["collect"] == [(1.0, False, False), (1.0, False, False)]
    assert steps["evaluate"] == [(3.0, False, False), (3.0, False, True)]
    assert env.for_evaluation().for_evaluation().spec() == env.for_evaluation().spec()


def test_the_number_of_noops_follows_from_the_seed() -> None:
    env = make_game(make_wrapper("noop_start", most=4))
    begun = []
    for seed in range(40):
        env.reset(seed=seed)
        begun.append(env.unwrapped.t)
    assert set(begun) == {1, 2, 3, 4}


def test_sticky_actions_are_repeated_with_the_given_probability() -> None:
    env = make_game(make_wrapper("sticky_actions", probability=0.3), length=4000)
    env.reset(seed=0)
    wanted = [k % 3 for k in range(3000)]
    for action in wanted:
        env.step(action)
    repeated = np.mean(np.array(env.unwrapped.taken) != wanted)
    # The third repetition in a row takes the chosen one.
    assert repeated == pytest.approx(0.28, abs=0.03)


def test_a_repeated_action_sums_rewards_and_stops_at_the_end() -> None:
    env = make_game(make_wrapper("action_repeat", n=4), length=6, rewards=[1.0])
    env.reset(seed=0)
    assert env.step(1)[1:3] == (4.0, False)
    assert env.step(1)[1:3] == (2.0, True)


def test_the_maximum_of_two_frames_is_observed() -> None:
    env, bare = make_game(make_wrapper("action_repeat", n=2, brightest=True)), make_game()
    env.reset(seed=0)
    bare.reset(seed=0)
    frames = [bare.step(0)[0] for _ in range(2)]
    np.testing.assert_array_equal(env.step(0)[0], np.maximum(*frames))


def test_the_last_action_and_reward_are_observed() -> None:
    env = make_game(make_wrapper("previous"), rewards=[3.0])
    assert isinstance(env.observation_space, Dict)
    first = env.reset(seed=0)[0]
    assert (first["last_action"], first["last_reward"]) == (0, 0)
    second = env.step(2)[0]
    assert (second["last_action"], second["last_reward"]) == (2, 3)
    again = env.reset(seed=0)[0]
    assert (again["last_action"], again["last_reward"]) == (0, 0)


def test_the_mask_in_info_is_observed() -> None:
    env = make_game(make_wrapper("action_mask"))
    assert env.reset(seed=0)[0]["action_mask"].tolist() == [1, 1, 0]
    assert env.step(0)[0]["action_mask"].tolist() == [1, 0, 1]


def test_a_missing_mask_is_an_error() -> None:
    with pytest.raises(ValueError, match="the env's info has no 'legal'; set `key`"):
        make_game(make_wrapper("action_mask", key="legal")).reset(seed=0)


@pytest.mark.parametrize(
    ("env", "wrappers", "what"),
    [
        ("CartPole-v1", [("gray", {})], r"gray: observations of shape \(4,\) are no images"),
        (GAME, [("frame_stack", {}), ("resize", {})], "put it before frame_stack"),
        (
            GAME,
            [("previous", {}), ("gray", {})],
            r"is not a Box; name one with `leaf`: last_reward, observation",
        ),
        (GAME, [("gray", {"leaf": "camera"})], r"gray: .* have no 'camera'; leave out `leaf`"),
        (NESTED, [("gray", {"leaf": "robot"})], r"not a Box; .*: camera, robot/eye"),
        (NESTED, [("gray", {"leaf": "robot/ear"})], r"no 'robot/ear'; .*: camera, robot/eye"),
        (GAME, [("action_scale", {})], r"actions are Discrete\(3\); it needs a Box"),
        (GAME, [("fire_on_reset", {"action": 3})], "and the action is 3; give another `action`"),
        ("Pendulum-v1", [("noop_start", {})], r"noop_start: the env takes Box.*give another"),
        ("Pendulum-v1", [("action_mask", {})], r"action_mask: actions are Box.*leave it out"),
        (GAME, [("previous", {}), ("previous", {})], "observations have a 'last_action' already"),
        ("FrozenLake-v1", [("frame_stack", {})], "frame_stack: .* is not a Box; leave the wrap"),
        (GAME, [("wrapper", {"id": "no.where:Wrap"})], "cannot import 'no.where'"),
    ],
)
def test_a_wrapper_that_does_not_fit_the_env_is_refused(
    env: str, wrappers: list[tuple[str, dict[str, Any]]], what: str
) -> None:
    with pytest.raises(UnsoundError, match=what):
        Gymnasium(id=env, wrappers=[make_wrapper(n, **p) for n, p in wrappers]).spec()


def test_a_config_without_the_parameters_of_every_wrapper_is_refused() -> None:
    with pytest.raises(TypeError, match=r"'only', .*; write `class Config\(Wrapper.Config\)`"):

        class Half(Wrapper):
            class Config(BaseConfig):  # type: ignore[assignment]
                factor: float = 0.5


class Wrong(Wrapper):
    class Config(Wrapper.Config):
        raises: bool = False

    def wrap(self, env: Any) -> Any:
        return {}["gone"] if self.config.raises else None


@pytest.mark.parametrize(
    ("raises", "what"),
    [
        (True, "the wrapper Wrong raised KeyError: 'gone'; correct its parameters, or its method"),
        (False, "the wrapper Wrong returned None; return an env from its method `wrap`"),
    ],
)
def test_a_wrapper_that_fails_is_named(raises: bool, what: str) -> None:
    with pytest.raises(UnsoundError, match=what):
        Gymnasium(id="CartPole-v1", wrappers=[Wrong(raises=raises)]).spec()


def test_episodic_life_needs_an_env_with_lives() -> None:
    env = Gymnasium(id="CartPole-v1", wrappers=[make_wrapper("episodic_life")]).make(0)
    with pytest.raises(UnsoundError, match=r"does not count lives .*; leave the wrapper out"):
        env.reset(seed=0)


def test_a_wrapper_can_be_given_by_its_import_path() -> None:
    own = make_wrapper(
        "wrapper",
        id="gymnasium.wrappers:RescaleObservation",
        kwargs={"min_obs": np.float32(0), "max_obs": np.float32(1)},
    )
    env = Gymnasium(id="MountainCar-v0", wrappers=[own]).make(0)
    assert env.observation_space == Box(0, 1, (2,), np.float32)


def test_each_counts_envs_over_all_replicas() -> None:
    each = [{"length": 2}, {"length": 3}, {"length": 4}]
    env = Gymnasium(id=GAME, kwargs={"lives": 1}, each=each)
    lengths = [env.make(index).unwrapped.length for index in range(5)]
    assert lengths == [2, 3, 4, 2, 3]
    config = SerialEnvManager.Config(env=env, count=2)
    replica = SerialEnvManager(config=config, context=Context("envs", replica=1))
    replica.reset()
    assert [one.unwrapped.length for one in replica.local_envs.envs] == [4, 2]


def test_the_id_may_name_a_function() -> None:
    env = Gymnasium(id="tests.nodes.envs.game:make_game", kwargs={"size": 3}).make(0)
    assert isinstance(env, gymnasium.Env)
    assert isinstance(env.action_space, Discrete)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "serial"])
def test_every_kind_of_manager_gives_the_same_steps_of_wrapped_envs(kind: str) -> None:
    names = ["sticky_actions", "noop_start", "gray", "frame_stack", "action_mask"]
    names += ["episodic_life", "reward_normalise"] if "pre-reset" not in kind else []
    env = Gymnasium(
        id=GAME,
        each=[{"length": 9}, {"length": 12}],
        wrappers=[make_wrapper(n, **PARAMS[n]) for n in names],
    )
    played = []
    for cls, params in (KINDS["serial"], KINDS[kind]):
        node = cls(config=cls.Config(env=env, count=3, **params), context=Context("envs", seed=1))
        try:
            node.reset()
            steps = [node.advance(np.array([k % 3, 0, 1])) for k in range(25)]
            played.append([(s.obs.tobytes(), s.reward.tolist(), list(s.episodes)) for s in steps])
        finally:
            node.close()
    assert played[0] == played[1]
    assert sum(len(episodes) for _, _, episodes in played[0]) > 5


@pytest.mark.parametrize("name", ["episodic_life", "reward_normalise"])
def test_pre_reset_refuses_wrappers_that_span_episodes(name: str) -> None:
    cls, params = KINDS["sync, pre-reset"]
    wrappers = [make_wrapper(name, only="evaluate"), make_wrapper(name)]
    for chosen, refused in ((wrappers[:1], False), (wrappers, True)):
        config = cls.Config(env=Gymnasium(id=GAME, wrappers=chosen), count=1, **params)
        if not refused:
            cls.describe(config, Surroundings({}, {}, frozenset()))
            continue
        for use in (
            lambda c=config: cls.describe(c, Surroundings({}, {}, frozenset())),
            lambda c=config: cls(config=c),
        ):
            with pytest.raises(
                UnsoundError, match="makes episodes depend on earlier ones; leave out"
            ):
                use()
