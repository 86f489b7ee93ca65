"""The verbs about graphs: what they print, write, and refuse."""

import json
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import pytest

from flowrl.core.signatures import written_doc
from tests.cli.conftest import Called, one_line, write
from tests.toys.toy_nodes import Learner

Flowrl = Callable[..., Called]
SETTABLE = {"c": {"type": "Source", "give": 1}}
ABOUT_FILE = {".dot": b"digraph", ".svg": b"<svg", ".md": b"```mermaid", ".html": b"<html"}


def node(name: str, resolved: str) -> str:
    """A node of the resolved graph."""
    lines = resolved.split("\n")
    begin = next(k for k, line in enumerate(lines) if line.strip() == f"{name}:")
    return "\n".join(takewhile(lambda line: line.startswith("    "), lines[begin + 1 :]))


# --set


def test_check_shows_the_sites_of_a_placement(flowrl: Flowrl) -> None:
    status, out, _ = flowrl("check", "cartpole_dqn", "--no-envs", "--placement", "processes")
    assert status == 0
    assert "\nSites\n  process:collector  process: envs, collector\n" in out
    status, _, err = flowrl("check", "cartpole_dqn", "--no-envs", "--placement", "x=process")
    assert (status, "--placement x=process: unknown node 'x'" in err) == (2, True)


def test_check_shows_what_a_placement_needs(flowrl: Flowrl, folder: Path) -> None:
    (folder / "p.yaml").write_text("learner: {gpus: 4096}\ncollector: {place: process, cores: 1}\n")
    words = ["check", "cartpole_dqn", "--no-envs", "--placement", "p.yaml"]
    status, out, _ = flowrl(*words)
    assert status == 0
    assert "\nNeeds\n  process:collector  1 core\n  any:learner        4,096 GPUs\n" in out
    assert " has too little: learner needs 4,096 GPUs.\n" in out
    status, out, _ = flowrl(*words, "--json")
    assert json.loads(out)["needs"]["sites"]["any:learner"]["gpus"] == 4096
    (folder / "p.yaml").write_text("learner: {place: process, gpus: 4096}\n")
    status, _, err = flowrl(*words)
    assert status == 2
    assert "placement: learner needs 4,096 GPUs; this machine has " in err


def test_set_changes_what_is_checked(flowrl: Flowrl, folder: Path) -> None:
    write(folder / "s.yaml", SETTABLE)
    assert "every round: c, l\n" in flowrl("check", "s.yaml")[1]
    assert "every round: c, l x 4\n" in flowrl("check", "s.yaml", "--set", "c.give=4")[1]


def test_set_changes_what_is_expanded_and_says_where_it_came_from(flowrl: Flowrl) -> None:
    status, out, _ = flowrl("expand", "g.yaml", "--set", "c.steps=7", "--set", "seed=3")
    assert status == 0
    assert "seed: 3\n" in out
    [line] = [line for line in node("c", out).splitlines() if line.strip().startswith("steps:")]
    assert line.split() == ["steps:", "7", "#", "--set", "c.steps=7"]


def test_two_sets_of_one_key_are_refused(flowrl: Flowrl) -> None:
    status, out, err = flowrl("expand", "g.yaml", "--set", "c.steps=7", "--set", " c.steps =8")
    message = "flowrl: --set  c.steps =8: 'c.steps' is set twice; leave one of them out\n"
    assert (status, out, err) == (2, "", message)


def test_set_replaces_an_option_of_an_edge(flowrl: Flowrl) -> None:
    assert "every 5 firings of l: e" in flowrl("check", "g.yaml", "--set", "e.weights.every=5")[1]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("=3", "--set =3: expected KEY=VALUE, such as learner.lr=3e-4"),
        ("c.steps", "--set c.steps: expected KEY=VALUE"),
        ("c.steps=-1", "steps"),
        ("c.stesp=1", "did you mean 'steps'?"),
        ("c.steps=[", "--set c.steps"),
    ],
)
@pytest.mark.parametrize("verb", ["check", "expand", "draw"])
def test_a_set_that_is_wrong_is_refused_by_every_verb_with_a_graph(
    verb: str, word: str, message: str, flowrl: Flowrl
) -> None:
    status, out, err = flowrl(verb, "g.yaml", "--set", word)
    assert status == 2
    assert message in out + err
    assert "Traceback" not in err


