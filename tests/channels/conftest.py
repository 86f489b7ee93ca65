"""Fixtures: a pair of sites, over every transport or over the sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.channels.pairs import SOCKETS, TRANSPORTS, Pair, pair


@pytest.fixture(params=TRANSPORTS)
def sites(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Two sites, over each transport."""
    with pair(request.param, tmp_path) as two:
        yield two


@pytest.fixture(params=SOCKETS)
def distant(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Two sites, over each transport with a socket."""
    with pair(request.param, tmp_path) as two:
        yield two


@pytest.fixture
def sharing(tmp_path: Path) -> Iterator[Pair]:
    """Two sites that share memory, with a slab open."""
    with pair("shared", tmp_path) as two:
        yield two
