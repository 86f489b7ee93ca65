"""Runs of tests are listed apart from those of the user."""

from __future__ import annotations

import os
import shutil
import tempfile

# before any module of the tests remembers the environment
FOLDER = os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="flowrl-")


def pytest_unconfigure() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
