"""The part of a traceback that a user needs: that of the first cause, beginning with the user's own code."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

OWN_PACKAGE = __name__.partition(".")[0]
STDLIB = sysconfig.get_path("stdlib")
PACKAGE_FOLDERS = {"site-packages", "dist-packages"}


class TextTraceback(Exception):
    """The traceback of an error in another process, in its text; it is the cause of what stands for that error here."""

    def __init__(self, text: str, first_cause: str) -> None:
        """`text` is the whole traceback, and `first_cause` what `first_cause_traceback` said of the error there."""
        self.first_cause = first_cause
        super().__init__(text)


def first_cause_traceback(error: BaseException) -> str:
    """Return the traceback of the first cause of an error, as `user_traceback` shows it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error.first_cause if isinstance(error, TextTraceback) else user_traceback(error)


def user_traceback(error: BaseException) -> str:
    """Return an error's traceback without the calls that led to the user's own code; if none is in it, all of it."""
    of_user = (tb for tb in _entries(error.__traceback__) if _is_of_user(tb))
    begin = next(of_user, error.__traceback__)
    return "".join(traceback.format_exception(type(error), error, begin))


def _entries(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _is_of_user(tb: TracebackType) -> bool:
    """Return whether the code belongs neither to flowrl, nor to an installed package or Python itself."""
    frame = tb.tb_frame
    module, file = str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename
    if module.partition(".")[0] == OWN_PACKAGE or file.startswith("<frozen"):
        return False
    path = Path(file)
    return not path.is_relative_to(STDLIB) and PACKAGE_FOLDERS.isdisjoint(path.parts)
