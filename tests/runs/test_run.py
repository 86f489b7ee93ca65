"""A run and its folder: the files of a run that ends well, and of one that fails."""

import json
import re
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.checks.check import CheckedGraph, check
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.checkpoint import read_acting
from flowrl.core.errors import NodeError, RunError, UsageError
from flowrl.core.records import CheckpointRecord, Record
from flowrl.core.state import Count
from flowrl.core.written_config import written_params
from flowrl.graph.loading import load_data, load_graph
from flowrl.graph.model import Limits
from flowrl.graph.yaml_text import parse_yaml
from flowrl.runs.folder import read_jsonl
from flowrl.runs.initial_files import params_text
from flowrl.runs.new_folder import create_run_folder
from flowrl.runs.result import RunResult
from flowrl.runs.run import Run
from flowrl.runs.summary import EvaluationReturns
from flowrl.runs.watcher import Watcher
from flowrl.runtime.records import RecordSource
from tests.toys.toy_nodes import FailingNode
from tests.toys.toy_runs import toy_graph

NODES = {"c": {"type": "Source", "replicas": 2}, "l": "Learner", "e": "Evaluator"}
EDGES = ["c -> l", "l.weights -> c.weights", {"l.weights -> e": {"every": 2}}]
SUMMARY = [  # the keys that scripts rely on, and after them those that are extra
    *["graph", "run_dir", "placement", "status", "deterministic"],
    *["env_steps", "train_iters", "episodes", "eval_return", "best_return"],
    *["wall_s", "env_steps_per_s", "bottleneck", "digest"],
    *["seed", "why", "repeat", "resumed_after", "recoveries", "parent"],
    *["snapshot_rounds", "state_digest", "resume"],
    *["setup_s", "training_s", "shutdown_s", "network_bytes", "happened", "warnings"],
]


def checked(nodes: Any = None, edges: Any = None, **more: Any) -> CheckedGraph:
    return check(load_data(toy_graph(nodes or NODES, edges or EDGES, **more)))


def run(folder: Path, graph: CheckedGraph | None = None, **limits: Any) -> RunResult:
    return Run(graph or checked(), out=folder, limits=Limits(**limits)).run()


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return read_jsonl(folder / name)


# what is there


def test_the_folder_of_a_run_has_all_its_files(tmp_path: Path) -> None:
    run(tmp_path / "r", train_iters=4)
    found = sorted(str(p.relative_to(tmp_path / "r")) for p in (tmp_path / "r").rglob("*"))
    tensorboard = [name for name in found if name.startswith("tb/")]
    assert len(tensorboard) == 1
    assert tensorboard[0].startswith("tb/events.out.tfevents.")
    assert [name for name in found if not name.startswith("tb")] == [
        *["checkpoints", "checkpoints.jsonl"],
        *["checkpoints/best.safetensors", "checkpoints/last.safetensors"],
        *["environment.json", "graph.dot", "graph.yaml"],
        *["logs", "logs/c#1.log", "logs/c.log", "logs/e.log", "logs/l.log"],
        *["metrics.jsonl", "params.yaml", "summary.json", "timings.jsonl"],
    ]


def test_the_summary_has_exactly_its_keys(tmp_path: Path) -> None:
    result = run(tmp_path / "r", train_iters=4)
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert list(summary) == SUMMARY
    assert summary == json.loads(json.dumps(result.as_dict()))
    expected = {
        **{"graph": "graph", "run_dir": str(tmp_path / "r"), "placement": "serial"},
        **{"status": "finished", "deterministic": True, "env_steps": 80, "train_iters": 4},
        **{"episodes": 8, "eval_return": 4.0, "best_return": 4.0, "seed": 0, "repeat": ""},
        **{"why": "4 train iterations were asked for", "happened": [], "warnings": []},
    }
    assert {key: summary[key] for key in expected} == expected
    assert len(summary["digest"]) == 64
    assert " is the bottleneck: it fired for " in summary["bottleneck"]


