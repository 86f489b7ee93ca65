"""The worst members of a population copy the best, and the others have the bits of a run that was never cut."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.cli.main import main
from flowrl.core.batch import Batch
from flowrl.core.config import Config, param
from flowrl.core.errors import GraphError, RunError, UsageError
from flowrl.core.node import Node
from flowrl.core.ports import In, StateIn, StateOut
from flowrl.core.state import State
from flowrl.runs.perturbation import Perturbation, read_perturbation
from flowrl.runs.population import MEMBERS_FILE, POPULATION_FILE, Member, Population, members_table
from flowrl.runs.registry import RunEntry
from tests.toys.toy_runs import toy_graph


class Climber(Node):
    """A learner that climbs by a random share of its rate."""

    role = "learner"
    data = In("samples")
    weights = StateOut("weights")

    class Config(Config):
        rate: float = param(1.0, "the largest step")
        kind: str = param("plain", "one of several")
        size: int = param(2, "a number")
        share: float = param(1.0, "a number below which there is one with factor 1.5", gt=0.5, le=1)
        whole: float = param(1.0, "the only value", ge=1, le=1)

    def setup(self) -> None:
        self.height = np.zeros(1)
        self.rng = self.ctx.rng("climb")
        self.numbers = [0] * self.config.size

    def fire(self, data: Batch) -> None:
        self.height = self.height + self.config.rate * self.rng.random(1)

    def state(self, port: str) -> State:
        return State({"height": self.height})

    def load_state_dict(self, state: Any) -> None:
        if len(state["numbers"]) != self.config.size:
            raise ValueError(f"the state has {len(state['numbers'])} numbers")
        super().load_state_dict(state)


class Judge(Node):
    """An evaluator whose return is the height."""

    role = "evaluator"
    weights = StateIn("weights")

    def fire(self, weights: State) -> None:
        self.ctx.metrics({"return_mean": float(weights.arrays["height"][0])})


@pytest.fixture
def graph(tmp_path: Path) -> str:
    nodes = {"c": "Source", "l": f"{__name__}:Climber", "e": f"{__name__}:Judge"}
    whole = toy_graph(nodes, ["c -> l", {"l.weights -> e": {"every": 2}}])
    path = tmp_path / "climb.yaml"
    path.write_text(json.dumps(whole))
    return str(path)


def population(graph: str, out: Path, **more: Any) -> Population:
    changes = more.pop("perturbations", [Perturbation("l.rate", 1.5)])
    options = {"members": 3, "generations": 3, "steps": 40, **more}
    return Population(graph, changes, out=out, **options)


def members_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / MEMBERS_FILE).read_text().splitlines()]


@pytest.mark.slow
def test_the_worst_member_copies_the_best_one_with_a_changed_setting(
    graph: str, tmp_path: Path
) -> None:
    best = population(graph, tmp_path / "p").train()[0]
    members = members_of(tmp_path / "p")
    assert [(m["generation"], m["member"]) for m in members] == [
        (g, k) for g in range(3) for k in range(3)
    ]
    for generation in range(1, 3):
        before = [m for m in members if m["generation"] == generation - 1]
        ranked = sorted(before, key=lambda m: -m["score"])
        for member in members[3 * generation : 3 * generation + 3]:
            own = before[member["member"]]
            if own is ranked[-1]:
                assert member["parent"] == ranked[0]["run"]
                ratio = member["settings"]["l.rate"] / ranked[0]["settings"]["l.rate"]
                assert ratio == pytest.approx(1.5) or ratio == pytest.approx(1 / 1.5)
            else:
                assert (member["parent"], member["settings"]) == (own["run"], own["settings"])
            assert member["env_steps"] == 40 * (generation + 1)
    assert best.score == max(m["score"] for m in members)
    assert best.settings["l.rate"] >= 1


@pytest.mark.slow
def test_a_member_that_goes_on_has_the_bits_of_a_run_that_was_never_cut(
    graph: str, tmp_path: Path
) -> None:
    population(graph, tmp_path / "p").train()
    members = {m["run"]: m for m in members_of(tmp_path / "p")}
    survivors = 0
    for k in range(3):
        line = [members[f"g{g}-m{k}"] for g in range(3)]
        if [m["parent"] for m in line] == [None, *(m["run"] for m in line[:-1])]:
            survivors += 1
            whole = flowrl.load(graph, line[-1]["settings"]).run(
                seed=k, steps=120, out=tmp_path / f"whole{k}", quiet=True
            )
            assert whole.digest == line[-1]["digest"]
            assert whole.eval_return == line[-1]["score"]
    assert survivors >= 1


@pytest.mark.slow
def test_a_population_that_was_killed_goes_on_with_the_same_members(
    graph: str, tmp_path: Path
) -> None:
    population(graph, tmp_path / "whole").train()
    out = tmp_path / "killed"
    population(graph, out, generations=2).train()
    (out / "g1-m1" / "summary.json").unlink()  # as if killed in the middle of this run
    shutil.rmtree(out / "g1-m2")
    computed: list[Member] = []
    population(graph, out, on_member=computed.append).train()
    assert len(computed) == 9
    assert (out / MEMBERS_FILE).read_bytes() == (tmp_path / "whole" / MEMBERS_FILE).read_bytes()


@pytest.mark.slow
def test_a_damaged_list_of_members_is_written_again(graph: str, tmp_path: Path) -> None:
    out = tmp_path / "p"
    population(graph, out, generations=2).train()
    whole = (out / MEMBERS_FILE).read_bytes()
    (out / MEMBERS_FILE).write_bytes(whole[:-20])
    population(graph, out, generations=2).train()
    assert (out / MEMBERS_FILE).read_bytes() == whole
    assert sorted(path.name for path in out.iterdir() if path.is_file()) == [
        MEMBERS_FILE,
        POPULATION_FILE,
    ]


@pytest.mark.slow
def test_a_copy_that_cannot_take_the_state_of_its_parent_is_named(
    graph: str, tmp_path: Path
) -> None:
    sizes = [Perturbation("l.size", choices=("3", "4", "5"))]
    what = r"p/g1-m\d: it cannot begin as a copy of g0-m\d with l\.size [345]: node 'l', loading"
    with pytest.raises(RunError, match=what):
        population(graph, tmp_path / "p", perturbations=sizes).train()


@pytest.mark.slow
def test_placements_do_not_matter(graph: str, tmp_path: Path) -> None:
    for name, placement in (("a", "serial"), ("b", "threads")):
        population(graph, tmp_path / name, generations=2, placement=placement).train()
    assert members_of(tmp_path / "a") == members_of(tmp_path / "b")


@pytest.mark.slow
def test_the_seed_decides(graph: str, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        population(graph, tmp_path / name, generations=2, seed=seed).train()
    a, b, c = (members_of(tmp_path / name) for name in "abc")
    assert a == b
    assert a != c


@pytest.mark.slow
def test_members_begin_with_different_settings_and_the_first_as_written(
    graph: str, tmp_path: Path
) -> None:
    all_three = [
        Perturbation("l.rate", 1.5),
        Perturbation("l.kind", choices=("plain", "other")),
        Perturbation("l.size", choices=("2", "3")),
    ]
    population(graph, tmp_path / "p", generations=1, perturbations=all_three).train()
    rates = [m["settings"]["l.rate"] for m in members_of(tmp_path / "p")]
    assert rates[0] == 1.0
    assert len(set(rates)) > 1
    assert {m["settings"]["l.kind"] for m in members_of(tmp_path / "p")} <= {"plain", "other"}


@pytest.mark.slow
def test_the_command_prints_members_and_the_best(
    graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["population", graph, "--steps", "40", "--generations", "2", "--members", "3"]
    out = ["--out", str(tmp_path / "p")]
    assert main([*words, "--perturb", "l.rate=1.5", *out]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("g0-m0: score ")
    assert lines[0].endswith(", begun with l.rate 1")
    assert any("a copy of g0-m" in line for line in lines)
    assert any("continued from g0-m" in line for line in lines)
    assert lines[-1].startswith(f"the best: {tmp_path / 'p' / 'g1-m'}")
    assert main([*words, "--perturb", "l.rate=1.5", *out, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["members"]) == 6
    assert found["best"] in lines[-1]


@pytest.mark.slow
def test_wrong_arguments_are_refused(graph: str, tmp_path: Path) -> None:
    out = tmp_path / "p"
    with pytest.raises(UsageError, match="1 member cannot copy another; take 2 or more"):
        population(graph, out, members=1)
    with pytest.raises(UsageError, match="no setting is changed; name one, such as --perturb"):
        population(graph, out, perturbations=[])
    with pytest.raises(UsageError, match=r"--perturb l\.rat: the graph has no such setting; did"):
        population(graph, out, perturbations=[Perturbation("l.rat", 2)])
    with pytest.raises(UsageError, match="its value is 'plain', which no factor changes; give"):
        population(graph, out, perturbations=[Perturbation("l.kind", 2)])
    assert not out.exists()
    population(graph, out, generations=1).train()
    with pytest.raises(
        UsageError, match="contains a population with another steps, seed; continue"
    ):
        population(graph, out, steps=50, seed=3)
    with pytest.raises(RunError, match="was not evaluated in 10 env steps; evaluate more often"):
        population(graph, tmp_path / "short", steps=10).train()


def test_a_graph_without_an_evaluator_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    path.write_text(
        json.dumps(toy_graph({"c": "Source", "l": "Learner"}, ["c -> l", "l.weights -> c.weights"]))
    )
    with pytest.raises(UsageError, match="g: its graph has no evaluator, by which members are"):
        population(str(path), tmp_path / "p")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("policy.lr", Perturbation("policy.lr", 1.2)),
        ("policy.lr=2", Perturbation("policy.lr", 2.0)),
        ("b.size=32,64", Perturbation("b.size", choices=("32", "64"))),
    ],
)
def test_perturbations_are_read(text: str, expected: Perturbation) -> None:
    assert read_perturbation(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "=2", "policy.lr=", "policy.lr=1", "policy.lr=much", "policy.lr=1,", "policy.lr=1,2,1"],
)
def test_wrong_perturbations_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"--perturb {text}: "):
        read_perturbation(text)


def test_whole_numbers_stay_whole() -> None:
    rng = np.random.default_rng(0)
    found = {tuple(Perturbation("n", 1.2).candidates(10, rng)) for _ in range(20)}
    assert found == {(8, 12), (12, 8)}
    assert sorted(Perturbation("n", 4).candidates(1, rng)) == [1, 4]


@pytest.mark.slow
def test_a_value_that_the_graph_refuses_is_not_taken(graph: str, tmp_path: Path) -> None:
    trained = population(
        graph,
        tmp_path / "p",
        members=4,
        perturbations=[Perturbation("l.share", 1.5), Perturbation("l.whole", 1.5)],
    )
    trained.train()
    settings = [member["settings"] for member in members_of(tmp_path / "p")]
    assert all(0.5 < one["l.share"] <= 1 for one in settings)
    assert len({one["l.share"] for one in settings}) > 1  # changed in the direction that is left
    assert {one["l.whole"] for one in settings} == {1.0}  # no direction is


def test_choices_that_the_graph_refuses_are_refused_before_anything_is_trained(
    graph: str, tmp_path: Path
) -> None:
    wrong = [Perturbation("l.share", choices=("0.9", "much"))]
    with pytest.raises(GraphError, match=r"--set l\.share=much: nodes\.l\.share is 'much'"):
        population(graph, tmp_path / "p", perturbations=wrong)
    with pytest.raises(UsageError, match=r"--perturb l\.rate: it is given twice"):
        population(graph, tmp_path / "p", perturbations=[Perturbation("l.rate", 2.0)] * 2)
    assert not (tmp_path / "p").exists()


@pytest.mark.slow
def test_the_folder_of_a_member_that_another_process_trains_is_not_removed(
    graph: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "p"
    population(graph, out, generations=1).train()
    (out / "g0-m1" / "summary.json").unlink()  # as while this run lasts
    entry = RunEntry(4711, "", 0.0, "climb", "serial", str(out / "g0-m1"), "")
    monkeypatch.setattr("flowrl.runs.resume.live_entries", lambda: [entry])
    with pytest.raises(UsageError, match="g0-m1: process 4711 still runs it"):
        population(graph, out, generations=1).train()
    assert (out / "g0-m1" / "graph.yaml").is_file()


def test_no_member_is_an_empty_table() -> None:
    assert members_table([]).split() == ["run", "parent", "score"]
