"""The verbs check and eval, and what all verbs have in common."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flowrl.graph.bundled import bundled_checkpoint
from flowrl.version import VERSION
from tests.cli.conftest import ENV, Called, one_line, process, write

Flowrl = Callable[..., Called]

CHECK_KEYS = ["ok", "deterministic", "reasons", "nodes", "edges", "schedule", "problems"]


def test_check_prints_schedule_edges_and_determinism(flowrl: Flowrl) -> None:
    status, out, err = flowrl("check", "g.yaml")
    assert (status, err) == (0, "")
    for words in ("g: sound. 3 nodes, 3 edges.", "every round: c, l", "every 2 firings of l: e"):
        assert words in out
    assert "Deterministic: the same seed gives the same bits" in out


def test_check_json_is_one_line(flowrl: Flowrl) -> None:
    status, out, _ = flowrl("check", "g.yaml", "--json")
    report = one_line(out)
    assert (status, list(report)[:7]) == (0, CHECK_KEYS)
    assert (report["ok"], report["deterministic"], report["problems"]) == (True, True, [])
    assert report["schedule"]["order"] == ["c", "l"]


def test_check_json_lists_the_problems_of_an_unsound_graph(flowrl: Flowrl, folder: Path) -> None:
    write(folder / "u.yaml", {"x": "Drian"})
    status, out, _ = flowrl("check", "u.yaml", "--json")
    report = one_line(out)
    assert (status, report["ok"]) == (2, False)
    assert [set(problem) for problem in report["problems"]] == [{"where", "what", "hint"}]
    assert report["problems"][0]["where"].startswith("u.yaml:")


@pytest.mark.parametrize("text", ["nodes: [", ""])
def test_check_json_is_one_line_also_for_a_file_that_is_no_graph(
    text: str, flowrl: Flowrl, folder: Path
) -> None:
    (folder / "n.yaml").write_text(text)
    status, out, _ = flowrl("check", "n.yaml", "--json")
    report = one_line(out)
    assert (status, report["ok"], bool(report["problems"])) == (2, False, True)
    assert set(CHECK_KEYS) <= set(report)


def test_check_json_is_one_line_also_where_there_is_no_graph(flowrl: Flowrl) -> None:
    status, out, err = flowrl("check", "none.yaml", "--json")
    assert (status, err) == (2, "")
    [problem] = one_line(out)["problems"]
    assert problem["what"].startswith("none.yaml: there is no such file or bundled graph; known: ")


def test_a_pipe_is_no_graph(flowrl: Flowrl, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    status, _, err = flowrl("check", "pipe")
    assert (status, err) == (2, "flowrl: pipe: is not a regular file; write the graph into one\n")


@pytest.mark.slow
def test_check_does_not_load_torch(folder: Path) -> None:
    code = """
