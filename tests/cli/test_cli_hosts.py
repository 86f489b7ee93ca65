"""`flowrl host`, and the words of `flowrl run` that are about hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Flowrl = Callable[..., tuple[int, str, str]]


def test_a_new_key_is_made_once(flowrl: Flowrl, tmp_path: Path) -> None:
    path = tmp_path / "key"
    code, out, err = flowrl("host", "--new-key", str(path))
    assert (code, err) == (0, "")
    assert out == f"{path}: a new key; copy it to every machine of the run (scp -p)\n"
    assert path.stat().st_mode & 0o777 == 0o600
    code, _, err = flowrl("host", "--new-key", str(path))
    assert code == 2
    assert "the file exists already" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["host"],
            "host: give --join tcp://ADDRESS:PORT, where the run listens, or --join FILE",
        ),
        (
            ["host", "--join", "here"],
            "--join here: expected tcp://ADDRESS:PORT, such as tcp://10.0",
        ),
        (
            ["host", "--join", "tcp://10.0.0.1:5"],
            "others can reach this address, so it needs --key",
        ),
        (
            ["host", "--join", "tcp://127.0.0.1:5", "--within", "soon"],
            "--within soon: expected a t",
        ),
        (
            ["host", "--join", "tcp://127.0.0.1:5", "--stay", "--within", "5s"],
            "--stay waits for runs without a time limit, and --within sets one",
        ),
        (
            ["host", "--join", "tcp://127.0.0.1:5", "--stay", "--rejoin", "5s"],
            "--stay waits for runs without a time limit, and --rejoin sets one",
        ),
        (
            ["host", "--join", "tcp://127.0.0.1:5", "--name", "main"],
            "'main' cannot be a host's name",
        ),
        (
            ["host", "--join", "tcp://127.0.0.1:5", "--label", "a b"],
            "'a b' cannot be a host's name",
        ),
        (
            ["host", "--join", "tcp://127.0.0.1:5", "--key", "no"],
            "--key no: cannot be read: No such",
        ),
        (
            ["host", "--new-key", "k", "--join", "tcp://127.0.0.1:5"],
            "makes a file and joins nothing",
        ),
        (
            ["run", "cartpole_dqn", "--placement", "collector=gpu"],
            "'gpu' must be hosts; give --launc",
        ),
        (
            ["run", "cartpole_dqn", "--key", "k"],
            "--key: the placement puts nothing on a host",
        ),
        (
            ["run", "cartpole_dqn", "--hosts", "2"],
            "--hosts: the placement puts nothing on a host",
        ),
        (
            ["run", "cartpole_dqn", "--listen", "tcp://127.0.0.1:*"],
            "--listen: the placement puts nothing on a host; name one in --placement",
        ),
    ],
)
def test_wrong_arguments_are_refused_with_a_remedy(
    flowrl: Flowrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = flowrl(*words)
    assert code == 2
    assert message in err
    assert not (tmp_path / "runs").exists()


def test_an_invalid_time_is_refused(flowrl: Flowrl, tmp_path: Path) -> None:
    words = ["run", "cartpole_dqn", "--placement", "collector=x", "--listen", "tcp://127.0.0.1:*"]
    code, _, err = flowrl(*words, "--hosts-within", "soon", "--out", str(tmp_path / "r"))
    assert code == 2
    assert "--hosts-within soon: expected a time such as 30s, 10m or 2h" in err


def test_a_run_that_no_host_joins_names_the_missing_host(flowrl: Flowrl, tmp_path: Path) -> None:
    words = [
        "run",
        "cartpole_dqn",
        "--placement",
        "collector=cpu-*",
        "--listen",
        "tcp://127.0.0.1:*",
    ]
    code, out, err = flowrl(*words, "--hosts-within", "0.3s", "--out", str(tmp_path / "r"))
    assert code == 1
    assert "waiting for hosts: flowrl host --join tcp://127.0.0.1:" in err
    assert "flowrl: a host for 'cpu-*' has not joined within 0.3 s (joined: none)" in err
    assert "failed" in out


def test_an_address_that_others_can_reach_needs_a_key(flowrl: Flowrl, tmp_path: Path) -> None:
    words = ["run", "cartpole_dqn", "--placement", "collector=x", "--listen", "tcp://*:5555"]
    code, _, err = flowrl(*words, "--out", str(tmp_path / "r"))
    assert "--listen tcp://*:5555: others can reach this address, so it needs --key FILE" in err
    assert code == 2
    assert not (tmp_path / "r").exists()


def test_a_missing_key_is_reported_before_the_run_begins(flowrl: Flowrl, tmp_path: Path) -> None:
    words = [
        "run",
        "cartpole_dqn",
        "--placement",
        "collector=x",
        "--listen",
        "tcp://*:5555",
        "--key",
        "none",
    ]
    code, _, err = flowrl(*words, "--out", str(tmp_path / "r"))
    assert "--key none: cannot be read: No such file or directory; make one with" in err
    assert code == 2
    assert not (tmp_path / "r").exists()
