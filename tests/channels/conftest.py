"""Pairs of sites as fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.channels.site_pairs import TRANSPORTS, SitePair, open_pair


@pytest.fixture(params=TRANSPORTS)
def sites(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SitePair]:
    """Two sites, over each transport."""
    with open_pair(request.param, tmp_path) as sites:
        yield sites


@pytest.fixture
def sharing_sites(tmp_path: Path) -> Iterator[SitePair]:
    """Two sites that share memory."""
    with open_pair("shared", tmp_path) as sites:
        yield sites