def test_metrics_come_in_the_order_of_the_program_with_their_position(tmp_path: Path) -> None:
    run(tmp_path / "r", train_iters=4)
    assert rows(tmp_path / "r") == [
        {
            **{"node": "e", "role": "evaluator", "firing": j},
            **{"env_steps": 40 * (j + 1), "episodes": 4 * (j + 1)},
            **{"train_iters": 2 * (j + 1), "return_mean": 2.0 * (j + 1)},
        }
        for j in range(2)
    ]


def test_nan_and_infinity_are_written_as_strings(tmp_path: Path) -> None:
    graph = checked({"c": "Source", "m": "OddMetrics"}, ["c -> m"])
    run(tmp_path / "r", graph, rounds=1)
    [row] = rows(tmp_path / "r")
    assert (row["n"], row["nan"], row["inf"]) == (0.0, "nan", "-inf")


def test_a_return_that_is_no_number_is_no_return(tmp_path: Path) -> None:
    nodes = {"c": "Source", "l": "Learner", "e": "NanEvaluator"}
    graph = checked(nodes, ["c -> l", {"l.weights -> e": {"every": 1}}])
    assert run(tmp_path / "r", graph, train_iters=1).eval_return is None
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["eval_return"] is None


def test_of_several_evaluators_the_first_by_name_is_in_the_summary(tmp_path: Path) -> None:
    edges = [*EDGES, {"l.weights -> another": {"every": 3}}]
    result = run(tmp_path / "r", checked({**NODES, "another": "Evaluator"}, edges), train_iters=4)
    assert (result.eval_return, result.best_return) == (3.0, 3.0)  # that of e would be 4
    kept = sorted(path.name for path in (tmp_path / "r" / "checkpoints").iterdir())
    assert kept == ["best-e.safetensors", "best.safetensors", "last.safetensors"]


def test_checkpoints_of_a_second_learner_have_its_name() -> None:
    returns = EvaluationReturns("evaluator", "a")

    def written(node: str, role: str, folder: str = "checkpoints") -> tuple[str, str]:
        record = CheckpointRecord("iter-8", {}, {}, "iter-6", folder)
        found = returns.take_in(RecordSource(node, role, 0, Count()), record)
        assert isinstance(found, CheckpointRecord)
        return found.name, found.replaces

    assert written("a", "learner") == ("iter-8", "iter-6")
    assert written("pair/b", "learner") == ("iter-8-pair__b", "iter-6-pair__b")
    assert written("c", "collector", "league/players") == ("iter-8", "iter-6")


def test_a_metric_cannot_take_the_name_of_its_position(tmp_path: Path) -> None:
    graph = checked({"c": "Source", "m": "ReservedMetric"}, ["c -> m"])
    with pytest.raises(NodeError, match=r"node 'm', .* a metric cannot be named 'env_steps'"):
        run(tmp_path / "r", graph, rounds=1)


def test_each_node_has_a_log_of_its_own(tmp_path: Path) -> None:
    run(tmp_path / "r", train_iters=2)
    logs = tmp_path / "r" / "logs"
    assert (logs / "c#1.log").read_text() == "[0] usual saw 0\n[1] usual saw 1\n"
    assert (logs / "e.log").read_text().splitlines() == ["[0] saw 2"]
    assert {path.stem for path in logs.iterdir()} == {"c", "c#1", "e", "l"}


def test_the_parameters_of_nodes_are_in_a_file_of_their_own(tmp_path: Path) -> None:
    run(tmp_path / "r", train_iters=1)
    text = (tmp_path / "r" / "params.yaml").read_text()
    source = "  type: tests.toys.toy_nodes:Source\n  give: 1\n  steps: 10\n  mode: usual\n"
    assert text.startswith(f"c:\n{source}")
    assert [line for line in text.splitlines() if not line.startswith(" ")] == ["c:", "l:", "e:"]


