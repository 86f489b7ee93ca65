"""Runs of tests are listed apart from those of the user; what a test imports from its own folder, it forgets."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator

import pytest

# before any module of the tests remembers the environment
FOLDER = os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="flowrl-")


@pytest.fixture(autouse=True)
def own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Modules beside a test's graph are no other test's, though both be called `mine`."""
    path, known = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    folder = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - known:
        about = getattr(sys.modules[name], "__dict__", {})  # some modules make up what one asks for
        places = about.get("__path__") or [about.get("__file__") or ""]
        if any(str(place).startswith(folder) for place in places):
            del sys.modules[name]


def pytest_unconfigure() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
