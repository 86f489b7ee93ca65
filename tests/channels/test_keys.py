"""Key files: each is written once, and only its owner can read it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowrl.channels.keys import Keys, read_key, write_key
from flowrl.core.errors import UsageError


def test_only_the_owner_can_read_a_new_key(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        write_key(tmp_path / "key")
    finally:
        os.umask(old)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    key = read_key(tmp_path / "key")
    assert len(key.public) == len(key.secret) == 40
    assert key.secret.decode() not in repr(key)


def test_two_new_keys_differ(tmp_path: Path) -> None:
    write_key(tmp_path / "a")
    write_key(tmp_path / "b")
    assert read_key(tmp_path / "a").secret != read_key(tmp_path / "b").secret


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    write_key(tmp_path / "key")
    before = (tmp_path / "key").read_text()
    with pytest.raises(UsageError, match="the file exists already; use it"):
        write_key(tmp_path / "key")
    assert (tmp_path / "key").read_text() == before


def test_a_key_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: No such file or directory"):
        write_key(tmp_path / "nowhere" / "key")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    write_key(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(
        UsageError, match=r"others can read the file; make it secret with 'chmod 600 .*key'"
    ):
        read_key(tmp_path / "key")


def test_the_error_of_a_missing_key_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory; make one with 'flowrl host"):
        read_key(tmp_path / "key")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"public: x\nsecret: y\n",
        b"public: " + b"a" * 40,
        b"\xff\xfe",
        b"public: " + b"a" * 40 + b"\nsecret: " + b"\x01" * 40,
    ],
)
def test_a_file_without_a_valid_key_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(text)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="the file holds no valid key; make one with"):
        read_key(path)


def test_keys_are_converted_to_json_and_back() -> None:
    keys = Keys(b"public", b"secret", {"a": b"other"})
    assert Keys.from_json(keys.to_json()) == keys
