"""Films as files: .mp4 by ffmpeg, or .gif. What cannot be written whole leaves nothing."""

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
from flowrl.core.node import UnsoundError

FFMPEG_S = 120.0  # in which it must have ended, once it has all pictures
GIF_COLOURS = 64

Film = Callable[[Array], None]  # takes a picture (H, W, 3) uint8
Fps = Callable[[], int]  # pictures a second: known once there is one


def usual_ending() -> str:
    """Of films that nobody gave an ending to: what can be written here."""
    return ".mp4" if _imageio_ffmpeg() else ".gif"


@contextmanager
def writer(path: Path, fps: Fps) -> Iterator[Film]:
    """Writes what it is given as a film; nothing stays where that fails."""
    kinds = {".gif": _gif, ".mp4": _mp4}
    if path.suffix not in kinds:
        raise UnsoundError(
            f"'{path}' is no film", "end it with .mp4 or .gif, or name a folder", "video"
        )
    if path.suffix == ".mp4" and _imageio_ffmpeg() is None:
        raise UnsoundError(
            "mp4 needs the package imageio-ffmpeg", "pip install 'flowrl[video]', or take .gif"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        with kinds[path.suffix](aside, fps) as frame:
            yield frame
        aside.replace(path)
    except OSError as error:
        raise _unwritten(str(error)) from error
    finally:
        aside.unlink(missing_ok=True)


def _unwritten(why: str) -> UnsoundError:
    return UnsoundError(
        f"the film cannot be written: {why}", "free some space, or film elsewhere", "video"
    )


@contextmanager
def _gif(path: Path, fps: Fps) -> Iterator[Film]:
    image = importlib.import_module("PIL.Image")
    pictures: list[Any] = []
    yield lambda picture: pictures.append(image.fromarray(picture).quantize(GIF_COLOURS))
    duration_ms = max(20, round(1000 / fps()))  # browsers show nothing faster
    first, *rest = pictures
    first.save(path, save_all=True, append_images=rest, duration=duration_ms, loop=0)


@contextmanager
def _mp4(path: Path, fps: Fps) -> Iterator[Film]:
    ffmpeg: Ffmpeg | None = None

    def frame(picture: Array) -> None:
        nonlocal ffmpeg
        if ffmpeg is None:
            ffmpeg = Ffmpeg(path, picture.shape[1], picture.shape[0], fps())
        ffmpeg.take(picture)

    try:
        yield frame
        if ffmpeg is not None:
            ffmpeg.end()
    finally:
        if ffmpeg is not None:
            ffmpeg.close()


class Ffmpeg:
    """The program, which is given pictures of one size and says how it went."""

    def __init__(self, path: Path, width: int, height: int, fps: int) -> None:
        self._odd = (0, height % 2), (0, width % 2), (0, 0)  # the codec wants even numbers
        given = (
            f"-f rawvideo -pix_fmt rgb24 -s {width + width % 2}x{height + height % 2} -r {fps} -i -"
        )
        made = "-an -c:v libx264 -pix_fmt yuv420p"
        exe = _imageio_ffmpeg().get_ffmpeg_exe()
        words = [exe, "-y", "-loglevel", "error", *given.split(), *made.split(), str(path)]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # until `close`
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=self._said)

    def take(self, picture: Array) -> None:
        """One more."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(np.pad(picture, self._odd, "edge").tobytes())
        except BrokenPipeError:  # it has ended before its time, and says why
            self.end()

    def end(self) -> None:
        """That was all: now the film must be whole."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        if self._process.wait(FFMPEG_S):
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").splitlines() or ["it ended"]
            raise _unwritten(f"ffmpeg: {said[0]}")

    def close(self) -> None:
        """However it went, nothing goes on."""
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._said.close()


def _imageio_ffmpeg() -> Any:
    """The package that brings the program, if it is there."""
    try:
        return importlib.import_module("imageio_ffmpeg")
    except ModuleNotFoundError:
        return None
