"""Join files: what they hold, who may read them, and how a host finds its run by them."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import pytest

from flowrl.channels.keys import Keys, new_pair, write_key
from flowrl.cli.main import main
from flowrl.cluster.join_file import (
    JoinInfo,
    RunHasEnded,
    RunIdentity,
    earlier_identity,
    join_source,
    parse_join_text,
    write_end,
    write_join_file,
)
from flowrl.core.errors import UsageError

RUN = RunIdentity("cartpole-1", 3)
FAR = "tcp://192.0.2.1:5555"


def info_with_key() -> JoinInfo:
    return JoinInfo(FAR, RUN, Keys(*new_pair()))


def test_a_host_finds_its_run_by_the_file_alone(tmp_path: Path) -> None:
    info = info_with_key()
    write_join_file(tmp_path / "join.json", info)
    assert join_source(str(tmp_path / "join.json"), None)() == info


def test_only_the_owner_can_read_a_join_file(tmp_path: Path) -> None:
    path = tmp_path / "join.json"
    path.write_text("what was there before")
    path.chmod(0o644)
    before = os.umask(0)
    try:
        write_join_file(path, info_with_key())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["join.json"]


def test_a_file_with_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "join.json"
    write_join_file(path, info_with_key())
    path.chmod(0o640)
    with pytest.raises(UsageError, match="others can read the file, which holds a key"):
        join_source(str(path), None)


def test_a_file_is_read_again_each_time(tmp_path: Path) -> None:
    path = tmp_path / "join.json"
    find_run = join_source(str(path), None)
    assert find_run() is None
    for epoch in range(2):
        info = JoinInfo("tcp://127.0.0.1:1", RunIdentity("r", epoch))
        write_join_file(path, info)
        assert find_run() == info
    write_end(path, RUN)
    with pytest.raises(RunHasEnded, match="the run has ended"):
        find_run()


def test_a_host_that_finds_that_its_run_has_ended_is_done(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_end(tmp_path / "join.json", RUN)
    assert main(["host", "--join", str(tmp_path / "join.json")]) == 0
    assert "join.json: the run has ended" in capfd.readouterr().err


def test_the_end_keeps_the_identity_and_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "join.json"
    assert earlier_identity(path) is None
    write_join_file(path, info_with_key())
    write_end(path, RUN)
    assert earlier_identity(path) == RUN
    assert "secret" not in path.read_text()


def test_standard_input_and_the_environment_hold_the_same_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = info_with_key()
    monkeypatch.setattr("sys.stdin", io.StringIO(info.text()))
    assert join_source("-", None)() == info
    monkeypatch.setenv("FLOWRL_JOIN", info.text())
    assert join_source(None, None)() == info


def test_without_any_of_them_the_error_names_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOWRL_JOIN", raising=False)
    with pytest.raises(UsageError, match=r"give --join tcp://ADDRESS:PORT.*or --join FILE"):
        join_source(None, None)


def test_a_key_of_its_own_replaces_that_of_the_file(tmp_path: Path) -> None:
    path, key = tmp_path / "join.json", tmp_path / "key"
    write_join_file(path, JoinInfo(FAR, RUN))
    with pytest.raises(UsageError, match="it needs --key FILE"):
        join_source(str(path), None)()
    write_key(key)
    found = join_source(str(path), key)()
    assert found is not None
    assert found.keys is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "it is not JSON"),
        ("{}", "it has no address"),
        ('{"address": 5}', "it has no address"),
        (f'{{"address": "{FAR}", "public": 1, "secret": 2}}', "it holds no valid key"),
        (f'{{"address": "{FAR}", "public": "x"}}', "it holds no valid key"),
    ],
)
def test_what_is_no_join_file_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"--join -: {why}; expected a join file"):
        parse_join_text(text, "--join -")


def test_a_key_is_not_shown_where_it_is_printed() -> None:
    info = info_with_key()
    assert info.keys is not None
    assert info.keys.secret.decode() not in repr(info)
