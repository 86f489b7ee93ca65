"""What the quick suite selects: some combinations of parameters, and a third of the examples of a property."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

FULL_PROFILE = "full"  # of hypothesis: `make test-all` selects it
Test = TypeVar("Test", bound=Callable[..., None])


def exhaustive_except(selected: Collection[tuple[Any, ...]], *values: Iterable[Any]) -> list[Any]:
    """Return all combinations of the values as parameters; only `make test-all` runs those that are not selected.

    Each value should be in a selected combination, so that the suites that run on each change cover its path.
    """
    combinations = list(itertools.product(*values))
    unknown = set(selected) - set(combinations)
    assert not unknown, f"no combinations of the values: {unknown}"
    marks = [() if c in selected else pytest.mark.exhaustive for c in combinations]
    return [pytest.param(*c, marks=mark) for c, mark in zip(combinations, marks, strict=True)]


def examples(number: int, **options: Any) -> Callable[[Test], Test]:
    """Give a property this number of examples in the exhaustive suite, and a third of it in the quick suite."""
    is_full = settings.get_current_profile_name() == FULL_PROFILE
    limit = settings(
        **{"max_examples": number if is_full else number // 3, "deadline": None, **options}
    )
    return lambda test: pytest.mark.examples(limit(test))
