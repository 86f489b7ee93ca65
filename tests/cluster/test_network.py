"""Hosts on a network of namespaces: data goes from host to host, and a cut cable ends a run in bounded time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.channels.keys import write_key
from flowrl.machine.network_address import machine_id
from tests.cluster.network import DELAY_S, MACHINES, Network, network, why_not

pytestmark = [
    pytest.mark.needs("ip"),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
ADDRESS = f"tcp://{MACHINES['run']}:5555"
SPREAD = "collector=a,buffer=b,learner=b,evaluator=b"  # nothing where the run was started
SOON_S = 60.0
exhaustive = pytest.mark.exhaustive

Run = subprocess.Popen[str]


@pytest.fixture
def net() -> Iterator[Network]:
    """A network with three machines."""
    with network() as made:
        yield made


def started(
    net: Network,
    folder: Path,
    placement: str,
    *words: str,
    graph: str = "cartpole_dqn",
    stay: bool = False,
) -> tuple[Run, Run, Run]:
    """A run, and the hosts a and b."""
    write_key(folder / "key")
    key = ("--key", "key")
    more = ("--stay",) if stay else ()
    a, b = (
        net.flowrl(name, "host", "--join", ADDRESS, *key, "--name", name, *more, cwd=folder)
        for name in ("a", "b")
    )
    rendezvous = ("--listen", ADDRESS, *key, "--hosts", "2")
    words = ("run", graph, "--json", "--out", "r", "--placement", placement, *words)
    return net.flowrl("run", *words, *rendezvous, cwd=folder), a, b


def ended(process: Run) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=SOON_S)
    return process.returncode, out, err


def summary_of(run: Run) -> dict[str, Any]:
    code, out, err = ended(run)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_processes_of_one_machine_have_its_id_and_other_machines_have_others(net: Network) -> None:
    ids = {}
    for machine in MACHINES:
        with net.entered(machine):
            ids[machine] = machine_id()
    show = "from flowrl.machine.network_address import machine_id as m; print(m())"
    words = [*net.enter("a"), sys.executable, "-c", show]
    other = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    assert other == ids["a"]
    assert len({machine_id(), *ids.values()}) == 1 + len(MACHINES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "placement",
    [
        "collector=a,learner=b",
        pytest.param("collector=?,learner=process", marks=pytest.mark.slow),
    ],
)
def test_two_hosts_give_the_bits_of_one_thread(
    net: Network, placement: str, tmp_path: Path
) -> None:
    sets = {"collector.replicas": 3}
    serial = flowrl.load("cartpole_dqn", sets).run(seed=4, train_iters=30, out=tmp_path / "s")
    words = ("--seed", "4", "--train-iters", "30", "--set", "collector.replicas=3")
    run, a, b = started(net, tmp_path, placement, *words)
    summary = summary_of(run)
    assert summary["digest"] == serial.digest
    assert summary["warnings"] == []
    assert (tmp_path / "r/metrics.jsonl").read_bytes() == (
        tmp_path / "s/metrics.jsonl"
    ).read_bytes()
    assert [ended(host)[0] for host in (a, b)] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "sets",
    [
        {"collector.weights.lag": 1},
        {"collector.weights.dtype": "float16", "buffer.data.compress": "lz4"},
    ],
    ids=["lag", "wire formats"],
)
def test_a_slow_network_changes_no_bits(net: Network, sets: dict[str, Any], tmp_path: Path) -> None:
    """It delays all segments by 20 ms, and stalls one in ten, which later ones overtake."""
    net.slow_down("a", stalled_share=0.1)
    serial = flowrl.load("cartpole_dqn", sets).run(seed=4, train_iters=60, out=tmp_path / "s")
    words = ["--seed", "4", "--train-iters", "60", *(f"--set={k}={v}" for k, v in sets.items())]
    run, a, b = started(net, tmp_path, "collector=a,learner=b", *words)
    summary = summary_of(run)
    assert summary["digest"] == serial.digest
    assert (tmp_path / "r/metrics.jsonl").read_bytes() == (
        tmp_path / "s/metrics.jsonl"
    ).read_bytes()
    assert summary["training_s"] > 8 * 2 * DELAY_S  # of rounds of which each waits for the last
    assert [ended(host)[0] for host in (a, b)] == [0, 0]


@pytest.mark.slow
def test_data_does_not_go_through_the_machine_of_the_run(net: Network, tmp_path: Path) -> None:
    sets = ("--set", "envs.count=64", "--set", "collector.n_sample=6400")
    run, a, b = started(net, tmp_path, SPREAD, "--train-iters", "40", *sets)
    summary_of(run)
    assert [ended(host)[0] for host in (a, b)] == [0, 0]
    between = net.carried_bytes("a")
    assert between > 2_000_000
    assert net.carried_bytes("run") < between / 4


def until_it_learns(folder: Path, run: Run) -> None:
    metrics = folder / "r" / "metrics.jsonl"
    deadline = time.monotonic() + SOON_S
    while not (metrics.exists() and metrics.stat().st_size):
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "words", "sets"),
    [
        ("cartpole_dqn", {"steps": 4000}, {"collector.weights.lag": 2, "collector.replicas": 3}),
        pytest.param(
            "cartpole_dqn_rnd", {"train_iters": 60}, {"collector.weights.lag": 1}, marks=exhaustive
        ),
        pytest.param("cartpole_dqn_demos", {"train_iters": 60}, {}, marks=exhaustive),
        pytest.param(
            "cartpole_ppo", {"train_iters": 6}, {"collector.replicas": 3}, marks=exhaustive
        ),
        ("cartpole_ppo", {}, {}),  # until the verdict
        ("cartpole_ppo_group", {"train_iters": 6}, {"collector.replicas": 2}),
    ],
)
def test_bundled_graphs_give_the_same_files_on_two_hosts(
    net: Network, graph: str, words: dict[str, int], sets: dict[str, int], tmp_path: Path
) -> None:
    serial = flowrl.load(graph, sets).run(seed=1, out=tmp_path / "s", **words)
    arguments = [f"--set={key}={value}" for key, value in sets.items()]
    arguments += [f"--{key.replace('_', '-')}={value}" for key, value in words.items()]
    place = "learner=*" if graph.endswith("_group") else "collector=a,learner=b"
    run, _, _ = started(net, tmp_path, place, "--seed=1", *arguments, graph=graph)
    summary = summary_of(run)
    assert (summary["digest"], summary["status"]) == (serial.digest, serial.status)
    assert (tmp_path / "r/metrics.jsonl").read_bytes() == (
        tmp_path / "s/metrics.jsonl"
    ).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["collector=a,learner=b", SPREAD])
def test_a_cut_cable_ends_the_run_on_both_sides_and_is_named(
    net: Network, placement: str, tmp_path: Path
) -> None:
    run, a, b = started(net, tmp_path, placement, "--set", "evaluator.stop_value=null")
    until_it_learns(tmp_path, run)
    net.cable("a", "down")
    began = time.monotonic()
    code, out, err = ended(run)
    assert time.monotonic() - began < SOON_S
    assert (code, json.loads(out)["status"]) == (1, "failed")
    assert "site 'a:collector' has ended: host 'a' is lost: nothing was heard of it for 8 s" in err
    code, _, err = ended(a)
    assert code == 1
    assert "the run cartpole_dqn is gone" in err
    assert ended(b)[0] == 0
    assert time.monotonic() - began < SOON_S
    assert [net.processes(machine) for machine in MACHINES] == [[], [], []]


@pytest.mark.slow
def test_a_cable_that_is_soon_back_changes_nothing(net: Network, tmp_path: Path) -> None:
    serial = flowrl.load("cartpole_dqn").run(seed=4, train_iters=400, out=tmp_path / "s",
                                             set={"evaluator.stop_value": None})  # fmt: skip
    words = ("--seed", "4", "--train-iters", "400", "--set", "evaluator.stop_value=null")
    run, _, _ = started(net, tmp_path, "collector=a,learner=b", *words)
    until_it_learns(tmp_path, run)
    net.cable("a", "down")
    time.sleep(3)  # the length of the cut is what is tested
    assert run.poll() is None
    net.cable("a", "up")
    assert summary_of(run)["digest"] == serial.digest


@pytest.mark.slow
def test_a_run_that_is_cut_off_from_all_ends_everywhere(net: Network, tmp_path: Path) -> None:
    run, a, b = started(net, tmp_path, SPREAD, "--set", "evaluator.stop_value=null")
    until_it_learns(tmp_path, run)
    net.cable("run", "down")
    assert [ended(process)[0] for process in (run, a, b)] == [1, 1, 1]
    assert [net.processes(machine) for machine in MACHINES] == [[], [], []]
