"""Runs over several hosts, all on the loopback interface: they give the same bits, and end in bounded time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import flowrl
from flowrl.channels.keys import write_key
from flowrl.cluster.joined_host import HostError
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.records import Record
from flowrl.graph.model import Limits
from flowrl.runs.run import Run
from flowrl.runtime.records import RecordSource
from flowrl.runtime.sites.coordinator import Coordinator
from flowrl.runtime.sites.site_failures import SiteLost
from tests.channels.hostile_peers import announce_frame, connect, greet, is_closed
from tests.cluster.host_processes import ANYWHERE, SOON_S, HostStarter, host, hosts_named, run_of
from tests.sites.run_comparison import read_results, run_graph
from tests.sites.test_same_bits import HALF, with_fractions
from tests.toys.toy_runs import toy_graph

BASIC = toy_graph({"c": "Source", "l": "Learner"}, ["c -> l", "l.weights -> c.weights"])
EVALUATED = toy_graph(
    {"c": {"type": "Source", "replicas": 3}, "r": "Relay", "l": "Learner", "e": "Evaluator"},
    [
        {"c -> r": {"dtype": "float16"}},
        {"r -> l": {"compress": "lz4"}},
        {"l.weights -> c.weights": {"lag": 1, "dtype": "float16", "compress": "lz4"}},
        {"l.weights -> e": {"every": 2, "compress": "lz4"}},
    ],
)


@pytest.mark.parametrize(
    ("placement", "hosts"),
    [
        ("c=a,l=b", ["a", "b"]),  # one edge goes from host to host
        # replicas are distributed; there are also processes on the run's machine
        ("c=a-*,e=a-2,r=process", ["a-1", "a-2"]),
        # one site for all
        pytest.param("c=a:x,r=a:x,l=thread,e=a:x", ["a"], marks=pytest.mark.slow),
        # no site on the run's machine
        pytest.param("c=a,r=a,l=a,e=a", ["a"], marks=pytest.mark.slow),
    ],
)
def test_the_result_is_the_same_on_hosts(placement: str, hosts: list[str], tmp_path: Path) -> None:
    serial = run_graph(EVALUATED, "serial", tmp_path / "serial", train_iters=8)
    with hosts_named(*hosts) as watcher:
        run_of(EVALUATED, placement, tmp_path / "r", watcher, train_iters=8).run()
        outcomes = watcher.wait()
    assert read_results(tmp_path / "r") == serial
    assert [code for code, _ in outcomes] == [0] * len(hosts)
    assert all(
        "the run graph is over: 8 train iterations were asked for" in out for _, out in outcomes
    )


@pytest.mark.slow
# With ':x', replicas 0 and 2 are one site.
@pytest.mark.parametrize("placement", ["l=a-*", "c=process,l=a-*:x"])
def test_a_group_has_equal_results_on_hosts(placement: str, tmp_path: Path) -> None:
    group = toy_graph(
        {"c": "Source", "w": "Widener", "l": {"type": "GroupLearner", "replicas": 3}},
        ["c -> w -> l", {"l.weights -> c.weights": {"lag": 1}}],
    )
    serial = run_graph(group, "serial", tmp_path / "serial", train_iters=8)
    with hosts_named("a-1", "a-2") as watcher:
        run_of(group, placement, tmp_path / "r", watcher, train_iters=8).run()
        watcher.wait()
    assert read_results(tmp_path / "r") == serial


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
def test_rounded_and_compressed_edges_have_equal_results_on_hosts(lag: int, tmp_path: Path) -> None:
    compress = {"compress": "lz4"}
    graph = with_fractions({**HALF, **compress}, {**HALF, **compress}, HALF, lag=lag)
    serial = run_graph(graph, "serial", tmp_path / "serial", train_iters=40)
    with hosts_named("a", "b") as watcher:
        result = run_of(graph, "c=a,l=b,e=a", tmp_path / "r", watcher, train_iters=40).run()
        watcher.wait()
    assert read_results(tmp_path / "r") == serial
    edges = ["c.data -> l.data", "l.weights -> c.weights", "l.weights -> e.weights"]
    assert list(result.network_bytes) == edges
    assert all(counted["sent"] > 0 for counted in result.network_bytes.values())
    assert "c.data -> l.data: " in str(result)


@pytest.mark.slow
def test_a_bundled_graph_has_equal_results_through_fewer_bytes(tmp_path: Path) -> None:
    """Its tokens are larger than what is never compressed, and its states have several arrays."""
    sets = {"buffer.data.compress": "lz4", "collector.weights.dtype": "float16"}
    serial = flowrl.load("cartpole_dqn", sets).run(train_iters=60, out=tmp_path / "s", quiet=True)
    with hosts_named("a", "b") as watcher:
        run = Run(
            flowrl.load("cartpole_dqn", sets).check(),
            placement="collector=a,learner=b",
            out=tmp_path / "r",
            limits=Limits(train_iters=60),
            rendezvous=Rendezvous(ANYWHERE, within_s=SOON_S),
            watcher=watcher,
        )
        result = run.run()
        watcher.wait()
    assert result.digest == serial.digest
    rows, weights = (
        result.network_bytes[f"{source} -> {to}"]
        for source, to in (
            ("collector.data", "buffer.data"),
            ("learner.weights", "collector.weights"),
        )
    )
    assert rows["sent"] < 0.7 * rows["tokens"]
    assert weights["sent"] < 0.55 * weights["tokens"]


@pytest.mark.slow
def test_a_label_and_a_pattern_name_hosts_too(tmp_path: Path) -> None:
    with HostStarter(
        ("--name", "a", "--label", "gpu"), ("--name", "b", "--label", "cpu")
    ) as watcher:
        run = run_of(BASIC, "l=gpu,c=c?u", tmp_path / "r", watcher, train_iters=2)
        run.run()
    assert dict(run.sites.layout.site_of) == {("c", 0): "b:c", ("l", 0): "a:l"}
    hosts = json.loads((tmp_path / "r" / "environment.json").read_text())["hosts"]
    assert {name: host["labels"] for name, host in hosts.items()} == {"a": ["gpu"], "b": ["cpu"]}
    assert hosts["a"]["cpu"] == run.sites.hosts.machine_facts["cpu"]  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_run_waits_for_as_many_hosts_as_it_requires(tmp_path: Path) -> None:
    with hosts_named("a-1", "a-2", "a-3") as watcher:
        run = run_of(
            EVALUATED,
            "c=a-*",
            tmp_path / "r",
            watcher,
            Rendezvous(ANYWHERE, hosts=3, within_s=SOON_S),
            train_iters=2,
        )
        run.run()
    assert sorted(set(run.sites.layout.hosts.values())) == ["a-1", "a-2", "a-3"]


class OneByOneStarter(HostStarter):
    """Starts each host when those before it have ended."""

    def note(self, run: Run, text: str) -> None:
        if text.startswith("waiting for hosts"):
            address = text.split()[-1]
            for words in self.offers:
                for process in self.processes:
                    process.wait(SOON_S)
                self.processes.append(host(address, *words))


@pytest.mark.slow
def test_only_hosts_with_the_key_of_the_run_can_join(tmp_path: Path) -> None:
    for name in ("key", "other"):
        write_key(tmp_path / name)
    key, other = (("--key", str(tmp_path / name)) for name in ("key", "other"))
    serial = run_graph(BASIC, "serial", tmp_path / "serial", train_iters=3)
    offers = [("--name", "b", *other), ("--name", "d"), ("--name", "a", *key)]
    with OneByOneStarter(*offers) as watcher:
        rendezvous = Rendezvous(ANYWHERE, tmp_path / "key", within_s=SOON_S)
        result = run_of(BASIC, "c=a", tmp_path / "r", watcher, rendezvous, train_iters=3).run()
        outcomes = watcher.wait()
    assert [code for code, _ in outcomes] == [1, 1, 0]
    assert "the run has another key, or none" in outcomes[0][1]
    assert "the run requires a key; give it with --key FILE" in outcomes[1][1]
    assert any("a connection without the run's key" in line for line in result.warnings)
    assert result.digest == serial["digest"]


class Attacker(HostStarter):
    """Announces a large frame at the port of every site and of the run, without a key, at the first record."""

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        if self.closed:
            return
        assert isinstance(run.executor, Coordinator)
        for port in run.executor.sites._addresses.ports.values():
            with connect(f"tcp://127.0.0.1:{port}") as stranger:
                greet(stranger, b"CURVE")
                announce_frame(stranger, 1 << 30)
                self.closed.append(is_closed(stranger))

    def __init__(self, *offers: Sequence[str]) -> None:
        super().__init__(*offers)
        self.closed: list[bool] = []


@pytest.mark.slow
def test_connections_that_a_site_has_refused_are_in_the_summary(tmp_path: Path) -> None:
    serial = run_graph(BASIC, "serial", tmp_path / "serial", train_iters=200)
    with Attacker(("--name", "a")) as watcher:
        result = run_of(BASIC, "c=a", tmp_path / "r", watcher, train_iters=200).run()
    assert watcher.closed == [True, True, True]  # the ports of the coordinator, of main and of a:c
    assert set(result.warnings) == {
        f"refused by site '{site}': handshake (1 times)" for site in ("coordinator", "main", "a:c")
    }
    assert result.digest == serial["digest"]


# what goes wrong


def failure(run: Run, kind: type[Exception]) -> str:
    """The error of a run, which is also in its summary."""
    with pytest.raises(kind) as error:
        run.run()
    assert run.folder is not None
    summary = json.loads((run.folder.path / "summary.json").read_text())
    assert (summary["status"], summary["why"]) == ("failed", str(error.value))
    return str(error.value)


def test_a_host_with_other_versions_is_refused_at_both_ends(tmp_path: Path) -> None:
    older = "import flowrl.cluster.compatibility as l; l.VERSION = '0.0.1'"
    with hosts_named("a", code=older) as watcher:
        error = failure(run_of(BASIC, "c=a", tmp_path / "r", watcher), HostError)
        [(code, out)] = watcher.wait()
    assert "host 'a' cannot take part: it has flowrl 0.0.1, and the run has " in error
    assert code == 1
    assert "refuses this host: it has flowrl 0.0.1, and the run has " in out


@pytest.mark.slow
def test_the_summary_warns_of_hosts_that_differ(tmp_path: Path) -> None:
    other = "import flowrl.cluster.compatibility as l; l.cpu_name = lambda: 'Abacus 3000'"
    with hosts_named("a", code=other) as watcher:
        result = run_of(BASIC, "c=a", tmp_path / "r", watcher, train_iters=2).run()
    [warning] = result.warnings
    assert warning.startswith("host 'a' has another CPU (Abacus 3000; the run has ")


class HostKiller(HostStarter):
    """Kills the first host as soon as a node has emitted a record."""

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        if not self.killed:
            self.killed = True
            self.kill(self.processes[0].pid)

    killed = False

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_host_that_dies_ends_the_run_and_is_named(tmp_path: Path) -> None:
    with HostKiller(("--name", "a"), ("--name", "b")) as watcher:
        error = failure(run_of(BASIC, "c=a,l=b", tmp_path / "r", watcher), SiteLost)
        codes = [process.wait(SOON_S) for process in watcher.processes]
    assert error == "site 'a:c' has ended: host 'a' is lost: its connection is closed"
    assert codes == [-signal.SIGKILL, 0]


class SiteKiller(HostKiller):
    """Kills the sites of the first host."""

    def kill(self, pid: int) -> None:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.slow
def test_a_site_that_dies_on_a_host_ends_the_run_and_is_named(tmp_path: Path) -> None:
    with SiteKiller(("--name", "a"), ("--name", "b")) as watcher:
        error = failure(run_of(BASIC, "c=a,l=b", tmp_path / "r", watcher), SiteLost)
        codes = [process.wait(SOON_S) for process in watcher.processes]
    assert error == "site 'a:c' has ended: its process was killed by SIGKILL, on host 'a'"
    assert codes == [0, 0]


class SiteStopper(HostKiller):
    """Stops the sites of the first host as Ctrl-Z does."""

    def kill(self, pid: int) -> None:
        for child in children(pid):
            os.kill(child, signal.SIGSTOP)


@pytest.mark.slow
def test_a_stopped_site_on_a_host_is_warned_of_and_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.runtime.sites.silence_watch.WARN_S", 2.0)
    monkeypatch.setattr("flowrl.runtime.sites.silence_watch.END_S", 6.0)
    with SiteStopper(("--name", "a"), ("--name", "b")) as watcher:
        said = failure(run_of(BASIC, "c=a,l=b", tmp_path / "r", watcher), SiteLost)
        codes = [process.wait(SOON_S) for process in watcher.processes]
    assert said.startswith("site 'a:c': nothing was heard of it for 6 s; its process is stopped")
    assert any(note.startswith("site 'a:c': nothing was heard of") for note in watcher.notes)
    assert codes == [0, 0]


@pytest.mark.slow
def test_a_run_that_dies_ends_its_hosts(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text(json.dumps(BASIC))
    words = ["run", "g.yaml", "--placement", "c=a", "--listen", "tcp://127.0.0.1:*", "--out", "r"]
    run = subprocess.Popen(
        [sys.executable, "-m", "flowrl", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.stdout is not None
    waiting = next(line for line in run.stdout if line.startswith("waiting for hosts"))
    there = host(waiting.split()[-1], "--name", "a")
    try:
        assert there.stdout is not None
        lines = []
        while not lines or not lines[-1].startswith("at work"):
            lines.append(there.stdout.readline())
            assert lines[-1], lines
        [server] = children(there.pid)
        run.kill()
        out = there.communicate(timeout=SOON_S)[0]
    finally:
        run.kill()
        run.communicate()
        there.kill()
    assert there.returncode == 1
    assert "flowrl: the run g is gone: the connection to tcp://127.0.0.1:" in out
    assert not Path(f"/proc/{server}").exists()


def children(pid: int) -> list[int]:
    """The child processes of a process."""
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# the files that a host is sent

PROJECT = {
    "sent_along.py": "import neighbour\nfrom flowrl import Batch\nimport flowrl\n\n\n"
    "@flowrl.as_node\ndef passes(data: Batch) -> Batch:\n    import lazily\n"
    "    print('from', lazily.NAME, flush=True)\n    return neighbour.same(data)\n",
    "neighbour/__init__.py": "from neighbour.inner import same\n",
    "neighbour/inner.py": "def same(data):\n    return data\n",
    "lazily.py": "NAME = 'the host'\n",
    "unused.py": "raise SystemExit('nothing imports this')\n",
    "g.yaml": "extends: cartpole_dqn_demos\nnodes:\n  mine: {type: 'sent_along:passes'}\n"
    "edges:\n  - collector -> mine -> buffer\n",
}


def project(folder: Path) -> Path:
    """A graph with modules beside it, and a file that it names."""
    for name, text in PROJECT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "g.yaml"


@pytest.mark.slow
def test_modules_beside_the_graph_are_sent_to_hosts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    graph = project(tmp_path / "project")
    there = tmp_path / "there"
    there.mkdir()
    serial = flowrl.load(graph).run(out=tmp_path / "s", train_iters=5)
    capfd.readouterr()
    with hosts_named("a", cwd=there) as watcher:
        result = run_of(
            graph, "collector=a,mine=a,demos=a", tmp_path / "r", watcher, train_iters=5
        ).run()
        [(_, out)] = watcher.wait()
    assert result.digest == serial.digest
    assert "[a] from the host" in capfd.readouterr().err
    assert "from the host" in out
    assert not list(there.iterdir())


@pytest.mark.slow
def test_a_type_that_is_missing_on_a_host_is_an_error_that_names_the_host(tmp_path: Path) -> None:
    folder = tmp_path / "only_here"
    folder.mkdir()
    (folder / "installed_here.py").write_text(PROJECT["sent_along.py"].replace("import neighbour", "")
                                              .replace("neighbour.same(data)", "data"))  # fmt: skip
    graph = toy_graph({"c": "Source", "l": "Learner"}, ["c -> m -> l"])
    graph["nodes"]["m"] = {"type": "installed_here:passes"}
    sys.path.append(str(folder))
    try:
        with hosts_named("a") as watcher:
            error = failure(run_of(graph, "c=a", tmp_path / "r", watcher, train_iters=3), SiteLost)
    finally:
        sys.path.remove(str(folder))
    assert error.startswith(
        "site 'a:c' has ended: GraphMismatch: this host reads the graph differently"
    )
    assert "node 'm'" in error
    assert "there is no module 'installed_here'" in error
    assert error.endswith("on host 'a'")
