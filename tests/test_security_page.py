"""Every test that docs/security.md names exists, so that each of its claims is shown."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "security.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`([a-z_/]+\.py)::(test_\w+)`", PAGE))
    assert len(named) >= 15
    missing = {
        f"{file}::{test}"
        for file, test in named
        if f"def {test}(" not in (TESTS / file).read_text(encoding="utf-8")
    }
    assert missing == set()
