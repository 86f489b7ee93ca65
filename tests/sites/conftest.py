"""A test of this folder that hangs ends all tests and prints the tracebacks."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator

import pytest

TIMEOUT_S = 300.0


@pytest.fixture(autouse=True)
def end_if_hanging(request: pytest.FixtureRequest) -> Iterator[None]:
    """Limit the time of every test."""
    slow = request.node.get_closest_marker("slow")
    faulthandler.dump_traceback_later(TIMEOUT_S * (10 if slow else 1), exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
