"""Import paths of files: what they lead to is seen before it is called."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import pytest

from flowrl.core.import_paths import StandardLibraryError, import_any_object, import_object


class Outer:
    class Inner:
        """A class within a class."""


@lru_cache
def cached() -> int:
    return 1


borrowed_class = Path
borrowed_call: Callable[[], None] = partial(print, "borrowed")
completed = partial(cached)
number = 3


@pytest.mark.parametrize("name", ["Outer", "Outer.Inner", "cached", "completed", "number"])
def test_own_objects_are_imported(name: str) -> None:
    expected = sys.modules[__name__]
    for part in name.split("."):
        expected = getattr(expected, part)
    assert import_object(f"{__name__}:{name}") is expected


@pytest.mark.parametrize(
    "path",
    ["subprocess:call", "os.path:join", "antigravity:x", f"{__name__}:borrowed_class", f"{__name__}:borrowed_call"],
)  # fmt: skip
def test_the_standard_library_is_refused(path: str) -> None:
    with pytest.raises(StandardLibraryError, match=f"'{path}' belongs to Python's standard libr"):
        import_object(path)
    assert "antigravity" not in sys.modules


def test_what_this_program_names_itself_may_be_of_the_standard_library() -> None:
    assert import_any_object("pathlib:Path") is Path
