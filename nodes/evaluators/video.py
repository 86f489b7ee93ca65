"""Films of episodes: they are played again by seed and actions, so that only they are rendered."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.node import UnsoundError
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.spec import EnvSpec, env_part
from flowrl.nodes.envs.steps import Episode, Steps
from flowrl.nodes.evaluators.film_files import Film, usual_ending, writer

FPS = 30  # where an env does not say


class Scene(NamedTuple):
    """One episode to film: the how-manieth of its env, counted from 0, and what was done up to its end."""

    name: str
    number: int
    episode: Episode
    actions: Array  # of all of the env's episodes up to this one


class Camera:
    """Films one episode of one env."""

    def __init__(self) -> None:
        self.env, self.number = -1, -1
        self.film: Film | None = None
        self.fps = FPS

    def aim(self, scene: Scene, film: Film) -> None:
        """Film this one from now on."""
        self.env, self.number, self.film = scene.episode.env_id, scene.number, film

    def see(self, env: int, number: int, filmed: Any) -> None:
        """Take a picture, if this is the episode."""
        if self.film is None or (env, number) != (self.env, self.number):
            return
        self.fps = int(getattr(filmed, "metadata", {}).get("render_fps") or FPS)
        self.film(_picture(filmed.render()))


def _picture(rendered: Any) -> Array:
    """Colours (H, W, 3), opaque."""
    if not isinstance(rendered, np.ndarray):
        what = f"the env renders no pictures, but {type(rendered).__name__}"
        raise UnsoundError(what, "it needs the render mode `rgb_array`", "env")
    if rendered.dtype != np.uint8 or rendered.ndim != 3 or rendered.shape[2] not in (3, 4):
        what = f"the env renders {rendered.dtype}{list(rendered.shape)}"
        raise UnsoundError(what, "a picture is uint8 (H, W, 3)", "env")
    return rendered[..., :3]


class Filmed:
    """An env in front of a camera."""

    def __init__(self, env: Any, index: int, camera: Camera) -> None:
        self._env, self._index, self._camera, self._number = env, index, camera, -1

    def reset(self, **kwargs: Any) -> Any:
        """As the env."""
        found = self._env.reset(**kwargs)
        self._number += 1
        self._camera.see(self._index, self._number, self._env)
        return found

    def step(self, action: Any) -> Any:
        """As the env."""
        found = self._env.step(action)
        self._camera.see(self._index, self._number, self._env)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


class Watched:
    """An env manager; what its envs do is noted."""

    def __init__(self, envs: SerialEnvManager) -> None:
        self._envs = envs
        self.count = envs.config.count
        self._ids: list[Array] = []
        self._actions: list[Array] = []
        self._episodes: list[Episode] = []

    def spec(self) -> EnvSpec:
        """As the manager."""
        return self._envs.spec()

    def reset(self) -> Array:
        """As the manager."""
        return self._envs.reset()

    def advance(self, actions: Array, ids: Any = None) -> Steps:
        """As the manager."""
        steps = self._envs.advance(actions, ids)
        self._ids.append(np.arange(self.count) if ids is None else np.asarray(ids))
        self._actions.append(actions)
        self._episodes += steps.episodes
        return steps

    def scenes(self) -> list[Scene]:
        """Of the worst, the median and the best episode of an env."""
        ids = np.concatenate(self._ids)
        order = np.argsort(ids, kind="stable")
        episodes = sorted(self._episodes, key=lambda episode: episode.env_id)
        return scenes_of(episodes, ids[order], np.concatenate(self._actions)[order])


class Rendering:
    """An env part that makes envs which can be filmed."""

    def __init__(self, env: Any, camera: Camera) -> None:
        self._plain = part = env_part(env)
        if "kwargs" not in type(part.config).model_fields:
            what = f"a {type(part).__name__} env cannot be told to render"
            raise UnsoundError(what, "give the env a parameter `kwargs`", "env")
        kwargs = {**part.config.kwargs, "render_mode": "rgb_array"}
        self._part = type(part)(part.config.model_copy(update={"kwargs": kwargs}))
        self._camera = camera
        self.config = self._part.config
        try:
            self._part.make(0).close()
        except TypeError as refused:
            what = f"the env cannot be rendered: {refused}"
            raise UnsoundError(
                what, "its class takes `render_mode`, as gymnasium's do", "env"
            ) from refused

    def spec(self) -> Any:
        """As the env."""
        return self._plain.spec()

    def make(self, index: int) -> Any:
        """One more env, in front of the camera."""
        return Filmed(self._part.make(index), index, self._camera)


def film(env: Any, envs: int, seed: int, scenes: list[Scene], out: Path) -> list[Path]:
    """Films the scenes, into a folder one file each, or one after another into a file.

    `envs` and `seed` are those of the env manager that played them.
    """
    camera, written = Camera(), []
    manager = SerialEnvManager(env=Rendering(env, camera), count=envs)
    try:
        if out.suffix:
            with writer(out, lambda: camera.fps) as frame:
                for scene in scenes:
                    _play(manager, seed, scene, camera, frame)
            return [out]
        out.mkdir(parents=True, exist_ok=True)
        for scene in scenes:
            path = out / f"{scene.name}{usual_ending()}"
            with writer(path, lambda: camera.fps) as frame:
                _play(manager, seed, scene, camera, frame)
            written.append(path)
        return written
    finally:
        manager.close()


def _play(manager: SerialEnvManager, seed: int, scene: Scene, camera: Camera, frame: Film) -> None:
    manager.close()  # new envs: each counts its episodes from the first
    manager.seed(seed, dynamic_seeds=False)
    camera.aim(scene, frame)
    manager.reset()
    ids, ended = [scene.episode.env_id], []
    for action in scene.actions:
        ended += manager.advance(action[None], ids).episodes
    if ended[-1:] != [scene.episode]:
        raise UnsoundError(
            f"the {scene.name} episode was {scene.episode}, and is {ended[-1:]} when it is played "
            "again: the env does not follow from its seed and the actions",
            "an env that is filmed draws from what `reset(seed=…)` seeds, only",
            "env",
        )


def scenes_of(episodes: list[Episode], ids: Array, actions: Array) -> list[Scene]:
    """The worst, the median and the best; `ids` and `actions` of all steps, env by env."""
    order = sorted(range(len(episodes)), key=lambda k: episodes[k].total)
    chosen = {"worst": order[0], "median": order[(len(order) - 1) // 2], "best": order[-1]}
    scenes = []
    for name, k in chosen.items():
        env = episodes[k].env_id
        before = [e for e in episodes[:k] if e.env_id == env]
        steps = sum(e.length for e in before) + episodes[k].length
        scenes.append(Scene(name, len(before), episodes[k], actions[ids == env][:steps]))
    return scenes
