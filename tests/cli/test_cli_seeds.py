"""`flowrl run --seeds`: runs with several seeds, and what they have in common."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import flowrl as package
from flowrl.core.errors import UsageError
from flowrl.runs.seed_results import SeedResults
from tests.cli.conftest import Called, one_line, process, wait_until, write
from tests.toys.toy_runs import toy_graph

Flowrl = Callable[..., Called]

pytestmark = pytest.mark.usefixtures("forked_processes")

BY_SEED = """
import os, signal
from flowrl import Batch, In, Node, Out, param

class ActsBySeed(Node):
    data = In("samples")

    class Config(Node.Config):
        failing: int = param(-1, "the seed with which it raises")
        dying: int = param(-1, "the seed with which it kills its process")

        after: int = param(0, "the tokens that it takes before that")

    def setup(self) -> None:
        self.tokens = 0

    def fire(self, data: Batch) -> None:
        print("something printed")
        if self.ctx.seed == self.config.failing:
            raise ZeroDivisionError("not this seed")
        self.tokens += 1
        if self.ctx.seed == self.config.dying and self.tokens > self.config.after:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def acting_by_seed(folder: Path, **config: int) -> None:
    """`s.yaml` with a node whose type is in a module beside it."""
    (folder / "by_seed.py").write_text(BY_SEED)
    write(folder / "s.yaml", {"a": {"type": "by_seed:ActsBySeed", **config}}, ["c -> a"])


def test_each_seed_has_a_folder_and_the_bits_of_a_run_of_its_own(
    flowrl: Flowrl, folder: Path
) -> None:
    words = ("run", "g.yaml", "--train-iters", "4")
    status, out, err = flowrl(*words, "--seeds", "1..2", "--out", "s", "--json")
    whole = one_line(out)
    assert (status, err) == (0, "")
    assert [run["seed"] for run in whole["seeds"]] == [1, 2]
    for run in whole["seeds"]:
        alone = one_line(flowrl(*words, "--seed", str(run["seed"]), "--json")[1])
        assert run["digest"] == alone["digest"]
        made = folder / "s" / f"seed{run['seed']}"
        assert json.loads((made / "summary.json").read_text()) == run
        resolved = (Path(alone["run_dir"]) / "graph.yaml").read_text()
        assert (made / "graph.yaml").read_text() == resolved
    assert len({run["digest"] for run in whole["seeds"]}) == 2
    assert json.loads(Path("s/seeds.json").read_text()) == whole
    assert whole["plot"] == "s/plot.png"
    assert Path("s/plot.png").read_bytes().startswith(b"\x89PNG")
    assert whole["statistics"]["eval_return"] == {
        "count": 2,
        "median": 4.0,
        "mean": 4.0,
        "deviation": 0.0,
        "interquartile_mean": 4.0,
        "interval": [4.0, 4.0],
    }


def test_the_table_has_a_row_for_each_seed_and_the_statistics(flowrl: Flowrl) -> None:
    words = ("run", "g.yaml", "--train-iters", "4", "--seeds", "3,7", "--at-once", "1")
    status, out, err = flowrl(*words, "--out", "s")
    begun, evaluated, *_ = lines = out.splitlines()
    assert (status, err) == (0, "")
    assert begun == "g: seeds 3, 7, serial, 1 at once, in s"
    assert " s  seed 3:       20 env steps        2 train iters  return 2.00" in evaluated
    table = [" ".join(line.split()) for line in lines[lines.index("") + 1 :]]
    assert table[0].startswith("g: 2 seeds (2 finished), 1 at once, ")
    assert table[2] == (
        "seed status last return best return env steps training time train iters digest"
    )
    assert [row.split()[:5] for row in table[3:5]] == [
        ["3", "finished", "4.00", "4.00", "40"],
        ["7", "finished", "4.00", "4.00", "40"],
    ]
    assert table[6] == "seeds median mean ± deviation interquartile mean 95 % interval"
    assert table[7] == "last return 2 4.00 4.00 ± 0.00 4.00 4.00 to 4.00"
    assert table[9].startswith("env steps 2 40 40 ± 0 40 ")
    assert table[-2:] == ["picture s/plot.png", "folder s"]


