"""Cuts of a serial run: their positions, and that no node fires beyond them."""

import threading
from typing import Any

import pytest

from flowrl.core.records import Record
from flowrl.runtime.executor import Cut
from flowrl.runtime.instance import Instance
from flowrl.runtime.serial_executor import SerialExecutor
from tests.toys.toy_runs import Trace, make_executor, run, toy_graph

NODES = {"c": "Source", "b": {"type": "Buffer", "updates": 3}, "l": "Learner", "d": "Drain"}
EDGES = ["c -> b -> l", "l.priorities -> d", "l.weights -> c.weights"]
WARM = [{"edges": ["c -> b"], "steps": 35}]  # four firings


def graph(**evaluator: Any) -> dict[str, Any]:
    """Three train iterations a round, an evaluation after every second one."""
    nodes = {**NODES, "e": {"type": "Evaluator", **evaluator}}
    return toy_graph(nodes, [*EDGES, {"l.weights -> e": {"every": 2}}], warmup=WARM)


def test_train_iters_cuts_right_after_that_firing() -> None:
    _, trace, cut = run(graph(), train_iters=5)
    assert (cut.reason, cut.why) == ("train_iters", "5 train iterations were asked for")
    assert (cut.counts.train_iters, cut.rounds) == (5, 1)
    assert cut.counts.env_steps == 60
    assert trace.lines[-4:] == ["b: 5", "l: 5", "e: saw 4", "l: 5"]


def test_the_cut_includes_the_evaluation_of_the_last_version() -> None:
    assert run(graph(), train_iters=4)[1].lines[-1] == "e: saw 4"


def test_a_limit_of_rounds_cuts_at_the_end_of_a_round() -> None:
    _, trace, cut = run(graph(), rounds=2)
    assert (cut.reason, cut.rounds, cut.counts.train_iters) == ("rounds", 2, 6)
    assert trace.lines[-1] == "d: p5"


@pytest.mark.parametrize(
    ("steps", "rounds", "env_steps"),
    [(60, 2, 60), (61, 3, 70), (50, 1, 50), (1, 1, 50), (40, 1, 50)],
)
def test_steps_cut_at_the_end_of_the_first_round_that_reaches_them(
    steps: int, rounds: int, env_steps: int
) -> None:
    """The warm-up's 40 steps count, but the warm-up is never cut short: its length is fixed."""
    _, trace, cut = run(graph(), steps=steps)
    assert (cut.reason, cut.rounds, cut.counts.env_steps) == ("steps", rounds, env_steps)
    assert trace.lines[-1].startswith("d: ")


def test_steps_are_the_sum_over_collectors_and_replicas() -> None:
    nodes = {
        **{"a": {"type": "Source", "replicas": 2}, "b": {"type": "Source", "steps": 5}},
        **{"d": "Drain", "e": "Drain"},
    }
    _, _, cut = run(toy_graph(nodes, ["a -> d", "b -> e"]), steps=26)
    assert (cut.rounds, cut.counts.env_steps, cut.counts.episodes) == (2, 50, 6)


def test_a_verdict_cuts_right_after_the_evaluation() -> None:
    _, trace, cut = run(graph(goal=4), rounds=100)
    assert (cut.reason, cut.why) == ("verdict", "version 4 is good")
    assert cut.counts.train_iters == 4
    assert trace.lines[-1] == "e: saw 4"


def test_consumers_of_an_evaluator_do_not_fire_after_its_verdict() -> None:
    whole = toy_graph(
        {**NODES, "e": {"type": "Evaluator", "goal": 1}, "z": "Drain"},
        [*EDGES, {"l.weights -> e": {"every": 1}}, "e -> z"],
    )
    assert run(whole, rounds=9)[1].lines[-1] == "e: saw 1"


def test_a_verdict_cuts_between_two_firings_of_a_node() -> None:
    whole = toy_graph({**NODES, "l": {"type": "Learner", "stops_at": 1}}, EDGES)
    _, trace, cut = run(whole, rounds=9)
    assert (cut.reason, cut.counts.train_iters) == ("verdict", 2)
    assert trace.lines[-2:] == ["l: 0", "l: 0"]


