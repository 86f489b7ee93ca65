"""The display of a run: a live table on a terminal, plain lines elsewhere."""

import os
import pty
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from flowrl.core.records import MetricsRecord
from flowrl.core.state import Count
from flowrl.core.wording import clock_text
from flowrl.graph.model import Graph, Limits
from flowrl.runs.display import LineDisplay, LiveDisplay, node_table, watcher_for
from flowrl.runs.progress_text import ProgressRate, making_text, time_left_s
from flowrl.runs.run import Run
from flowrl.runs.watcher import Watcher
from flowrl.runtime.records import RecordSource
from flowrl.runtime.status import Activity, NodeStats, SiteStatus
from tests.cli.conftest import process, write
from tests.runs.test_run import checked


def seen_on_a_terminal(folder: Path, *words: str) -> tuple[int, str]:
    """Exit status, and everything that a process writes to a terminal of 100 columns."""
    mine, theirs = pty.openpty()
    with process(*words, folder=folder, stdout=theirs) as running:
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(mine, 1 << 16)
            except OSError:  # the terminal's other end is closed
                break
            if not part:
                break
            parts.append(part)
        running.wait(timeout=90)
    os.close(mine)
    return running.returncode, b"".join(parts).decode()


def plain(text: str) -> str:
    """The text without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")


@pytest.mark.slow
def test_a_terminal_shows_a_moving_picture_and_keeps_the_lines(folder: Path) -> None:
    write(folder / "t.yaml", limits={"time": "0.6s"})
    status, written = seen_on_a_terminal(folder, "run", "t.yaml", "--out", "r")
    text = plain(written)
    assert status == 0
    assert "\x1b[?25l" in written  # the cursor is hidden …
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # … and comes back
    assert "t: seed 0, serial, in r\n" in text
    assert re.search(r"[\d,]+ env steps · [\d,]+/s · [\d,]+ train iters\n", text)
    assert re.search(r"return \d+\.\d+ \(best \d+\.\d+\) · 0:0\d · 0:00 left at most\n", text)
    assert text.count("  return ") > 2  # a line for each new best
    assert re.search(r"node +firings +ms each +of the time", text)
    assert re.search(r"\n +l +[\d,]+ +0\.\d\d +\d+% +█*", text)
    assert "finished: 0.6 s were asked for\n" in text


def test_the_rate_is_that_of_the_last_seconds_however_steps_are_reported() -> None:
    for round_s in (1, 3, 12):  # of 1000 steps; the fourth round never ends
        rate = ProgressRate()
        shown = [rate.at(t / 4, 1000 * min(t // (4 * round_s), 3)) for t in range(24 * round_s)]
        assert shown[4 * round_s : 12 * round_s] == [pytest.approx(1000 / round_s)] * 8 * round_s
        assert shown[-1] == (0 if round_s > 1 else pytest.approx(1000))


def test_the_picture_is_removed_before_an_error_is_printed(folder: Path) -> None:
    write(folder / "f.yaml", {"f": {"type": "FailingNode", "firing": 1}}, ["c -> f"])
    status, written = seen_on_a_terminal(folder, "run", "f.yaml")
    assert status == 1
    assert written.index("\x1b[?25h") < written.index("failed:")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--quiet"], ["--json"]])
def test_a_terminal_that_wants_no_picture_gets_none(words: list[str], folder: Path) -> None:
    write(folder / "t.yaml", limits={"train_iters": 4})
    status, written = seen_on_a_terminal(folder, "run", "t.yaml", *words)
    assert status == 0
    assert "\x1b" not in written
    assert written.count("\n") == (words == ["--json"])


def test_the_display_suits_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(watcher_for(quiet=True)) is Watcher
    for terminal, kind in ((True, LiveDisplay), (False, LineDisplay)):
        monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda yes=terminal: yes))
        assert type(watcher_for(quiet=False)) is kind


def drawn(display: LiveDisplay, run: Run) -> str:
    console = Console(width=100, file=open(os.devnull, "w"), record=True)  # noqa: SIM115
    console.print(display.picture(run))
    console.file.close()
    return console.export_text()


def test_the_picture_at_every_stage(tmp_path: Path) -> None:
    run = Run(checked(), out=tmp_path / "r", limits=Limits(train_iters=4))
    display = LiveDisplay()
    assert drawn(display, run).strip() == "making nodes …"
    run.making = "c#1"
    assert drawn(display, run).strip() == "making c#1 …"
    run.run()
    lines = drawn(display, run).splitlines()
    assert lines[0].startswith("80 env steps · ")
    assert lines[0].endswith(" · 4 train iters")
    assert lines[1].startswith("return 4.00 (best 4.00) · 0:0")
    assert [line.split()[:2] for line in lines[3:]] == [
        *[["c", "4"], ["c#1", "4"], ["l", "4"], ["e", "2"]]
    ]
    display.stopping(run)
    assert drawn(display, run).splitlines()[-1].startswith("stopping after this round")


def standing(firing_s: float, done: Count, **limits: Any) -> Any:
    return SimpleNamespace(firing_s=firing_s, counts=done, limits=Limits(**limits))


def test_time_left_is_that_of_the_nearest_limit() -> None:
    done = Count(env_steps=500, train_iters=30)
    assert time_left_s(standing(10.0, done)) is None
    assert time_left_s(standing(10.0, done, steps=1000)) == pytest.approx(10.0)
    assert time_left_s(standing(10.0, done, steps=1000, train_iters=40)) == pytest.approx(10 / 3)
    assert time_left_s(standing(10.0, done, time_s=12.5)) == pytest.approx(2.5)
    assert time_left_s(standing(10.0, done, steps=400)) == 0.0
    assert time_left_s(standing(10.0, Count(), steps=1000)) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (61.9, "1:01"), (3600, "1:00:00"), (90061, "25:01:01")]
)
def test_clocks_read_as_clocks_do(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


def test_the_live_display_keeps_a_line_for_each_new_best_only() -> None:
    display, kept = LiveDisplay(), []
    display._live = SimpleNamespace(  # type: ignore[assignment]
        console=SimpleNamespace(print=lambda line, **how: kept.append(line.split()[-1]))
    )

    evaluator = RecordSource("evaluator", "evaluator", 0, Count())
    run: Any = SimpleNamespace(wall_s=1.0, graph=Graph("g"))
    for mean in (3.0, 1.0, 3.0, 4.0):
        display.event(run, evaluator, MetricsRecord({"return_mean": mean}))
    assert kept == ["3.00", "4.00"]


def test_lines_tell_the_progress_while_nothing_else_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a run that fires for long without an evaluation, and of one whose nodes are being made."""
    display, told = LineDisplay(every_s=0.001), threading.Event()
    counts = Count(env_steps=1500, train_iters=20)
    run: Any = SimpleNamespace(wall_s=7.0, counts=counts, sites=SimpleNamespace(hosts=None))
    run.graph, run.seed, run.placement, run.folder = Graph("g"), 0, "serial", None
    run.executor = SimpleNamespace(began_s=1.0)
    print_line = display._print_progress

    def printing(run: Run) -> None:
        print_line(run)
        told.set()

    display._print_progress = printing  # type: ignore[method-assign]
    display.begin(run)
    while "train iters" not in (shown := capsys.readouterr().out):
        pass
    run.executor, run.making = None, "learner"
    while "making" not in (later := capsys.readouterr().out):
        pass
    display.end(run)
    assert told.is_set()  # the thread has ended
    assert "    7.0 s      1,500 env steps       20 train iters" in shown.splitlines()
    assert "    7.0 s  making learner …" in later.splitlines()
    assert not [t for t in threading.enumerate() if t.name == "flowrl progress"]


