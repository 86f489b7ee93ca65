"""Products of parameters of which only a selection runs in the quick suite."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_except(quick: Collection[tuple[Any, ...]], *values: Iterable[Any]) -> list[Any]:
    """Return all combinations of the values as parameters; those that `quick` does not list are marked slow.

    Each value should be in a quick combination, so that the quick suite covers its path.
    """
    combinations = list(itertools.product(*values))
    unknown = set(quick) - set(combinations)
    assert not unknown, f"no combinations of the values: {unknown}"
    marks = [() if c in quick else pytest.mark.slow for c in combinations]
    return [pytest.param(*c, marks=mark) for c, mark in zip(combinations, marks, strict=True)]
