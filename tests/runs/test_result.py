"""How a run ended, as text."""

from __future__ import annotations

import pytest

from flowrl.runs.result import return_text


@pytest.mark.parametrize(
    ("value", "text"),
    [(478.95, "478.9"), (-200, "-200.0"), (0.9295, "0.929"), (9.6, "9.60"), (0, "0.00")],
)
def test_returns_below_ten_have_three_significant_digits(value: float, text: str) -> None:
    assert return_text(value) == text