def test_what_is_being_made_is_told_by_site() -> None:
    sites = [
        SiteStatus("process:a", Activity("starting", instance="learner")),
        SiteStatus("process:b", Activity("idle")),
        *[SiteStatus(f"process:c{k}", Activity("starting")) for k in range(5)],
    ]
    run: Any = SimpleNamespace(executor=SimpleNamespace(site_statuses=lambda: sites), making="")
    assert making_text(run) == (
        "making learner; starting 5 sites, importing modules: process:c0, process:c1, process:c2, process:c3, … …"
    )
    run.executor.site_statuses = lambda: sites[1:2]
    assert making_text(run) == "waiting for the first firing …"


def test_a_node_that_has_not_fired_has_no_share_of_the_time() -> None:
    nodes = [
        NodeStats("envs", "main", 40, 0.8, is_service=True),
        NodeStats("c", "main", 4, 0.1, parts_s={"policy": 0.05}),
        NodeStats("l", "main", 0, 0.1),
    ]
    run: Any = SimpleNamespace(firing_s=1.0, node_stats=lambda: nodes)
    console = Console(width=100, file=open(os.devnull, "w"), record=True)  # noqa: SIM115
    console.print(node_table(run))
    console.file.close()
    rows = [line.split() for line in console.export_text().splitlines()]
    assert rows[1][:5] == ["envs", "40", "calls", "20.00", "80%"]
    assert rows[2][:4] == ["c", "4", "25.00", "10%"]
    assert rows[3][:3] == ["policy", "12.50", "5%"]
    assert rows[4] == ["l", "0"]
