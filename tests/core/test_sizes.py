"""Sizes in bytes as graphs write them."""

from __future__ import annotations

import pytest

from flowrl.core.sizes import parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("7B", 7), ("2GB", 2 * 10**9), ("1.5 MB", 1_500_000), ("1KiB", 1024), ("2GiB", 2 << 30)],
)
def test_sizes_in_bytes_are_parsed(text: str, size: int) -> None:
    assert parse_bytes(text) == size


def test_an_invalid_size_is_refused() -> None:
    with pytest.raises(ValueError, match="'2 apples' is not a size in bytes; examples are 800MB"):
        parse_bytes("2 apples")
