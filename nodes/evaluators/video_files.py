"""Writes video files: .mp4 with ffmpeg, or .gif. A video that cannot be completed leaves no file."""

from __future__ import annotations

import importlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.facts import UnsoundError

FFMPEG_EXIT_TIMEOUT_S = 120.0  # counted from the last frame
GIF_COLOURS = 64

AddFrame = Callable[[Array], None]  # takes a frame (H, W, 3) uint8
Fps = Callable[[], int]  # returns the frames per second, which are known after the first frame


def default_suffix() -> str:
    """The suffix of the best format that can be written on this machine."""
    return ".mp4" if _imageio_ffmpeg() else ".gif"


@contextmanager
def video_writer(path: Path, fps: Fps) -> Iterator[AddFrame]:
    """Write the frames added in the `with` block to `path`; leave no file if that fails."""
    writers = {".gif": _write_gif, ".mp4": _write_mp4}
    if path.suffix not in writers:
        what = f"'{path}' is not a video file"
        raise UnsoundError(what, "give it the suffix .mp4 or .gif, or name a folder", "video")
    if path.suffix == ".mp4" and _imageio_ffmpeg() is None:
        raise UnsoundError(
            "mp4 needs the package imageio-ffmpeg", "pip install 'flowrl[video]', or take .gif"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        with writers[path.suffix](partial, fps) as add_frame:
            yield add_frame
        partial.replace(path)
    except OSError as error:
        raise _write_error(str(error)) from error
    finally:
        partial.unlink(missing_ok=True)


def _write_error(why: str) -> UnsoundError:
    return UnsoundError(
        f"the video cannot be written: {why}", "free some space, or choose another path", "video"
    )


@contextmanager
def _write_gif(path: Path, fps: Fps) -> Iterator[AddFrame]:
    image = importlib.import_module("PIL.Image")
    frames: list[Any] = []
    yield lambda frame: frames.append(image.fromarray(frame).quantize(GIF_COLOURS))
    duration_ms = max(20, round(1000 / fps()))  # browsers slow shorter frames down
    first, *rest = frames
    first.save(path, save_all=True, append_images=rest, duration=duration_ms, loop=0)


@contextmanager
def _write_mp4(path: Path, fps: Fps) -> Iterator[AddFrame]:
    ffmpeg: FfmpegProcess | None = None

    def add_frame(frame: Array) -> None:
        nonlocal ffmpeg
        if ffmpeg is None:
            ffmpeg = FfmpegProcess(path, frame.shape[1], frame.shape[0], fps())
        ffmpeg.add_frame(frame)

    try:
        yield add_frame
        if ffmpeg is not None:
            ffmpeg.finish()
    finally:
        if ffmpeg is not None:
            ffmpeg.close()


class FfmpegProcess:
    """A process of the program ffmpeg, which reads frames of one size from its standard input."""

    def __init__(self, path: Path, width: int, height: int, fps: int) -> None:
        self._padding = (0, height % 2), (0, width % 2), (0, 0)  # the codec needs even sizes
        size = f"{width + width % 2}x{height + height % 2}"
        source = f"-f rawvideo -pix_fmt rgb24 -s {size} -r {fps} -i -"
        target = "-an -c:v libx264 -pix_fmt yuv420p"
        exe = _imageio_ffmpeg().get_ffmpeg_exe()
        command = [exe, "-y", "-loglevel", "error", *source.split(), *target.split(), str(path)]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # until `close`
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=self._stderr)

    def add_frame(self, frame: Array) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(np.pad(frame, self._padding, "edge").tobytes())
        except BrokenPipeError:  # ffmpeg has exited early; `finish` raises its error
            self.finish()

    def finish(self) -> None:
        """Wait until the video is complete; raise if ffmpeg failed."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        if self._process.wait(FFMPEG_EXIT_TIMEOUT_S):
            self._stderr.seek(0)
            lines = self._stderr.read().decode(errors="replace").splitlines() or ["no message"]
            raise _write_error(f"ffmpeg: {lines[0]}")

    def close(self) -> None:
        """Kill the process if it still runs."""
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._stderr.close()


def _imageio_ffmpeg() -> Any:
    """Import the package that contains ffmpeg; return None if it is not installed."""
    try:
        return importlib.import_module("imageio_ffmpeg")
    except ModuleNotFoundError:
        return None
