"""Films of episodes: which are filmed, what they show, and what stands in their way."""

from __future__ import annotations

import json
import resource
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image, ImageSequence

from flowrl.core.config import PartSpec
from flowrl.core.node import UnsoundError
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.pettingzoo import PettingZoo
from flowrl.nodes.envs.steps import Episode
from flowrl.nodes.evaluators import video_files
from flowrl.nodes.evaluators.evaluator import Evaluator
from flowrl.nodes.evaluators.video import select_episodes
from flowrl.nodes.policies.random import Random
from tests.nodes.toy_envs import RenderedEnv
from tests.nodes.toy_policies import Toy, weights


def evaluator(cls: str = "RenderedEnv", episodes: int = 7, **kwargs: Any) -> Evaluator:
    env = Gymnasium(id=f"tests.nodes.toy_envs:{cls}", kwargs=kwargs)
    policy = PartSpec("toy", Toy, Toy.Config())
    return Evaluator(env=env, policy=policy, episodes=episodes, envs=3, seed=5)


def pictures(path: Path) -> list[list[int]]:
    """The colour of each picture of a GIF."""
    with Image.open(path) as film:
        frames = ImageSequence.Iterator(film)
        return [np.asarray(frame.convert("RGB"))[0, 0].tolist() for frame in frames]


def without_ffmpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_files, "_imageio_ffmpeg", lambda: None)


def test_the_worst_the_median_and_the_best_are_chosen() -> None:
    episodes = [Episode(0, 5.0, 2), Episode(0, 1.0, 1), Episode(1, 9.0, 3), Episode(1, 4.0, 2)]
    ids, actions = np.array([0] * 3 + [1] * 5), np.arange(8)
    chosen = {
        s.name: (s.episode, s.number, s.actions.tolist())
        for s in select_episodes(episodes, ids, actions)
    }
    assert chosen == {
        "worst": (episodes[1], 1, [0, 1, 2]),
        "median": (episodes[3], 1, [3, 4, 5, 6, 7]),
        "best": (episodes[2], 0, [3, 4, 5]),
    }


def test_a_film_shows_the_episode_that_was_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ffmpeg(monkeypatch)
    node = evaluator()
    seen = {e.total: e for e in node.eval(weights(2)).episodes}
    films = node.record_videos(weights(2), tmp_path / "films")
    assert [film.name for film in films] == ["worst.gif", "median.gif", "best.gif"]
    for film, total in zip(films, (min(seen), None, max(seen)), strict=True):
        shown = pictures(film)
        steps = [round(green / 40) for _, green, _ in shown]
        assert steps == list(range(len(shown)))  # from the first sight to the last
        if total is not None:
            assert len(shown) == seen[total].length + 1
        assert len({red for red, _, _ in shown}) == 1  # one seed: no picture of the next episode
        assert {blue for _, _, blue in shown[1:]} == {200}
    assert {p.name for p in (tmp_path / "films").iterdir()} == {f.name for f in films}


def test_only_three_episodes_are_rendered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_ffmpeg(monkeypatch)
    RenderedEnv.rendered = 0
    films = evaluator(length=4, episodes=20).record_videos(weights(1), tmp_path / "films")
    assert RenderedEnv.rendered == 3 * 5
    assert [len(pictures(film)) for film in films] == [5, 5, 5]


