"""The output and the exit status of `flowrl run`."""

import json
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowrl.core.errors import RunError
from flowrl.nodes.datasets import npz
from flowrl.runs.folder import RunFolder
from flowrl.runs.run import Run
from tests.cli.conftest import Called, one_line, process, write
from tests.runs.test_run import SUMMARY

Flowrl = Callable[..., Called]


def test_a_run_prints_how_it_ended(flowrl: Flowrl) -> None:
    status, out, err = flowrl("run", "g.yaml", "--train-iters", "4", "--out", "r")
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert lines[0] == "g: seed 0, serial, in r"
    assert [" ".join(line.split()[2:]) for line in lines[1:3]] == [
        f"{10 * n} env steps {n} train iters return {n}.00" for n in (2, 4)
    ]
    assert lines[3] == "finished: 4 train iterations were asked for"
    assert lines[4] == "40 env steps, 4 train iterations, 4 episodes"
    assert re.match(r"\d+\.\d s to start, \d+\.\d s of training \([\d,]+ env steps/s\)", lines[5])
    assert lines[6] == "evaluation return 4.00 (best 4.00)"
    assert " is the bottleneck: it fired for " in lines[7]
    assert lines[8].startswith("digest ")
    assert lines[9:] == ["run folder r"]


def test_json_prints_exactly_one_line(flowrl: Flowrl) -> None:
    status, out, err = flowrl("run", "g.yaml", "--train-iters", "4", "--out", "r", "--json")
    summary = one_line(out)
    assert (status, err, list(summary)) == (0, "", SUMMARY)
    assert summary == json.loads(Path("r/summary.json").read_text())


def test_quiet_prints_nothing(flowrl: Flowrl) -> None:
    assert flowrl("run", "g.yaml", "--train-iters", "4", "--quiet") == (0, "", "")


@pytest.mark.slow
def test_save_rows_writes_the_newest_rows_and_changes_nothing_else(flowrl: Flowrl) -> None:
    words = ("run", "cartpole_ppo", "--train-iters", "3", "--json", "--out")
    plain = one_line(flowrl(*words, "a")[1])
    saving = one_line(flowrl(*words, "b", "--save-rows", "300", "rows/new.npz")[1])
    assert saving["digest"] == plain["digest"]
    rows = npz.read(Path("rows/new.npz"))
    assert len(rows) == 300
    assert {"obs", "action", "reward", "last"} <= set(rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("cartpole_bc", "--save-rows", "9", "f"),
            "collector, and it has none; extend the graph by",
        ),
        (
            ("cartpole_dqn", "--save-rows", "f", "9"),
            "'f' is not a whole number of 1 or more; write it",
        ),
        (
            ("cartpole_dqn", "--save-rows", "9", "f", "--seeds", "2"),
            "for one run, as all seeds would",
        ),
    ],
)
def test_rows_that_cannot_be_saved_are_refused(
    words: tuple[str, ...], message: str, flowrl: Flowrl
) -> None:
    status, out, err = flowrl("run", *words)
    assert (status, out) == (2, "")
    assert message in err


