"""What docs/architecture.md says of the code is true: files, the schedule, positions, the picture."""

from __future__ import annotations

import re
from pathlib import Path

import flowrl
from flowrl.checks.firing_counts import firing_at
from flowrl.render.report import schedule_lines
from flowrl.runtime.control.cuts import includes

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_file_that_is_named_exists() -> None:
    """Names without an ending are modules of `flowrl`."""
    words = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+)(\.[a-z]+)?`", PAGE))
    assert len(words) > 60
    missing = {
        name + suffix
        for name, suffix in words
        if not (ROOT / (name + suffix) if suffix else ROOT / "flowrl" / f"{name}.py").exists()
    }
    assert missing == set()


def test_the_schedule_is_that_of_the_graph() -> None:
    [schedule] = re.findall(r"```\n(warm-up 1.*?)```", PAGE, re.DOTALL)
    lines = schedule_lines(flowrl.load("cartpole_dqn").check())
    assert schedule.splitlines() == [line.strip() for line in lines]


def test_the_positions_of_the_round_are_those_of_the_program() -> None:
    program = flowrl.load("cartpole_dqn").check().program
    firings = {
        ("collector", 4): (4, 0, 0, 4),
        ("buffer", 4): (4, 1, 0, 4),
        ("learner", 0): (4, 2, 0, 0),
        ("learner", 7): (4, 2, 0, 7),
        ("learner", 95): (15, 2, 0, 95),
        ("evaluator", 0): (15, 2, 0, 95, 1, 0, 0, 0),
    }
    for (node, firing), position in firings.items():
        assert firing_at(program, node, firing) == position
        assert f"`{position}`" in PAGE
    assert sorted(firings.values()) == list(firings.values())


def test_a_cut_includes_what_its_firing_paces() -> None:
    assert includes((15, 2, 0, 95), (15, 2, 0, 95, 1, 0, 0, 0))
    assert not includes((15, 2, 0, 95, 1, 0, 0, 0), (15, 2, 0, 96))


def test_the_picture_is_what_flowrl_draws(tmp_path: Path) -> None:
    drawn = tmp_path / "drawn.svg"
    flowrl.load("cartpole_dqn").draw(drawn, placement="processes")
    assert drawn.read_text() == (ROOT / "docs" / "cartpole_dqn.svg").read_text()


def test_every_file_of_the_glossary_exists() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`((?:flowrl|nodes)/[a-z_/]+(?:\.py)?)`", glossary))
    assert len(names) > 50
    assert {name for name in names if not (ROOT / name).exists()} == set()
