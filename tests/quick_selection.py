"""What the quick suite selects: some combinations of parameters, and a third of the examples of a property."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

FULL_PROFILE = "full"  # of hypothesis: `make test-slow` selects it
Test = TypeVar("Test", bound=Callable[..., None])


def slow_except(quick: Collection[tuple[Any, ...]], *values: Iterable[Any]) -> list[Any]:
    """Return all combinations of the values as parameters; those that `quick` does not list are marked slow.

    Each value should be in a quick combination, so that the quick suite covers its path.
    """
    combinations = list(itertools.product(*values))
    unknown = set(quick) - set(combinations)
    assert not unknown, f"no combinations of the values: {unknown}"
    marks = [() if c in quick else pytest.mark.slow for c in combinations]
    return [pytest.param(*c, marks=mark) for c, mark in zip(combinations, marks, strict=True)]


def examples(number: int, **options: Any) -> Callable[[Test], Test]:
    """Give a property this number of examples in the slow suite, and a third of it in the quick suite."""
    is_full = settings.get_current_profile_name() == FULL_PROFILE
    limit = settings(
        **{"max_examples": number if is_full else number // 3, "deadline": None, **options}
    )
    return lambda test: pytest.mark.examples(limit(test))