def test_a_seed_that_fails_or_dies_does_not_lose_the_others(flowrl: Flowrl, folder: Path) -> None:
    acting_by_seed(folder, failing=0, dying=2)
    status, out, _ = flowrl("run", "s.yaml", "--seeds", "4", "--train-iters", "2", "--out", "s")
    whole = json.loads(Path("s/seeds.json").read_text())
    assert (status, whole["status"]) == (1, "failed")
    statuses = [run["status"] for run in whole["seeds"]]
    assert statuses == ["failed", "finished", "failed", "finished"]
    assert whole["statistics"]["env_steps"]["count"] == 2
    why = "node 'a', firing 0 (round 0): ZeroDivisionError: not this seed"
    assert f"seed 0 failed: {why}\n" in out
    assert "seed 2 failed: its process was killed by SIGKILL\n" in out
    assert why in Path("s/seed0/error.txt").read_text()
    assert "ZeroDivisionError: not this seed" in Path("s/seed0/output.txt").read_text()
    assert "something printed\n" in Path("s/seed1/output.txt").read_text()
    assert "something printed" not in out


def test_a_seed_that_dies_has_the_numbers_of_its_last_report(flowrl: Flowrl, folder: Path) -> None:
    acting_by_seed(folder, dying=0, after=5)
    flowrl("run", "s.yaml", "--seeds", "1", "--train-iters", "20", "--out", "s")
    [run] = json.loads(Path("s/seeds.json").read_text())["seeds"]
    assert (run["status"], run["env_steps"], run["train_iters"]) == ("failed", 40, 4)
    assert (run["episodes"], run["eval_return"]) == (4, 4.0)
    assert run["best_return"] in (
        2.0,
        4.0,
    )  # an evaluation is reported before its checkpoint is saved
    assert 0 < run["training_s"] < run["wall_s"] == round(run["setup_s"] + run["training_s"], 3)
    assert run["env_steps_per_s"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "2", "--seed", "1"], "flowrl: --seed and --seeds exclude each other"),
        (["--at-once", "2"], "flowrl: --at-once is for several seeds; add --seeds"),
        (["--seeds", "2", "--listen", "tcp://127.0.0.1:0"], "flowrl: --listen and --seeds exclude"),
        (["--seeds", "2", "--table", "1s"], "flowrl: --table is for one run"),
        (["--seeds", "2", "--out", "."], "flowrl: --out .: . already contains a run"),
        (["--seeds", "2", "--out", "s"], "flowrl: --out s: s/seed1 already contains a run"),
        (["--seeds", "2", "--placement", "cloud"], "flowrl: --placement cloud: "),
        (["--seeds", "0"], "--seeds: '0' is not a whole number of 1 or more"),
        (["--seeds", "4..2"], "--seeds: '4..2' names no seed; expected 5, 0..4 or 0,3,7"),
        (["--seeds", "1,1"], "--seeds: '1,1' names a seed twice"),
        (["--seeds", "0..x"], "--seeds: 'x' is not a whole number from 0 to 2^63 - 1"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(
    words: list[str], message: str, flowrl: Flowrl, folder: Path
) -> None:
    (folder / "graph.yaml").touch()
    (folder / "s" / "seed1").mkdir(parents=True)
    (folder / "s" / "seed1" / "graph.yaml").touch()
    status, out, err = flowrl("run", "g.yaml", *words)
    assert (status, out) == (2, "")
    assert message in err
    assert not list(folder.glob("**/output.txt"))


def test_seeds_are_run_from_python(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = package.load("g.yaml").run_seeds(2, train_iters=4, quiet=True, out="s")
    assert isinstance(results, SeedResults)
    assert (results.status, [run.seed for run in results.runs]) == ("finished", [0, 1])
    assert results.statistics()["best_return"].median == 4.0
    assert results.runs[1].metrics()["e"]["return_mean"].tolist() == [2.0, 4.0]
    assert str(results).endswith("\npicture s/plot.png\nfolder s")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("seeds", [0, [], "5", 2.0, True, [1, 1], [-1], [0.5]])
def test_python_refuses_what_are_no_seeds(seeds: object, folder: Path) -> None:
    with pytest.raises(UsageError, match=r"^seeds are "):
        package.load("g.yaml").run_seeds(seeds)  # type: ignore[arg-type]


def test_a_graph_without_evaluations_has_no_picture(flowrl: Flowrl, folder: Path) -> None:
    nodes = {"c": "Source", "l": "Learner"}
    graph = toy_graph(nodes, ["c -> l", "l.weights -> c.weights"])
    (folder / "n.yaml").write_text(json.dumps(graph))
    _, out, _ = flowrl("run", "n.yaml", "--seeds", "1", "--train-iters", "2", "--json")
    whole = one_line(out)
    assert (whole["plot"], list(whole["statistics"])) == ("", ["env_steps", "training_s"])
    assert whole["statistics"]["env_steps"]["deviation"] is None


HANGING = """
import os
import time
from pathlib import Path

from flowrl import Batch, In, Node

class Hangs(Node):
    data = In("samples")

    def fire(self, data: Batch) -> None:
        Path(f"{self.ctx.seed} hangs").touch()
        while True:  # Python can miss a signal that comes just before a wait without an end
            time.sleep(0.01)
"""


@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, 2])
def test_ctrl_c_ends_all_seeds_and_keeps_their_results(signals: int, folder: Path) -> None:
    (folder / "hanging.py").write_text(HANGING)
    more = ({"a": {"type": "hanging:Hangs"}}, ["c -> a"]) if signals == 2 else ()
    write(folder / "long.yaml", *more)
    words = ("run", "long.yaml", "--seeds", "3", "--at-once", "2", "--out", "s")
    with process(*words, folder=folder) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        has_begun = (
            folder / f"{seed} hangs" if signals == 2 else folder / f"s/seed{seed}/metrics.jsonl"
            for seed in (0, 1)
        )
        for path in has_begun:
            while not path.exists():
                time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        assert running.stderr.readline().startswith("stopping all seeds")
        if signals == 2:
            running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode == 130
    whole = json.loads((folder / "s" / "seeds.json").read_text())
    assert [run["status"] for run in whole["seeds"]] == ["interrupted"] * 3
    whys = [run["why"] for run in whole["seeds"]]
    first = "stopped at once" if signals == 2 else "SIGINT"
    assert whys == [first, first, "it was stopped before this seed began"]
    assert [bool(run["digest"]) for run in whole["seeds"]] == [signals == 1, signals == 1, False]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_two_signals_end_a_seed_that_did_not_run_between_them(folder: Path) -> None:
    (folder / "hanging.py").write_text(HANGING.replace(".touch()", ".write_text(str(os.getpid()))"))
    write(folder / "long.yaml", {"a": {"type": "hanging:Hangs"}}, ["c -> a"])
    with process("run", "long.yaml", "--seeds", "1", "--out", "s", folder=folder) as running:
        assert running.stderr is not None
        wait_until(lambda: (folder / "0 hangs").is_file() and (folder / "0 hangs").stat().st_size)
        seed = int((folder / "0 hangs").read_text())
        os.kill(seed, signal.SIGSTOP)
        running.send_signal(signal.SIGINT)
        assert running.stderr.readline().startswith("stopping all seeds")
        running.send_signal(signal.SIGINT)
        wait_until(lambda: pending_signals(seed) >= {signal.SIGINT, signal.SIGTERM})
        os.kill(seed, signal.SIGCONT)
        running.communicate(timeout=60)
    assert running.returncode == 130
    whole = json.loads((folder / "s" / "seeds.json").read_text())
    assert [run["why"] for run in whole["seeds"]] == ["stopped at once"]


def pending_signals(pid: int) -> set[int]:
    """The signals that a process has not received yet."""
    status = Path(f"/proc/{pid}/status").read_text()
    bits = int(status.partition("ShdPnd:")[2].split()[0], 16)
    return {number for number in range(1, 65) if bits >> (number - 1) & 1}
