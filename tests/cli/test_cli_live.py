"""The verbs ps, top, why, logs and stop."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowrl.runs.queries import query_status
from flowrl.runs.registry import RunEntry, live_entries
from flowrl.runs.top import RunRow, ps_text
from tests.cli.conftest import Called, one_line, process, write
from tests.runs.threaded_runs import pair, running_in_a_thread, wait_for, wait_for_status

Flowrl = Callable[..., Called]


@contextmanager
def as_process(folder: Path, *words: str) -> Iterator[tuple[Any, RunEntry]]:
    """A run in a process of its own, and its entry."""
    (folder / "g.yaml").write_text(json.dumps(pair(a={"each_s": 0.005})))
    with process("run", "g.yaml", "--out", "r", *words, folder=folder) as running:
        yield (
            running,
            wait_for(lambda: next((e for e in live_entries() if e.pid == running.pid), None)),
        )


def test_ps_lists_active_runs(flowrl: Flowrl, folder: Path) -> None:
    assert flowrl("ps") == (0, "no run is active\n", "")
    with running_in_a_thread(pair(a={"each_s": 0.01}), folder / "r", "threads") as run:
        wait_for_status(run, lambda found: found.env_steps > 5)
        (row,) = json.loads(flowrl("ps", "--json")[1])
        status, out, _ = flowrl("ps")
    assert status == 0
    head, line = out.splitlines()
    assert head.split()[:4] == ["graph", "pid", "status", "elapsed"]
    assert line.split()[1:3] == [str(os.getpid()), "running"]
    assert line.endswith(str(folder / "r"))
    assert (row["pid"], row["placement"], row["status"]) == (os.getpid(), "threads", "running")
    assert row["run_dir"] == str(folder / "r")
    assert 20 < row["env_steps_per_s"] < 120


def test_of_a_run_that_does_not_answer_ps_knows_no_numbers() -> None:
    rows = [
        RunRow(1, "a", "serial", "running", 2.0, 1200, 3, 600.0, "runs/a"),
        RunRow(2, "b", "serial", "silent", 2.0, None, None, None, "runs/b"),
    ]
    _, known, unknown = (line.split() for line in ps_text(rows).splitlines())
    assert known == ["a", "1", "running", "0:02", "1,200", "600/s", "serial", "runs/a"]
    assert unknown == ["b", "2", "silent", "0:02", "-", "-", "serial", "runs/b"]


def test_ps_names_the_command_that_continues_a_killed_run(flowrl: Flowrl, folder: Path) -> None:
    with as_process(folder) as (running, entry):
        wait_for_status(entry, lambda found: found.env_steps > 5)
        assert flowrl("snapshot", "r")[0] == 0
        running.kill()
        running.wait()
        command = f"  flowrl resume {folder / 'r'}\n"
        assert flowrl("ps")[1] == f"no run is active\n\nkilled, and can be continued:\n{command}"
        [row] = json.loads(flowrl("ps", "--json")[1])
        assert (row["status"], row["run_dir"]) == ("killed", str(folder / "r"))
        assert row["env_steps"] is row["train_iters"] is row["env_steps_per_s"] is None
    (folder / "r/summary.json").write_text("{}")  # it was continued, and has ended
    assert flowrl("ps")[1] == "no run is active\n"


@pytest.mark.slow
def test_top_once_shows_nodes_and_edges(flowrl: Flowrl, folder: Path) -> None:
    with running_in_a_thread(pair(b={"each_s": 0.01}), folder / "r", "threads") as run:
        wait_for_status(run, lambda found: found.env_steps > 5)
        status, out, _ = flowrl("top", "r", "--once")
        answer = one_line(flowrl("top", "last", "--json")[1])
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert status == 0
    assert float(lines["b"][1].strip("%")) > 70
    assert float(lines["a"][3].strip("%")) > 70
    assert answer["nodes"][1]["firing"] > 0.7
    assert answer["edges"][0]["edge"] == "a.data -> b.data"
    assert answer["status"]["sites"][1]["nodes"][0]["instance"] == "b"


@pytest.mark.slow
def test_why_names_the_node_that_all_wait_for(flowrl: Flowrl, folder: Path) -> None:
    with running_in_a_thread(pair(b={"hangs_in": 3}), folder / "r") as run:
        wait_for_status(run, lambda found: found.sites[0].activity.for_s > 1)
        status, out, _ = flowrl("why", "r")
        answer = one_line(flowrl("why", "r", "--json")[1])
    assert status == 0
    assert out.splitlines()[-1].startswith("b has been firing for 1.")
    assert answer["verdict"].startswith("b has been firing for ")
    assert answer["sites"][0]["activity"]["instance"] == "b"
    assert answer["cycle"] == []


@pytest.mark.parametrize("verb", ["top", "why", "stop"])
def test_the_name_of_no_active_run_is_refused_with_those_of_active_runs(
    verb: str, flowrl: Flowrl, folder: Path
) -> None:
    status, out, err = flowrl(verb, "nowhere")
    assert (status, out) == (2, "")
    assert err.startswith("flowrl: nowhere: there is no such active run; no run is active (")


def test_stop_waits_for_the_next_cut_and_prints_how_the_run_ended(
    flowrl: Flowrl, folder: Path
) -> None:
    with as_process(folder) as (running, entry):
        wait_for_status(entry, lambda found: found.env_steps > 2)
        status, out, err = flowrl("stop", "r")
        printed, _ = running.communicate(timeout=90)
    assert (status, err) == (0, "")
    stopping = f"stopping {folder / 'r'} (pid {running.pid}) at its next cut\n"
    assert out.startswith(f"{stopping}interrupted: flowrl stop\n")
    assert running.returncode == 130
    assert "interrupted: flowrl stop" in printed


@pytest.mark.slow
def test_stop_now_does_not_wait_for_a_cut(flowrl: Flowrl, folder: Path) -> None:
    with as_process(folder, "--set", "b.hangs_in=3") as (running, entry):
        wait_for_status(
            entry, lambda found: found.env_steps > 3 or found.sites[0].activity.for_s > 0.5
        )
        status, out, _ = flowrl("stop", str(running.pid), "--now")
        running.communicate(timeout=90)
    assert status == 0
    stopping = f"stopping {folder / 'r'} (pid {running.pid}) at once\n"
    assert out.startswith(f"{stopping}interrupted: stopped at once\n")
    assert running.returncode == 130


@pytest.mark.slow
def test_stop_of_a_killed_run_finds_no_active_run(flowrl: Flowrl, folder: Path) -> None:
    with as_process(folder, "--set", "b.hangs_in=3") as (running, entry):
        wait_for_status(entry, lambda found: found.sites[0].activity.for_s > 0.3)
        os.kill(running.pid, signal.SIGKILL)
        running.communicate(timeout=90)
        status, _, err = flowrl("stop", "r")
    assert (status, entry in live_entries()) == (2, False)
    assert "there is no such active run" in err


def test_logs_print_the_log_lines_of_nodes(flowrl: Flowrl, folder: Path) -> None:
    flowrl("run", "g.yaml", "--out", "runs/one", "--train-iters", "3", "--quiet")
    status, out, _ = flowrl("logs", "one", "c")
    assert status == 0
    assert out == Path("runs/one/logs/c.log").read_text()
    every = flowrl("logs", "last")[1].splitlines()
    assert {line.partition(" |")[0].strip() for line in every} == {"c", "e", "l"}
    status, _, err = flowrl("logs", "one", "cc")
    assert (status, err) == (2, "flowrl: cc: one has no log of this node; did you mean 'c'?\n")
    status, _, err = flowrl("logs", "two")
    assert (status, err) == (2, "flowrl: two: there is no such run here; runs: one\n")


def test_logs_without_a_line_are_told(flowrl: Flowrl, folder: Path) -> None:
    flowrl("run", "g.yaml", "--out", "r", "--train-iters", "1", "--quiet")
    for log in (folder / "r" / "logs").iterdir():
        log.write_text("")
    assert flowrl("logs", "r") == (0, "", "r: its nodes have logged nothing\n")


@pytest.mark.slow
def test_logs_are_followed_until_the_run_has_ended(folder: Path) -> None:
    write(folder / "g.yaml", {"l": {"type": "Learner"}})
    with process("run", "g.yaml", "--out", "r", "--quiet", folder=folder) as running:
        entry = wait_for(lambda: next((e for e in live_entries() if e.pid == running.pid), None))
        with process("logs", "r", "c", "-f", folder=folder) as reader:
            lines = [reader.stdout.readline() for _ in range(20)]
            running.send_signal(signal.SIGINT)
            running.communicate(timeout=90)
            rest = reader.stdout.read()
            reader.wait(30)
    assert reader.returncode == 0
    assert "".join(lines) + rest == (folder / "r" / "logs" / "c.log").read_text()
    with pytest.raises(Exception, match="does not answer"):
        query_status(entry)
