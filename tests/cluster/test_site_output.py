"""How what sites print reaches the run."""

from __future__ import annotations

import time

import pytest

from flowrl.cluster.site_output import BYTES_PER_S, LINE_BYTES, TOO_MUCH, SiteOutputForwarder
from tests.manual_clock import ManualClock


@pytest.fixture
def sent() -> list[str]:
    return []


@pytest.fixture
def output(sent: list[str]) -> SiteOutputForwarder:
    return SiteOutputForwarder(sent.append)


def test_whole_lines_are_forwarded_and_printed(
    output: SiteOutputForwarder, sent: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("one\ntw", "", "o\n"):
        output.forward(text)
    assert sent == ["one\n", "two\n"]
    assert capsys.readouterr().err == "one\ntwo\n"


def test_the_last_line_of_a_site_needs_no_newline(
    output: SiteOutputForwarder, sent: list[str]
) -> None:
    output.forward("killed")
    output.forward("", ends_line=True)
    assert sent == ["killed"]


def test_a_line_without_end_is_forwarded_in_parts(
    output: SiteOutputForwarder, sent: list[str]
) -> None:
    output.forward("x" * (LINE_BYTES - 1))
    assert sent == []
    output.forward("x")
    assert sent == ["x" * LINE_BYTES]


def test_of_too_much_output_in_a_second_the_run_gets_a_part_and_a_note(
    output: SiteOutputForwarder, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(time, "monotonic", clock)
    for text in ("x" * BYTES_PER_S, "y", "z"):
        output.forward(text, ends_line=True)
    assert sent == ["x" * BYTES_PER_S, TOO_MUCH]
    clock.now_s += 1.0
    output.forward("later\n")
    assert sent[2:] == ["later\n"]