def test_parameters_of_parts_are_one_in_a_line_too() -> None:
    graph = load_graph("cartpole_dqn").graph
    lines = params_text(graph).splitlines()
    at = lines.index("  policy:")
    assert lines[at + 1 : at + 3] == ["    type: dqn", "    gamma: 0.99"]
    inner = lines.index("    model:", at)
    assert lines[inner + 1] == "      type: mlp"
    assert parse_yaml("\n".join(lines), "params.yaml").plain() == {
        name: {"type": spec.type, **written_params(spec.config)}
        for name, spec in graph.nodes.items()
    }


def test_the_name_of_a_run_folder_has_the_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = create_run_folder("cartpole_dqn", 7, None)
    assert re.fullmatch(r"runs/cartpole_dqn-seed7-\d{8}-\d{6}", str(folder))


def events(folder: Path) -> list[Any]:
    """The events of a TensorBoard file: length, its checksum, data, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    [path] = (folder / "tb").iterdir()
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + length]))
        data = data[12 + length + 4 :]
    return found


def test_tensorboard_reads_the_same_metrics(tmp_path: Path) -> None:
    run(tmp_path / "r", train_iters=4)
    first, *others = events(tmp_path / "r")
    assert first.file_version == "brain.Event:2"
    shown = [(e.step, v.tag, v.simple_value) for e in others for v in e.summary.value]
    values = [value for value in shown if not value[1].startswith(("_hparams_/", "speed/"))]
    assert values == [(40, "e/return_mean", 2.0), (80, "e/return_mean", 4.0)]


def test_checkpoints_hold_the_best_and_the_last_weights(tmp_path: Path) -> None:
    made = Run(checked(), out=tmp_path / "r", limits=Limits(train_iters=5))
    made.run()
    assert made.executor is not None
    [weights] = made.executor.weights().values()
    last, info = read_acting(tmp_path / "r" / "checkpoints" / "last.safetensors")
    np.testing.assert_array_equal(last.arrays["sum"], weights.arrays["sum"])
    assert (last.version, last.command) == (5, {"half": 0.5})
    counts = {"env_steps": 100, "train_iters": 5}
    why = "5 train iterations were asked for"
    assert info == {"why": why, **counts, "node": "l.weights"}
    best, info = read_acting(tmp_path / "r" / "checkpoints" / "best.safetensors")
    assert best.version == 4
    assert info == {"eval_return": 4.0, "env_steps": 80, "train_iters": 4, "node": "e"}


@pytest.mark.parametrize("content", [b"", b"rubbish", b"\x08" + bytes(7) + b'{"a":1} '])
def test_a_file_that_is_no_checkpoint_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(RunError, match="x: is not a checkpoint of flowrl: "):
        read_acting(tmp_path / "x")
    with pytest.raises(RunError, match="y: there is no such checkpoint"):
        read_acting(tmp_path / "y")


def test_timings_add_up_for_each_instance(tmp_path: Path) -> None:
    result = run(tmp_path / "r", train_iters=4)
    last = rows(tmp_path / "r", "timings.jsonl")[-1]
    assert list(last["busy_s"]) == ["c", "c#1", "l", "e"]
    assert 0 < sum(last["busy_s"].values()) <= last["wall_s"] < result.wall_s + 0.001


def test_the_environment_is_written_to_the_folder(tmp_path: Path) -> None:
    Run(checked(), out=tmp_path / "r", limits=Limits(rounds=1), seed=7).run()
    environment = json.loads((tmp_path / "r" / "environment.json").read_text())
    assert {"flowrl", "python", "packages", "platform", "cpu", "cores", "git", "command"} < set(
        environment
    )
    assert (environment["seed"], environment["placement"]) == (7, "serial")
    assert environment["packages"]["numpy"] == np.__version__


def test_the_resolved_graph_repeats_the_run(tmp_path: Path) -> None:
    graph = checked(warmup=[{"edges": ["c -> l"], "steps": 50, "set": {"c.mode": "odd"}}])
    first = Run(graph, out=tmp_path / "a", seed=9, limits=Limits(train_iters=7)).run()
    again = Run(check(load_graph(tmp_path / "a" / "graph.yaml")), out=tmp_path / "b").run()
    assert (again.digest, again.seed, again.why) == (first.digest, 9, first.why)
    for name in ("metrics.jsonl", "logs/c.log", "logs/l.log"):
        assert (tmp_path / "a" / name).read_text() == (tmp_path / "b" / name).read_text()


def test_a_cut_by_the_clock_is_repeated_by_the_graph_of_its_folder(tmp_path: Path) -> None:
    first = run(tmp_path / "a a", time_s=0.05)
    assert first.why == "0.05 s were asked for"
    graph = tmp_path / "a a" / "graph.yaml"
    assert first.repeat == f"flowrl run '{graph}' --train-iters {first.train_iters}"
    again = Run(check(load_graph(graph)), out=tmp_path / "b").run()
    assert (again.digest, again.train_iters) == (first.digest, first.train_iters)


def test_a_verdict_solves_the_run(tmp_path: Path) -> None:
    graph = checked({**NODES, "e": {"type": "Evaluator", "goal": 3}})
    result = run(tmp_path / "r", graph)
    assert (result.status, result.why) == ("solved", "version 4 is good")
    log = (tmp_path / "r" / "logs" / "e.log").read_text()
    assert log.splitlines() == ["[0] saw 2", "[1] saw 4", "[1] version 4 is good"]


def test_a_run_does_not_change_the_graph_it_was_given(tmp_path: Path) -> None:
    graph = checked()
    Run(graph, out=tmp_path / "r", seed=5, limits=Limits(rounds=1)).run()
    assert (graph.graph.seed, graph.graph.limits) == (0, Limits())


# folders


def test_runs_that_begin_in_the_same_second_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flowrl.runs.new_folder.time.strftime", lambda form: "now")
    folders = [run(None, rounds=1).run_dir for _ in range(3)]  # type: ignore[arg-type]
    assert folders == [f"runs/graph-seed0-now{suffix}" for suffix in ("", "-2", "-3")]


def test_a_run_in_a_folder_is_not_written_over(tmp_path: Path) -> None:
    run(tmp_path / "r", rounds=1)
    before = (tmp_path / "r" / "summary.json").read_text()
    with pytest.raises(UsageError, match="r: it already contains a run; choose another folder"):
        run(tmp_path / "r", rounds=1)
    assert (tmp_path / "r" / "summary.json").read_text() == before


def test_an_empty_folder_may_be_given(tmp_path: Path) -> None:
    assert run(tmp_path, rounds=1).run_dir == str(tmp_path)


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_a_folder_that_cannot_be_made_is_refused(out: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot be written: .*; fix this, or choose another --out"):
        run(tmp_path / out, rounds=1)


def test_a_seed_that_a_graph_could_not_hold_is_refused() -> None:
    for seed in (-1, 2**63):
        with pytest.raises(UsageError, match=f"the seed is {seed}; expected a whole number"):
            Run(checked(), seed=seed)


def test_a_placement_on_hosts_needs_to_know_where_they_join() -> None:
    with pytest.raises(UsageError) as error:
        Run(checked(), placement="l=gpu-1,c=cpu-*")
    assert str(error.value) == (
        "placement: 'cpu-*', 'gpu-1' must be hosts; give --launch FILE, which says how they are "
        "started, or --listen tcp://ADDRESS:PORT --key FILE, and run 'flowrl host --join …' there"
    )


def test_a_run_whose_placement_needs_no_hosts_does_not_wait_for_any() -> None:
    with pytest.raises(UsageError, match="--listen: the placement puts nothing on a host"):
        Run(checked(), placement="threads", rendezvous=Rendezvous("tcp://127.0.0.1:*"))


def test_a_last_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert read_jsonl(path) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\n{"a"\n{"a": 3}\n')
    with pytest.raises(RunError, match=r"m.jsonl:2: is not a JSON object"):
        read_jsonl(path)
    with pytest.raises(RunError, match=r"n.jsonl: cannot be read: .*; is this a run folder\?"):
        read_jsonl(tmp_path / "n.jsonl")


# failures


FAILING = {
    "c": "Source",
    "l": "Learner",
    "e": "Evaluator",
    "f": {"type": "FailingNode", "firing": 3},
}
FAILING_EDGES = ["c -> l", "c -> f", {"l.weights -> e": {"every": 2}}]


def test_a_failed_run_leaves_a_folder_that_says_why(tmp_path: Path) -> None:
    graph = checked(FAILING, FAILING_EDGES)
    with pytest.raises(NodeError):
        run(tmp_path / "r", graph)
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert list(summary) == SUMMARY
    assert summary["status"] == "failed"
    assert summary["why"] == "node 'f', firing 3 (round 3): ZeroDivisionError: no more"
    assert (summary["env_steps"], summary["train_iters"], summary["digest"]) == (40, 3, "")
    text = (tmp_path / "r" / "error.txt").read_text()
    assert text.index("ZeroDivisionError: no more") < text.index("flowrl.core.errors.NodeError")
    assert [row["return_mean"] for row in rows(tmp_path / "r")] == [2.0]
    assert read_acting(tmp_path / "r" / "checkpoints" / "best.safetensors")[0].version == 2


def test_a_node_that_cannot_be_made_leaves_such_a_folder_too(tmp_path: Path) -> None:
    graph = checked({"c": "Source", "f": {"type": "FailingNode", "making": True}}, ["c -> f"])
    with pytest.raises(NodeError):
        run(tmp_path / "r", graph)
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert (summary["status"], summary["env_steps"], summary["bottleneck"]) == (
        *("failed", 0),
        "nothing fired",
    )
    assert (tmp_path / "r" / "graph.yaml").exists()


def test_the_summary_names_nodes_that_could_not_be_closed(tmp_path: Path) -> None:
    graph = checked({"c": "Source", "f": {"type": "FailingNode", "closing": True}}, ["c -> f"])
    result = run(tmp_path / "r", graph, rounds=2)
    assert result.status == "finished"
    assert result.happened == ("node 'f', closing: OSError: cannot be closed",)


def test_the_summary_counts_restarted_firings(tmp_path: Path) -> None:
    nodes = {"c": "Source", "m": {"type": "FailsOnce", "on_failure": "restart"}, "d": "Drain"}
    result = run(tmp_path / "r", checked(nodes, ["c -> m -> d"]), rounds=3)
    assert result.deterministic is False
    assert result.happened == (
        "1 firings were retried with a fresh node",
        "node 'm', firing 1 (round 1): RuntimeError: not today",
    )


def test_a_watcher_that_fails_ends_the_run_and_everything_is_closed(tmp_path: Path) -> None:
    class Blind(Watcher):
        def event(self, run: Run, source: RecordSource, record: Record) -> None:
            raise BrokenPipeError("the pipe is closed")

        def end(self, run: Run) -> None:
            raise BrokenPipeError("still closed")

    graph = checked({"c": "Source", "f": "FailingNode"}, ["c -> f"])
    FailingNode.closed.clear()
    made = Run(graph, out=tmp_path / "r", watcher=Blind(), limits=Limits(rounds=1))
    with pytest.raises(BrokenPipeError):
        made.run()
    assert FailingNode.closed == ["f"]
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert (summary["status"], summary["why"]) == ("failed", "the pipe is closed")


def test_a_run_may_go_in_another_thread(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run, tmp_path / "r", train_iters=2).result().train_iters == 2


@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_the_time_limit_and_the_speed_are_those_of_the_training(
    placement: str, tmp_path: Path
) -> None:
    begun_s = time.perf_counter() - 100
    limits = Limits(time_s=0.05)
    done = Run(
        checked(), out=tmp_path / "r", limits=limits, placement=placement, begun_s=begun_s
    ).run()
    assert done.why == "0.05 s were asked for"
    assert done.setup_s >= 100
    assert 0.05 <= done.training_s < 60
    spent_s = done.setup_s + done.training_s + done.shutdown_s
    assert done.wall_s == pytest.approx(spent_s, abs=0.002)
    assert done.env_steps_per_s == pytest.approx(done.env_steps / done.training_s, rel=0.05)
    assert f"{done.setup_s:.1f} s to start, {done.training_s:.1f} s of training (" in str(done)