def test_no_recover_reaches_the_run(flowrl: Flowrl, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    real = Run.__init__

    def noting(run: Run, *args: Any, **options: Any) -> None:
        given.append(options["recovers"])
        real(run, *args, **options)

    monkeypatch.setattr(Run, "__init__", noting)
    for words in ((), ("--no-recover",)):
        assert flowrl("run", "g.yaml", "--train-iters", "1", "--quiet", *words)[0] == 0
    assert given == [True, False]


def test_a_failed_run_prints_the_first_cause_and_exits_with_1(
    flowrl: Flowrl, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "f.yaml", {"f": {"type": "FailingNode", "firing": 1}}, ["c -> f"])
    status, out, err = flowrl("run", "f.yaml", "--out", "r")
    assert status == 1
    assert err.startswith("Traceback (most recent call last):\n")
    assert "ZeroDivisionError: no more\n" in err
    why = "node 'f', firing 1 (round 1): ZeroDivisionError: no more"
    assert err.splitlines()[-1] == f"flowrl: {why}"
    assert err.count(why) == out.count(why) + 1 == 1  # once is enough
    assert "failed: its folder has an error.txt\n" in out
    assert why in Path("r/error.txt").read_text()

    def write_text(folder: RunFolder, name: str, text: str) -> None:
        if name == "error.txt":
            raise RunError("the folder is gone")
        write_to(folder, name, text)

    write_to = RunFolder.write_text
    monkeypatch.setattr(RunFolder, "write_text", write_text)
    _, out, _ = flowrl("run", "f.yaml", "--out", "s")
    assert out.count("\nfailed\n") == 1
    assert "error.txt" not in out
    assert json.loads(Path("r/summary.json").read_text())["status"] == "failed"


def test_json_is_one_line_also_when_the_run_fails(flowrl: Flowrl, folder: Path) -> None:
    write(folder / "f.yaml", {"f": {"type": "FailingNode", "making": True}}, ["c -> f"])
    status, out, _ = flowrl("run", "f.yaml", "--out", "r", "--json")
    summary = one_line(out)
    assert (status, summary["status"], summary["run_dir"]) == (1, "failed", "r")
    assert summary["why"] == "node 'f', being made: RuntimeError: cannot be made"


def test_json_is_one_line_also_when_there_can_be_no_folder(flowrl: Flowrl, folder: Path) -> None:
    (folder / "file").write_text("")
    status, out, err = flowrl("run", "g.yaml", "--out", "file/r", "--json")
    summary = one_line(out)
    assert (status, summary["status"], summary["run_dir"]) == (1, "failed", "")
    assert err == (
        "flowrl: file/r: cannot be written: Not a directory; fix this, or choose another --out\n"
    )


def test_limits_of_the_graph_are_those_of_the_command_line_where_it_gives_them(
    flowrl: Flowrl, folder: Path
) -> None:
    write(folder / "l.yaml", limits={"train_iters": 3, "steps": 1000})
    assert one_line(flowrl("run", "l.yaml", "--json")[1])["train_iters"] == 3
    given = ("--train-iters", "5", "--seed", "4", "--json")
    summary = one_line(flowrl("run", "l.yaml", *given)[1])
    assert (summary["train_iters"], summary["seed"]) == (5, 4)
    assert one_line(flowrl("run", "l.yaml", "--steps", "15", "--json")[1])["env_steps"] == 20


def test_time_ends_a_run_and_says_how_to_end_there_again(flowrl: Flowrl) -> None:
    _, out, _ = flowrl("run", "g.yaml", "--time", "0.05s", "--out", "r")
    [again] = [line for line in out.splitlines() if line.startswith("to repeat: ")]
    words = again.removeprefix("to repeat: flowrl ").split()
    digest = json.loads(Path("r/summary.json").read_text())["digest"]
    assert one_line(flowrl(*words, "--out", "s", "--json")[1])["digest"] == digest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "nothing"], "nothing: there is no such file or bundled graph; known: "),
        (
            ["run", "g.yaml", "--time", "soon"],
            "--time soon: expected a time such as 30s, 10m or 2h",
        ),
        (["run", "g.yaml", "--steps", "0"], "'0' is not a whole number of 1 or more"),
        (["run", "g.yaml", "--seed", "-1"], "'-1' is not a whole number from 0 to 2^63 - 1"),
        (["run", "g.yaml", "--placement", "cloud"], "--placement cloud: "),
        (["run", "g.yaml", "--out", "."], "--out .: it already contains a run"),
        (
            ["run", "g.yaml", "--out", ""],
            "--out is empty; name a folder, '.' for this one, or leave",
        ),
        (["run", "g.yaml", "--set", "l"], "--set l: expected KEY=VALUE"),
        (["run", "g.yaml", "--set", "e.gaol=3"], "did you mean 'goal'?"),
        (["run", "g.yaml", "--set", "f.goal=3"], "there is no node or section 'f'"),
        (["run"], "the following arguments are required: GRAPH"),
        (["rnu", "g.yaml"], "there is no verb 'rnu'; did you mean 'run'?"),
    ],
)
def test_wrong_words_exit_with_2_and_run_nothing(
    words: list[str], message: str, flowrl: Flowrl, folder: Path
) -> None:
    (folder / "graph.yaml").write_text("")
    status, out, err = flowrl(*words)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert not (folder / "runs").exists()


