"""The commands of the page about tapes run, one after another, and print what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, process

PAGE = (ROOT / "docs/record_and_replay.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line, comments=True)
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    for line in block.splitlines()
]


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    printed = []
    for _, *words in COMMANDS:
        with process(*words, folder=tmp_path) as running:
            out, error = running.communicate(timeout=120)
        assert running.returncode == 0, error
        printed.append(out)
    shown = re.search(r"```\n(learner: .*?)```", PAGE, re.S)
    assert shown is not None
    assert shown[1] in printed