def test_the_first_verdict_counts() -> None:
    whole = toy_graph(
        {
            "c": "Source",
            "l": "Learner",
            "e": {"type": "Evaluator", "goal": 3},
            "f": {"type": "Evaluator", "goal": 3},
        },
        ["c -> l", {"l.weights -> f": {"every": 1}}, {"l.weights -> e": {"every": 1}}],
    )
    _, trace, cut = run(whole, rounds=9)
    assert cut.counts.train_iters == 3
    assert trace.lines[-1] == "e: saw 3"  # f, after it in the order, is not asked any more


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"train_iters": 4, "rounds": 1}, "rounds"),
        ({"train_iters": 3, "rounds": 1}, "train_iters"),
        ({"train_iters": 7, "steps": 60}, "steps"),
        ({"train_iters": 6, "steps": 60, "rounds": 3}, "train_iters"),
        ({"steps": 50, "rounds": 1}, "steps"),
    ],
)
def test_the_earliest_cut_wins(limits: dict[str, int], reason: str) -> None:
    assert run(graph(), **limits)[2].reason == reason


def test_a_verdict_on_the_last_train_iteration_is_a_verdict() -> None:
    assert run(graph(goal=4), train_iters=4)[2].reason == "verdict"


# time limits and requests


class StoppingTrace(Trace):
    """A trace that requests a cut when a node logs a certain line."""

    executor: SerialExecutor

    def __init__(self, line: str) -> None:
        super().__init__()
        self.line = line

    def record(self, instance: Instance, record: Record) -> None:
        super().record(instance, record)
        if self.lines and self.lines[-1] == self.line and isinstance(record, str):
            self.executor.stop("interrupt", "requested by a test")


def run_until_line(line: str, whole: dict[str, Any]) -> tuple[SerialExecutor, StoppingTrace, Any]:
    trace = StoppingTrace(line)
    executor, _ = make_executor(whole)
    executor.sink = trace
    trace.executor = executor
    cut = executor.run()
    return executor, trace, cut


@pytest.mark.parametrize("line", ["c: usual saw 3", "b: 5", "l: 5", "d: p5", "e: saw 4"])
def test_a_stop_cuts_after_a_round_and_can_be_repeated(line: str) -> None:
    executor, trace, cut = run_until_line(line, graph())
    assert (cut.reason, cut.why) == ("interrupt", "requested by a test")
    assert_repeated(executor, trace, cut)


def assert_repeated(executor: SerialExecutor, trace: Trace, cut: Cut) -> None:
    """A run to the same round does the same, and one to the same train iteration has the same weights."""
    again, trace_again, cut_again = run(graph(), rounds=cut.rounds)
    assert (cut_again.counts, trace_again.lines) == (cut.counts, trace.lines)
    assert again.digest() == executor.digest()
    again, trace_again, cut_again = run(graph(), train_iters=cut.counts.train_iters)
    assert cut_again.counts == cut.counts
    assert trace_again.lines == trace.lines[: len(trace_again.lines)]
    assert again.digest() == executor.digest()


def test_a_stop_in_the_warm_up_cuts_at_the_end_of_a_round() -> None:
    _, trace, cut = run_until_line("b: 1 unwanted", graph())
    assert trace.lines == ["c: usual saw 0", "b: 0 unwanted", "c: usual saw 0", "b: 1 unwanted"]
    assert (cut.reason, cut.rounds, cut.counts) == ("interrupt", 0, (20, 2, 0))


def test_a_stop_without_a_learner_cuts_at_the_end_of_a_round() -> None:
    whole = toy_graph({"c": "Source", "d": "Drain", "e": "Drain"}, ["c -> d", "c -> e"])
    _, trace, cut = run_until_line("d: 1", whole)
    assert trace.lines[-1] == "e: 1"
    assert cut.rounds == 2


def test_a_stop_may_come_from_another_thread() -> None:
    executor, _ = make_executor(graph())
    thread = threading.Thread(target=executor.stop, args=("interrupt", "from a thread"))
    thread.start()
    thread.join()
    assert executor.run().why == "from a thread"


@pytest.mark.slow
def test_a_time_limit_cuts_after_a_round_and_can_be_repeated() -> None:
    executor, trace, cut = run(graph(), time_s=0.2)  # long enough to get through the warm-up
    assert (cut.reason, cut.why) == ("time", "0.2 s were asked for")
    assert_repeated(executor, trace, cut)


def test_a_graph_in_which_nothing_fires_is_done_at_once() -> None:
    assert run(toy_graph({"w": "UnusedService"}, []))[2].reason == "done"