# draw


@pytest.mark.parametrize("ending", ABOUT_FILE)
def test_draw_writes_a_file_by_its_ending_and_prints_its_path(
    ending: str, flowrl: Flowrl, folder: Path
) -> None:
    assert flowrl("draw", "g.yaml", "-o", f"picture{ending}") == (0, f"picture{ending}\n", "")
    content = (folder / f"picture{ending}").read_bytes()
    assert ABOUT_FILE[ending] in content
    for name in (b"c", b"l", b"e"):
        assert name in content


@pytest.mark.needs("dot")
def test_draw_writes_a_png(flowrl: Flowrl, folder: Path) -> None:
    assert flowrl("draw", "g.yaml", "--output", "p.png")[0] == 0
    assert (folder / "p.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_draw_shows_the_places_of_a_placement(flowrl: Flowrl) -> None:
    plain = flowrl("draw", "g.yaml")[1]
    placed = flowrl("draw", "g.yaml", "--placement", "c=thread:actors")[1]
    assert "subgraph" not in plain
    assert placed.count("subgraph") == 2
    assert "actors" in placed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "p.gif"], "unknown ending '.gif'; known: .dot, .svg, .png, .md, .html"),
        (["-o", "none/p.dot"], "none/p.dot: cannot be written: No such file or directory"),
        (["--placement", "x=thread"], "x"),
    ],
)
def test_draw_refuses_what_it_cannot_draw(words: list[str], message: str, flowrl: Flowrl) -> None:
    status, out, err = flowrl("draw", "g.yaml", *words)
    assert (status, out) == (2, "")
    assert message in err


# expand, diff


def test_what_expand_prints_is_the_same_graph(flowrl: Flowrl, folder: Path) -> None:
    (folder / "resolved.yaml").write_text(flowrl("expand", "g.yaml")[1])
    assert flowrl("diff", "g.yaml", "resolved.yaml") == (0, "no difference\n", "")


def test_diff_prints_what_changed(flowrl: Flowrl, folder: Path) -> None:
    write(folder / "h.yaml", {"c": {"type": "Source", "steps": 20}})
    status, out, err = flowrl("diff", "g.yaml", "h.yaml")
    assert (status, err) == (0, "")
    assert out.splitlines()[1:] == ["~ node c: steps 10 -> 20"]
    assert flowrl("diff", "h.yaml", "g.yaml")[1].splitlines()[1:] == ["~ node c: steps 20 -> 10"]


def test_diff_takes_the_folder_of_a_run_for_the_graph_that_it_ran(flowrl: Flowrl) -> None:
    flowrl("run", "g.yaml", "--train-iters", "2", "--seed", "8", "--out", "r", "--quiet")
    status, out, _ = flowrl("diff", "g.yaml", "r")
    lines = out.splitlines()[1:]
    assert status == 0
    assert any("seed 0 -> 8" in line for line in lines)
    assert not any("node" in line for line in lines)


@pytest.mark.slow
def test_diff_takes_runs_by_their_names_as_other_verbs_do(flowrl: Flowrl, folder: Path) -> None:
    for seed in (8, 9):
        words = ("--train-iters", "2", "--seed", str(seed), "--out", f"sweep/run{seed}", "--quiet")
        flowrl("run", "g.yaml", *words)
    by_folder = flowrl("diff", "sweep/run8", "sweep/run9")
    assert by_folder[0] == 0
    assert "graph: seed 8 -> 9" in by_folder[1]
    assert flowrl("diff", "run8", "run9") == by_folder
    assert flowrl("diff", "run8", "last") == by_folder
    status, _, err = flowrl("diff", "run", "g.yaml")
    assert (status, err) == (2, "flowrl: run: is ambiguous; run8, run9\n")
    assert flowrl("diff", "cartpole_dqm", "g.yaml")[2].endswith(
        "; or did you mean the graph 'cartpole_dqn'?\n"
    )


def test_diff_of_an_unsound_graph_prints_its_problems(flowrl: Flowrl, folder: Path) -> None:
    write(folder / "u.yaml", {"x": "Drian"})
    status, out, err = flowrl("diff", "g.yaml", "u.yaml")
    assert (status, out) == (2, "")
    assert "Drian" in err
    assert flowrl("diff", "g.yaml", "none")[0] == 2