def test_all_problems_of_an_unsound_graph_are_printed_and_the_status_is_2(
    flowrl: Flowrl, folder: Path
) -> None:
    write(folder / "u.yaml", {"x": "Drian", "y": {"type": "Evaluator", "gaol": 1}})
    status, out, err = flowrl("run", "u.yaml")
    assert (status, out) == (2, "")
    assert "Drian" in err
    assert "gaol" in err
    assert not (folder / "runs").exists()


def test_a_bug_of_the_engine_is_printed_with_its_traceback(
    flowrl: Flowrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr("flowrl.runtime.serial_executor.SerialExecutor.run", broken)
    status, out, err = flowrl("run", "g.yaml", "--json")
    assert (status, one_line(out)["status"]) == (1, "failed")
    assert "Traceback" in err
    assert err.splitlines()[-1] == "flowrl: a bug"


def test_a_process_exits_with_the_same_status(folder: Path) -> None:
    write(folder / "f.yaml", {"f": {"type": "FailingNode", "firing": 1}}, ["c -> f"])
    with process("run", "f.yaml", "--json", folder=folder) as running:
        out, err = running.communicate(timeout=90)
    assert (running.returncode, one_line(out)["status"]) == (1, "failed")
    assert err.endswith("ZeroDivisionError: no more\n")


def test_a_node_that_exits_does_not_make_the_run_a_success(folder: Path) -> None:
    write(
        folder / "f.yaml", {"f": {"type": "FailingNode", "firing": 1, "leaving": True}}, ["c -> f"]
    )
    with process("run", "f.yaml", "--json", folder=folder) as running:
        out, _ = running.communicate(timeout=90)
    assert (running.returncode, one_line(out)["status"]) == (1, "failed")


def test_of_several_evaluators_each_line_names_its_own(flowrl: Flowrl, folder: Path) -> None:
    write(folder / "two.yaml", {"f": "Evaluator"}, [{"l.weights -> f": {"every": 3}}])
    lines = flowrl("run", "two.yaml", "--train-iters", "3")[1].splitlines()
    assert [line.rpartition("  ")[2] for line in lines[1:3]] == ["by e", "by f"]
    assert flowrl("run", "g.yaml", "--train-iters", "1")[1].splitlines()[1:3][0] == (
        "finished: 1 train iteration was asked for"
    )


@pytest.mark.parametrize("where", ["a node", "an import"])
def test_a_low_limit_of_the_address_space_is_named_without_a_traceback(
    where: str, flowrl: Flowrl, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ImportError("x.so: failed to map segment from shared object")

    place = "tests.toys.toy_nodes.Source.setup" if where == "a node" else "flowrl.cli.run.run"
    monkeypatch.setattr(place, fail)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (200_000_000, -1))
    status, _, err = flowrl("run", "g.yaml", "--quiet")
    assert status == 1
    [line] = err.splitlines()
    assert line.startswith("flowrl: ")
    assert line.endswith("is limited to 200 MB, which is too little: raise `ulimit -v`")


def test_an_error_of_the_system_names_the_file(
    flowrl: Flowrl, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        Path("no/such/file").read_text()

    monkeypatch.setattr("flowrl.cli.run.run", fail)
    status, _, err = flowrl("run", "g.yaml")
    assert (status, err) == (1, "flowrl: no/such/file: No such file or directory\n")


def test_a_table_shows_the_newest_metrics_of_all_nodes(flowrl: Flowrl) -> None:
    words = ("run", "g.yaml", "--train-iters", "4", "--table", "1h")
    status, out, err = flowrl(*words, "--quiet")
    head, *rows = [line for line in out.splitlines() if line]
    assert (status, err) == (0, "")
    assert head.endswith(" s, 40 env steps, 4 train iterations")
    assert [row.split()[0] for row in rows] == ["e"]
    assert " return_mean 4" in rows[0]
    status, out, err = flowrl(*words, "--json")
    assert one_line(out)["train_iters"] == 4
    assert " return_mean 4" in err
    assert "--table soon: expected a time" in flowrl("run", "g.yaml", "--table", "soon")[2]