import sys
from flowrl.cli import main
status = main(["check", sys.argv[1]])
print(status, sorted({"torch", "gymnasium"} & set(sys.modules)))
"""
    for graph in ("cartpole_dqn", "cartpole_ppo"):
        done = subprocess.run(
            [sys.executable, "-c", code, graph],
            cwd=folder,
            env=ENV,
            text=True,
            capture_output=True,
            check=True,
        )
        status, _, loaded = done.stdout.splitlines()[-1].partition(" ")
        assert (status, "torch" in loaded) == ("0", False)


def test_eval_evaluates_the_best_checkpoint(flowrl: Flowrl, folder: Path) -> None:
    out = str(folder / "r")
    flowrl("run", "cartpole_ppo", "--train-iters", "6", "--out", out, "--quiet")
    status, printed, _ = flowrl("eval", out, "--episodes", "3", "--seed", "5", "--json")
    evaluation = one_line(printed)
    assert (status, evaluation["episodes"], evaluation["seed"]) == (0, 3, 5)
    assert evaluation["checkpoint"] == f"{out}/checkpoints/best.safetensors"
    assert evaluation["metrics"]["return_min"] <= evaluation["metrics"]["return_mean"]
    assert (
        one_line(flowrl("eval", out, "--episodes", "3", "--seed", "5", "--json")[1]) == evaluation
    )
    other = one_line(flowrl("eval", out, "--episodes", "3", "--seed", "6", "--json")[1])
    assert other["metrics"] != evaluation["metrics"]
    status, printed, _ = flowrl("eval", out)
    assert status == 0
    assert "20 episodes, seed 0\n" in printed
    assert "return_mean" in printed
    assert evaluation["warnings"] == []


def test_eval_of_a_run_of_another_version_says_so(flowrl: Flowrl, folder: Path) -> None:
    flowrl("run", "g.yaml", "--train-iters", "9", "--out", "r", "--quiet")
    path = folder / "r" / "environment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "flowrl": "0.0.1"}))
    status, printed, _ = flowrl("eval", "r")
    last = f"warning: the run was made by flowrl 0.0.1, and this is {VERSION}"
    assert (status, printed.splitlines()[-1]) == (0, last)


def test_eval_of_what_is_no_run_is_refused(flowrl: Flowrl, folder: Path) -> None:
    status, _, err = flowrl("eval", str(folder))
    assert (status, err) == (
        2,
        f"flowrl: {folder}: is not a run's folder, as it has no graph.yaml\n",
    )


def test_eval_takes_a_checkpoint_by_its_name_or_file(flowrl: Flowrl, folder: Path) -> None:
    flowrl("run", "g.yaml", "--train-iters", "9", "--out", "r", "--quiet")
    best, last = (f"r/checkpoints/{name}.safetensors" for name in ("best", "last"))
    for named, file in (("best", best), ("last", last), (best, best)):
        status, printed, _ = flowrl("eval", "r", "--checkpoint", named, "--json")
        assert (status, one_line(printed)["checkpoint"]) == (0, file)
    status, _, err = flowrl("eval", "r", "--checkpoint", "lst")
    assert (status, err) == (2, "flowrl: r: there is no checkpoint 'lst'; did you mean 'last'?\n")
    status, _, err = flowrl("eval", "r", "--checkpoint", "none.safetensors")
    assert (status, err[:44]) == (2, "flowrl: none.safetensors: there is no such f")


def test_eval_of_a_run_without_an_evaluation_takes_the_last_checkpoint(
    flowrl: Flowrl, folder: Path
) -> None:
    flowrl("run", "g.yaml", "--train-iters", "1", "--out", "r")
    status, printed, _ = flowrl("eval", "r", "--json")
    assert (status, one_line(printed)["checkpoint"]) == (0, "r/checkpoints/last.safetensors")
    (folder / "r" / "checkpoints" / "last.safetensors").unlink()
    status, _, err = flowrl("eval", "r")
    assert (status, err) == (1, "flowrl: r: the run has saved no checkpoint yet\n")


def test_eval_of_a_bundled_graph_plays_with_the_checkpoint_that_comes_with_flowrl(
    flowrl: Flowrl, folder: Path
) -> None:
    status, printed, _ = flowrl("eval", "cartpole_ppo", "--episodes", "5", "--json")
    evaluation = one_line(printed)
    assert (status, evaluation["run_dir"], evaluation["warnings"]) == (0, "cartpole_ppo", [])
    assert evaluation["checkpoint"] == str(bundled_checkpoint("cartpole_ppo"))
    assert evaluation["metrics"]["return_mean"] >= 475
    status, _, err = flowrl("eval", "cartpole_ppo", "--checkpoint", "last")
    assert (status, err[:51]) == (2, "flowrl: cartpole_ppo: there is no checkpoint 'last'")
    file = evaluation["checkpoint"]
    status, printed, _ = flowrl("eval", "cartpole_ppo", "--checkpoint", file, "--json")
    assert (status, one_line(printed)["checkpoint"]) == (0, file)


@pytest.mark.slow
def test_a_folder_with_the_name_of_a_bundled_graph_is_evaluated_itself(
    flowrl: Flowrl, folder: Path
) -> None:
    flowrl("run", "g.yaml", "--train-iters", "9", "--out", "cartpole_ppo", "--quiet")
    status, printed, _ = flowrl("eval", "cartpole_ppo", "--json")
    file = "cartpole_ppo/checkpoints/best.safetensors"
    assert (status, one_line(printed)["checkpoint"]) == (0, file)


def test_eval_of_a_bundled_graph_without_a_checkpoint_says_how_to_get_one(
    flowrl: Flowrl, folder: Path
) -> None:
    status, _, err = flowrl("eval", "crazyclimber_ppo")
    what = "flowrl has no checkpoint of this bundled graph (train it: flowrl run crazyclimber_ppo)"
    expected = (
        f"flowrl: crazyclimber_ppo: {what}, and there is no such run here; runs: there is none\n"
    )
    assert (status, err) == (2, expected)
    status, _, err = flowrl("eval", "cartpole_dpo")
    assert err.endswith("runs: there is none; or did you mean the graph 'cartpole_ppo'?\n")


def test_export_writes_an_onnx_file(flowrl: Flowrl, folder: Path) -> None:
    status, printed, _ = flowrl("export", "cartpole_ppo", "-o", "ppo.onnx")
    assert (status, printed) == (0, "ppo.onnx\n")
    session = pytest.importorskip("onnxruntime").InferenceSession("ppo.onnx")
    [obs], [action] = session.get_inputs(), session.get_outputs()
    assert (obs.name, obs.type, obs.shape) == ("obs", "tensor(float)", ["rows", 4])
    assert (action.name, action.type, action.shape) == ("action", "tensor(int64)", ["rows"])
    status, _, err = flowrl("export", "crazyclimber_ppo")
    assert (status, err[:51]) == (2, "flowrl: crazyclimber_ppo: flowrl has no checkpoint ")


def test_run_continues_a_checkpoint(flowrl: Flowrl, folder: Path) -> None:
    """The learner goes on with its state; without it, the same graph and seed would learn something else."""
    limits = ("--train-iters", "4", "--quiet")
    flowrl("run", "cartpole_dqn", *limits, "--out", "a")
    continued = ("run", "cartpole_dqn", *limits, "--json", "--out")
    digests = [
        one_line(flowrl(*continued, out, *given)[1])["digest"]
        for out, given in (
            ("b", ("--from", "a")),
            ("c", ("--from", "a/checkpoints/last.safetensors")),
            ("d", ()),
        )
    ]
    assert digests[0] == digests[1] != digests[2]
    log = (folder / "b" / "logs" / "learner.log").read_text()
    last = folder / "a" / "checkpoints" / "last.safetensors"
    assert log == f"[0] continues {last} after 4 train iterations\n"


def test_a_run_from_what_cannot_be_continued_is_refused(flowrl: Flowrl, folder: Path) -> None:
    status, _, err = flowrl("run", "cartpole_dqn", "--from", "nothing")
    assert (status, err[:41]) == (2, "flowrl: nothing: there is no such run her")
    flowrl("run", "g.yaml", "--train-iters", "1", "--out", "r", "--quiet")
    status, _, err = flowrl("run", "g.yaml", "--from", "r")
    what = "no learner of the graph has the parameter `begin_with`"
    assert (status, err) == (2, f"flowrl: --from r: {what}\n")


def test_eval_of_a_graph_without_an_evaluator_says_so(flowrl: Flowrl, folder: Path) -> None:
    (folder / "r").mkdir()
    write(folder / "r" / "graph.yaml")
    text = (folder / "r" / "graph.yaml").read_text().replace("Evaluator", "PacedReader")
    (folder / "r" / "graph.yaml").write_text(text)
    status, _, err = flowrl("eval", "r")
    assert (status, err) == (
        1,
        "flowrl: r: its graph has no evaluator; only runs with one can be evaluated\n",
    )


def test_without_a_verb_help_is_printed(flowrl: Flowrl) -> None:
    status, out, err = flowrl()
    assert (status, err) == (0, "")
    assert out == flowrl("--help")[1]
    for verb in ("run", "check", "draw", "expand", "diff", "nodes", "graphs", "schema", "eval"):
        assert f"\n    {verb} " in out


def test_the_version_is_printed(flowrl: Flowrl) -> None:
    import flowrl as package

    assert flowrl("--version") == (0, f"flowrl {package.__version__}\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["nodes"], ["graphs"], ["schema"], ["expand", "g.yaml"], ["draw", "g.yaml"]]
)
def test_verbs_that_only_print_work(words: list[str], flowrl: Flowrl) -> None:
    status, out, err = flowrl(*words)
    assert (status, err) == (0, "")
    assert out.endswith("\n")
    if words == ["schema"]:
        assert "properties" in json.loads(out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "statuses"),
    [  # argparse itself swallows it, but not that of every Python
        *[(["nodes"], {1}), (["schema"], {1}), (["run", "g.yaml"], {1}), (["--help"], {0, 1})],
    ],
)
def test_a_closed_pipe_causes_no_traceback(
    words: list[str], statuses: set[int], folder: Path
) -> None:
    with process(*words, folder=folder) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        err = running.stderr.read()
        running.wait(timeout=90)
    assert running.returncode in statuses
    assert err == ""