# nodes, graphs, schema


def test_nodes_of_a_name_shows_the_type(flowrl: Flowrl) -> None:
    status, out, err = flowrl("nodes", "ppo")
    assert (status, err) == (0, "")
    for name in ("gae_lambda", "clip", "minibatch_size"):
        assert f"  {name} " in out


def test_nodes_shows_a_type_of_ones_own(flowrl: Flowrl) -> None:
    status, out, _ = flowrl("nodes", "tests.toys.toy_nodes:Learner")
    assert status == 0
    assert written_doc(Learner).rstrip(".") in out
    assert "stops_at" in out


def test_nodes_of_a_wrong_name_suggests_the_most_similar(flowrl: Flowrl) -> None:
    status, out, err = flowrl("nodes", "naive_bufer")
    assert (status, out) == (2, "")
    assert "did you mean 'naive_buffer'?" in err


@pytest.mark.slow
def test_every_type_of_the_catalogue_can_be_shown(flowrl: Flowrl) -> None:
    names = [
        line.split()[0]
        for line in flowrl("nodes")[1].splitlines()
        if line.startswith("  ") and not line.startswith("   ")
    ]
    assert {"ppo", "dqn", "rnd", "learner"} <= set(names)
    for name in names:
        status, out, err = flowrl("nodes", name)
        assert (status, err, out.startswith(f"{name} (")) == (0, "", True)


@pytest.mark.slow
def test_every_graph_that_is_listed_is_sound(flowrl: Flowrl) -> None:
    names = [line.split()[0] for line in flowrl("graphs")[1].splitlines() if "cartpole" in line]
    assert len(names) >= 5
    for name in names:
        report = one_line(flowrl("check", name, "--json")[1])
        assert (report["ok"], report["deterministic"]) == (True, True)


# plot, new, doctor


@pytest.mark.slow
def test_plot_writes_to_the_first_folder_or_to_the_given_file(flowrl: Flowrl, folder: Path) -> None:
    for seed in ("0", "1"):
        flowrl("run", "g.yaml", "--train-iters", "4", "--seed", seed, "--out", f"r{seed}")
    assert flowrl("plot", "r0", "r1") == (0, "r0/plot.png\n", "")
    assert flowrl("plot", "r1", "-o", "mine.png") == (0, "mine.png\n", "")
    for path in ("r0/plot.png", "mine.png"):
        assert (folder / path).read_bytes().startswith(b"\x89PNG\r\n")
    assert not (folder / "r1" / "plot.png").exists()


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["none"], 2, "none: there is no such run here; runs: there is none"),
        (["."], 2, ".: has no metrics.jsonl; give the folder of a run that has begun to report"),
        ([], 2, "the following arguments are required: RUN"),
    ],
)
def test_plot_refuses_what_is_no_run(
    words: list[str], status: int, message: str, flowrl: Flowrl
) -> None:
    found, out, err = flowrl("plot", *words)
    assert (found, out) == (status, "")
    assert message in err


@pytest.mark.slow
def test_new_makes_a_project_that_checks_and_does_not_overwrite_it(
    flowrl: Flowrl, folder: Path
) -> None:
    status, out, err = flowrl("new", "mine")
    assert (status, err) == (0, "")
    assert "cd mine\n  flowrl run graph.yaml" in out
    assert one_line(flowrl("check", "mine/graph.yaml", "--json")[1])["ok"] is True
    (folder / "mine" / "graph.yaml").write_text("mine: now\n")
    status, _, err = flowrl("new", "mine")
    assert (status, err) == (
        2,
        "flowrl: new: mine/graph.yaml exists already; choose another folder, or remove it\n",
    )
    assert (folder / "mine" / "graph.yaml").read_text() == "mine: now\n"


@pytest.mark.parametrize("well", [True, False])
def test_doctor_exits_with_1_if_something_must_be_fixed(
    well: bool, flowrl: Flowrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flowrl.cli.doctor import Finding

    found = [Finding(True, "Python"), Finding(well, "a package", "install it")]
    monkeypatch.setattr("flowrl.cli.doctor.examine_installation", lambda: found)
    status, out, err = flowrl("doctor")
    assert (status, err) == (0 if well else 1, "")
    assert ("1 of 2 things must be fixed" in out) is not well
