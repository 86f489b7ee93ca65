"""Videos of episodes.

Episodes are played without rendering, while their actions are recorded. The episodes chosen for a video
are replayed from their seeds and actions, so only these are rendered.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.facts import UnsoundError
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.spec import EnvSpec, env_part
from flowrl.nodes.envs.steps import Episode, Steps
from flowrl.nodes.evaluators.video_files import AddFrame, default_suffix, video_writer

DEFAULT_FPS = 30  # if an env does not define `render_fps`


class RecordedEpisode(NamedTuple):
    """An episode that can be replayed."""

    name: str
    number: int  # its index among the env's episodes
    episode: Episode
    actions: Array  # all actions of the env up to the end of this episode


class Camera:
    """Renders one episode of one env."""

    def __init__(self) -> None:
        self.env, self.number = -1, -1
        self.add_frame: AddFrame | None = None
        self.fps = DEFAULT_FPS

    def select(self, recorded: RecordedEpisode, add_frame: AddFrame) -> None:
        """Render this episode from now on."""
        self.env, self.number = recorded.episode.env_id, recorded.number
        self.add_frame = add_frame

    def capture(self, env_id: int, number: int, env: Any) -> None:
        """Add a frame, if this is the selected episode."""
        if self.add_frame is None or (env_id, number) != (self.env, self.number):
            return
        self.fps = int(getattr(env, "metadata", {}).get("render_fps") or DEFAULT_FPS)
        self.add_frame(_rgb_frame(env.render()))


def _rgb_frame(rendered: Any) -> Array:
    """Check a rendered frame; return it as (H, W, 3), without an alpha channel."""
    if not isinstance(rendered, np.ndarray):
        what = f"the env renders {type(rendered).__name__}, not images"
        raise UnsoundError(what, "it needs the render mode `rgb_array`", "env")
    if rendered.dtype != np.uint8 or rendered.ndim != 3 or rendered.shape[2] not in (3, 4):
        what = f"the env renders {rendered.dtype}{list(rendered.shape)}"
        raise UnsoundError(what, "a frame must be uint8 (H, W, 3)", "env")
    return rendered[..., :3]


class CameraEnv:
    """Wraps an env, and lets a camera capture each of its states."""

    def __init__(self, env: Any, index: int, camera: Camera) -> None:
        self._env, self._index, self._camera, self._number = env, index, camera, -1

    def reset(self, **kwargs: Any) -> Any:
        result = self._env.reset(**kwargs)
        self._number += 1
        self._camera.capture(self._index, self._number, self._env)
        return result

    def step(self, action: Any) -> Any:
        result = self._env.step(action)
        self._camera.capture(self._index, self._number, self._env)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


class EpisodeRecorder:
    """Wraps an env manager, and records the actions and episodes of its envs."""

    def __init__(self, envs: SerialEnvManager) -> None:
        self._envs = envs
        self.count = envs.config.count
        self._ids: list[Array] = []
        self._actions: list[Array] = []
        self._episodes: list[Episode] = []

    def spec(self) -> EnvSpec:
        return self._envs.spec()

    def seed(self, seed: int, dynamic_seeds: bool = True) -> None:
        self._envs.seed(seed, dynamic_seeds)

    def reset(self) -> Array:
        return self._envs.reset()

    def advance(self, actions: Array, ids: Any = None) -> Steps:
        steps = self._envs.advance(actions, ids)
        self._ids.append(np.arange(self.count) if ids is None else np.asarray(ids))
        self._actions.append(actions)
        self._episodes += steps.episodes
        return steps

    def select_episodes(self) -> list[RecordedEpisode]:
        """Select the worst, the median and the best episode."""
        ids = np.concatenate(self._ids)
        order = np.argsort(ids, kind="stable")
        episodes = sorted(self._episodes, key=lambda episode: episode.env_id)
        return select_episodes(episodes, ids[order], np.concatenate(self._actions)[order])


def select_episodes(episodes: list[Episode], ids: Array, actions: Array) -> list[RecordedEpisode]:
    """Select the worst, the median and the best episode; `ids` and `actions` are those of all steps, by env."""
    order = sorted(range(len(episodes)), key=lambda k: episodes[k].total)
    chosen = {"worst": order[0], "median": order[(len(order) - 1) // 2], "best": order[-1]}
    recorded = []
    for name, k in chosen.items():
        env = episodes[k].env_id
        earlier = [e for e in episodes[:k] if e.env_id == env]
        steps = sum(e.length for e in earlier) + episodes[k].length
        own_actions = actions[ids == env][:steps]
        recorded.append(RecordedEpisode(name, len(earlier), episodes[k], own_actions))
    return recorded


class RenderingEnvPart:
    """An env part whose envs render for a camera."""

    def __init__(self, env: Any) -> None:
        self._plain = part = env_part(env)
        if "kwargs" not in type(part.config).model_fields:
            what = f"the render mode of a {type(part).__name__} env cannot be set"
            raise UnsoundError(what, "give the env a parameter `kwargs`", "env")
        kwargs = {**part.config.kwargs, "render_mode": "rgb_array"}
        self._part = type(part)(part.config.model_copy(update={"kwargs": kwargs}))
        self.camera = Camera()
        self.config = self._part.config
        self._require_frames()

    def _require_frames(self) -> None:
        """Render one frame, because many envs find out only then what they lack."""
        try:
            env = self._part.make(0)
            try:
                env.reset(seed=0)
                _rgb_frame(env.render())
            finally:
                env.close()
        except UnsoundError:
            raise
        except TypeError as error:
            what = f"the env cannot be rendered: {error}"
            raise UnsoundError(
                what, "its class must take `render_mode`, as gymnasium's classes do", "env"
            ) from error
        except Exception as error:
            what = f"the env cannot be rendered: {type(error).__name__}: {error}"
            hint = "the envs of gymnasium draw with pygame: pip install 'flowrl[video]'"
            raise UnsoundError(what, hint, "env") from error

    def spec(self) -> Any:
        return self._plain.spec()

    def make(self, index: int) -> Any:
        return CameraEnv(self._part.make(index), index, self.camera)


def render_episodes(
    part: RenderingEnvPart, envs: int, seed: int, recorded: list[RecordedEpisode], path: Path
) -> list[Path]:
    """Write the episodes into one video file or, if `path` has no suffix, into a file for each.

    `envs` and `seed` are those of the env manager that played the episodes.
    """
    camera, written = part.camera, list[Path]()
    manager = SerialEnvManager(env=part, count=envs)
    try:
        if path.suffix:
            with video_writer(path, lambda: camera.fps) as add_frame:
                for episode in recorded:
                    _replay(manager, seed, episode, camera, add_frame)
            return [path]
        path.mkdir(parents=True, exist_ok=True)
        for episode in recorded:
            file = path / f"{episode.name}{default_suffix()}"
            with video_writer(file, lambda: camera.fps) as add_frame:
                _replay(manager, seed, episode, camera, add_frame)
            written.append(file)
        return written
    finally:
        manager.close()


def _replay(
    manager: SerialEnvManager,
    seed: int,
    recorded: RecordedEpisode,
    camera: Camera,
    add_frame: AddFrame,
) -> None:
    manager.close()  # so that the camera counts the episodes of new envs from 0
    manager.seed(seed, dynamic_seeds=False)
    camera.select(recorded, add_frame)
    manager.reset()
    ids, episodes = [recorded.episode.env_id], []
    for action in recorded.actions:
        episodes += manager.advance(action[None], ids).episodes
    if episodes[-1:] != [recorded.episode]:
        raise UnsoundError(
            f"the {recorded.name} episode was {recorded.episode}, and its replay is {episodes[-1:]}; the "
            "env must depend on its seed and the actions alone",
            "let the env draw only from generators that `reset(seed=…)` seeds",
            "env",
        )
