"""An environment in which every process begins with global states of its own (`poisoned/sitecustomize.py`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "poisoned"
ROOT = Path(__file__).parents[2]


def poisoned_environment(marks: Path | None = None) -> Mapping[str, str]:
    """The variables; each process leaves a mark in a folder, if one is given."""
    paths = [str(FOLDER), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "random"}
    return found if marks is None else {**found, "POISONED": str(marks)}
