"""Videos of episodes: their selection, their frames, and errors."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image, ImageSequence

from flowrl.core.config import PartSpec
from flowrl.core.facts import UnsoundError
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
    return Evaluator(env=env, policy=policy, episodes=episodes, env_count=3, seed=5)


def frame_colours(path: Path) -> list[list[int]]:
    """The colour of each frame of a GIF."""
    with Image.open(path) as video:
        frames = ImageSequence.Iterator(video)
        return [np.asarray(frame.convert("RGB"))[0, 0].tolist() for frame in frames]


def without_ffmpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_files, "_imageio_ffmpeg", lambda: None)


def test_the_worst_the_median_and_the_best_episode_are_selected() -> None:
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


def test_a_video_shows_the_episode_that_was_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ffmpeg(monkeypatch)
    node = evaluator()
    seen = {e.total: e for e in node.eval(weights(2)).episodes}
    videos = node.record_videos(weights(2), tmp_path / "videos")
    assert [video.name for video in videos] == ["worst.gif", "median.gif", "best.gif"]
    for video, total in zip(videos, (min(seen), None, max(seen)), strict=True):
        shown = frame_colours(video)
        steps = [round(green / 40) for _, green, _ in shown]
        assert steps == list(range(len(shown)))  # all observations, from first to last
        if total is not None:
            assert len(shown) == seen[total].length + 1
        assert len({red for red, _, _ in shown}) == 1  # one seed: no frame of the next episode
        assert {blue for _, _, blue in shown[1:]} == {200}
    assert {p.name for p in (tmp_path / "videos").iterdir()} == {f.name for f in videos}


def test_only_three_episodes_are_rendered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_ffmpeg(monkeypatch)
    RenderedEnv.rendered = 0
    videos = evaluator(length=4, episodes=20).record_videos(weights(1), tmp_path / "videos")
    assert RenderedEnv.rendered == 1 + 3 * 5  # the first one is a trial
    assert [len(frame_colours(video)) for video in videos] == [5, 5, 5]


def test_one_file_contains_all_three_episodes(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "all.gif"
    assert evaluator(length=3).record_videos(weights(1), out) == [out]
    steps = [round(green / 40) for _, green, _ in frame_colours(out)]
    assert steps == [0, 1, 2, 3] * 3


@pytest.mark.slow
def test_mp4_videos_are_as_long_as_their_episodes(tmp_path: Path) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    out = tmp_path / "all.mp4"
    evaluator(length=3).record_videos(weights(1), out)
    frames, _ = ffmpeg.count_frames_and_secs(str(out))
    assert frames == 12


def test_an_env_whose_replay_differs_is_refused(tmp_path: Path) -> None:
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
def test_envs_and_paths_that_allow_no_video_are_refused(
    cls: str, file: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ffmpeg(monkeypatch)
    with pytest.raises(UnsoundError, match=what):
        evaluator(cls).record_videos(weights(1), tmp_path / file)


def test_an_env_that_cannot_draw_is_refused_before_any_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    policy = PartSpec("random", Random, Random.Config())
    node = Evaluator(env=Gymnasium(id="CartPole-v1"), policy=policy, episodes=2)
    monkeypatch.setattr(node, "_evaluate", lambda *_: pytest.fail("episodes were played"))
    with pytest.raises(UnsoundError) as error:
        node.record_videos(weights(1), tmp_path / "a.gif")
    assert "the env cannot be rendered: DependencyNotInstalled: pygame is not" in str(error.value)
    assert "pip install 'flowrl[video]'" in str(error.value)


@pytest.mark.parametrize("agents", ["shared", "joint"])
def test_a_video_of_agents_shows_the_game_of_all(
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
    videos = node.record_videos(weights(2), tmp_path / "videos")
    assert [[red for red, _, _ in frame_colours(video)] for video in videos] == [
        [0, 1, 2],
        [0, 1, 2, 3],
        [0, 1, 2, 3, 4, 5],
    ]


@pytest.mark.parametrize("ending", ["mp4", "gif"])
def test_a_video_that_cannot_be_completed_is_an_error_and_leaves_no_file(
    ending: str, tmp_path: Path
) -> None:
    """A limit of the file size stands for a full disk."""
    if ending == "mp4":
        pytest.importorskip("imageio_ffmpeg")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    noise = np.random.default_rng(0).integers(256, size=(8, 64, 64, 3), dtype=np.uint8)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, hard))
    try:
        with pytest.raises(UnsoundError, match=r"the video cannot be written: .*; free some space"):
            write_video(tmp_path / f"a.{ending}", noise)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def write_video(path: Path, frames: np.ndarray) -> None:
    with video_files.video_writer(path, lambda: 10) as add_frame:
        for frame in frames:
            add_frame(frame)


def test_frames_of_odd_size_are_padded_in_mp4(tmp_path: Path) -> None:
    exe = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    write_video(tmp_path / "odd.mp4", np.full((2, 21, 33, 3), 200, np.uint8))
    shown = ["-i", tmp_path / "odd.mp4", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run([exe, "-loglevel", "error", *shown], capture_output=True, check=True)
    colours = np.frombuffer(raw.stdout, np.uint8).reshape(2, 22, 34, 3)
    assert abs(colours.astype(int) - 200).max() <= 3  # the padding included


@pytest.mark.parametrize(
    ("rendered", "what"),
    [
        (None, "NoneType, not images; it needs the render mode `rgb_array`"),
        (np.zeros((4, 5), np.uint8), r"uint8\[4, 5\]; a frame must be uint8 \(H, W, 3\)"),
        (np.zeros((4, 5, 3), np.float32), r"float32\[4, 5, 3\]; a frame"),
    ],
)
def test_a_rendering_that_is_no_frame_is_refused(rendered: Any, what: str, tmp_path: Path) -> None:
    node = evaluator()
    with (
        pytest.raises(UnsoundError, match=what),
        patch.object(RenderedEnv, "render", lambda _: rendered),
    ):
        node.record_videos(weights(1), tmp_path / "a.gif")


@pytest.mark.slow
def test_flowrl_eval_makes_a_video_of_the_best_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from flowrl.cli.main import main

    run = tmp_path / "run"
    args = ["run", "cartpole_dqn", "--train-iters", "96", "--out", str(run), "--quiet"]
    assert main([*args, "--set", "evaluator.episodes=3"]) == 0
    assert main(["eval", str(run), "--video", str(tmp_path / "videos"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(result["videos"]) == 3
    assert all(Path(video).stat().st_size > 1000 for video in result["videos"])
