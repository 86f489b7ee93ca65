"""A run that hangs ends the tests, and says where it hung."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator

import pytest

HANGS_S = 120.0


@pytest.fixture(autouse=True)
def ends(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test of this folder ends."""
    slow = request.node.get_closest_marker("slow")
    faulthandler.dump_traceback_later(HANGS_S * (10 if slow else 1), exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