def test_a_file_holds_one_after_another(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "all.gif"
    assert evaluator(length=3).record_videos(weights(1), out) == [out]
    steps = [round(green / 40) for _, green, _ in pictures(out)]
    assert steps == [0, 1, 2, 3] * 3


def test_mp4_films_are_as_long_as_the_episodes(tmp_path: Path) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    out = tmp_path / "all.mp4"
    evaluator(length=3).record_videos(weights(1), out)
    frames, _ = ffmpeg.count_frames_and_secs(str(out))
    assert frames == 12


def test_an_env_that_does_not_repeat_is_not_filmed(tmp_path: Path) -> None:
    out = tmp_path / "all.gif"
    with pytest.raises(UnsoundError, match="must depend on its seed and the actions alone"):
        evaluator("UnseededEnv").record_videos(weights(1), out)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("cls", "file", "what"),
    [
        ("CountingEnv", "a.gif", "the env cannot be rendered.*render_mode"),
        ("RenderedEnv", "a.avi", "is not a video file; give it the suffix .mp4 or .gif"),
        (
            "RenderedEnv",
            "a.mp4",
            r"mp4 needs the package imageio-ffmpeg; pip install 'flowrl\[video\]'",
        ),
    ],
)
def test_what_cannot_be_filmed_is_said(
    cls: str, file: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ffmpeg(monkeypatch)
    with pytest.raises(UnsoundError, match=what):
        evaluator(cls).record_videos(weights(1), tmp_path / file)


@pytest.mark.parametrize("agents", ["shared", "joint"])
def test_of_agents_whole_games_are_filmed(
    agents: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ffmpeg(monkeypatch)
    games = [{"game": ["ab"] * length} for length in (2, 5, 3)]
    kwargs = {"names": ["a", "b"], "space": "choice"}
    env = PettingZoo(
        id="tests.nodes.envs.agent_envs:ScriptedAgents", agents=agents, kwargs=kwargs, each=games
    )
    policy = (
        PartSpec("toy", Toy, Toy.Config())
        if agents == "shared"
        else PartSpec("random", Random, Random.Config())
    )
    node = Evaluator(env=env, policy=policy, episodes=6 if agents == "shared" else 3, seed=5)
    films = node.record_videos(weights(2), tmp_path / "films")
    assert [[red for red, _, _ in pictures(film)] for film in films] == [
        [0, 1, 2],
        [0, 1, 2, 3],
        [0, 1, 2, 3, 4, 5],
    ]


@pytest.mark.parametrize("ending", ["mp4", "gif"])
def test_a_film_that_cannot_be_written_whole_is_an_error_and_leaves_nothing(
    ending: str, tmp_path: Path
) -> None:
    """As on a disk that is full: no file may be larger than some bytes."""
    if ending == "mp4":
        pytest.importorskip("imageio_ffmpeg")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    noise = np.random.default_rng(0).integers(256, size=(8, 64, 64, 3), dtype=np.uint8)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, hard))
    try:
        with pytest.raises(UnsoundError, match=r"the video cannot be written: .*; free some space"):
            write(tmp_path / f"a.{ending}", noise)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def write(path: Path, pictures: np.ndarray) -> None:
    with video_files.video_writer(path, lambda: 10) as frame:
        for picture in pictures:
            frame(picture)


def test_pictures_of_odd_sizes_get_a_margin_in_mp4(tmp_path: Path) -> None:
    exe = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    write(tmp_path / "odd.mp4", np.full((2, 21, 33, 3), 200, np.uint8))
    shown = ["-i", tmp_path / "odd.mp4", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run([exe, "-loglevel", "error", *shown], capture_output=True, check=True)
    colours = np.frombuffer(raw.stdout, np.uint8).reshape(2, 22, 34, 3)
    assert abs(colours.astype(int) - 200).max() <= 3  # to the end of the margin


@pytest.mark.parametrize(
    ("rendered", "what"),
    [
        (None, "NoneType, not images; it needs the render mode `rgb_array`"),
        (np.zeros((4, 5), np.uint8), r"uint8\[4, 5\]; a frame must be uint8 \(H, W, 3\)"),
        (np.zeros((4, 5, 3), np.float32), r"float32\[4, 5, 3\]; a frame"),
    ],
)
def test_what_is_no_picture_is_refused(rendered: Any, what: str, tmp_path: Path) -> None:
    node = evaluator()
    with (
        pytest.raises(UnsoundError, match=what),
        patch.object(RenderedEnv, "render", lambda _: rendered),
    ):
        node.record_videos(weights(1), tmp_path / "a.gif")


@pytest.mark.slow
def test_a_runs_best_checkpoint_is_filmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from flowrl.cli.main import main

    run = tmp_path / "run"
    args = ["run", "cartpole_dqn", "--train-iters", "96", "--out", str(run), "--quiet"]
    assert main([*args, "--set", "evaluator.episodes=3"]) == 0
    assert main(["eval", str(run), "--video", str(tmp_path / "films"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(told["videos"]) == 3
    assert all(Path(film).stat().st_size > 1000 for film in told["videos"])
