"""Hosts that are pods: manifests against Kubernetes' own schemas, and runs on an API server that has faults."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flowrl.cluster.join_file import JoinInfo, RunIdentity, parse_join_text
from flowrl.cluster.joined_host import HostError
from flowrl.cluster.kubernetes.api_server import ApiServer
from flowrl.cluster.kubernetes.kubeconfig import find_access
from flowrl.cluster.kubernetes.manifests import RUN_LABEL, job_manifest, secret_manifest
from flowrl.cluster.kubernetes.pods import end_text, pending_text
from flowrl.cluster.launched_hosts import LaunchedHosts
from flowrl.cluster.launcher import HostOrder, LaunchStatus
from flowrl.cluster.launchers.kubernetes import Kubernetes
from flowrl.core.errors import FlowError, GraphError, UsageError
from flowrl.graph.launch import load_launch
from flowrl.graph.model import Limits
from flowrl.runs.run import Run
from tests.cluster.kubernetes_server import DROP, KubernetesServer
from tests.cluster.test_launch import Notes, launched_run
from tests.sites.run_comparison import run_graph

SOON_S = 60.0
JOBS, SECRETS = "/apis/batch/v1/namespaces/team/jobs", "/api/v1/namespaces/team/secrets"
PODS = "/api/v1/namespaces/team/pods"
FULL: dict[str, Any] = {
    "pods": 4, "image": "registry.example/flowrl:1", "namespace": "team", "cpu": 0.5, "memory": "4Gi", "gpus": 1,
    "node_selector": {"disk": "ssd"}, "service_account": "runner", "pull_secret": "registry",
    "labels": {"kueue.x-k8s.io/queue-name": "q"},
    "pod_spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
    "container_spec": {"env": [{"name": "OMP_NUM_THREADS", "value": "1"}]},
}  # fmt: skip


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def order_in(folder: Path, keys: Any = None) -> HostOrder:
    info = JoinInfo("tcp://127.0.0.1:9", RunIdentity("r-1", 0), keys)
    join_file = folder / "kubernetes.join.json"
    options = ("--name", "kubernetes-*", "--within", "0.1s")
    return HostOrder(info, join_file, folder, "kubernetes", "CartPole_dqn-seed0", options)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesServer]:
    monkeypatch.setattr("flowrl.cluster.launchers.kubernetes.POLL_S", 0.0)
    monkeypatch.setattr("flowrl.cluster.kubernetes.api_server.FIRST_WAIT_S", 0.01)
    folder = tmp_path / "cluster"
    folder.mkdir()
    server = KubernetesServer(folder)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig()))
    yield server
    server.close()


class Watched:
    """A launcher that a test watches as the run's thread would."""

    def __init__(self, folder: Path, **params: Any) -> None:
        self.launcher = Kubernetes(**{"image": "an-image", "address": "127.0.0.1", **params})
        self.order = order_in(folder)
        self.news: list[str] = []
        self.status = LaunchStatus()

    def start(self) -> Watched:
        self.launcher.start(self.order)
        return self

    def look(self) -> LaunchStatus:
        self.status = self.launcher.watch()
        self.news += self.status.news
        return self.status


# manifests


def test_manifests_are_valid_for_all_versions_of_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    versions = {tuple(map(int, v.split(".")[:2])) for v in validate.utils.all_versions()}
    order, full, least = (
        order_in(Path("/tmp")),
        Kubernetes(**FULL).config,
        Kubernetes(image="an-image").config,
    )
    for version in sorted(v for v in versions if v >= (1, 24)):
        validate.validate(
            job_manifest(full, order, "j", version), "{}.{}".format(*version), strict=True
        )
    newest = validate.latest_version()
    validate.validate(job_manifest(least, order, "j"), newest, strict=True)
    secret = secret_manifest(full, order, "j", {"metadata": {"uid": "u"}})
    validate.validate(secret, newest, strict=True)


def test_the_rights_of_the_page_are_valid_and_enough() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    page = (Path(__file__).parents[2] / "docs/clusters.md").read_text(encoding="utf-8")
    [text] = re.findall(r"```yaml\n(# rights\.yaml.*?)```", page, re.S)
    account, role, binding = yaml.safe_load_all(text)
    for manifest in (account, role, binding):
        validate.validate(manifest, validate.latest_version(), strict=True)
    allowed = {(rule["resources"][0], verb) for rule in role["rules"] for verb in rule["verbs"]}
    assert allowed == {
        *[("jobs", verb) for verb in ("create", "get", "patch", "delete")],
        *[("secrets", verb) for verb in ("create", "get", "delete")],
        *[("pods", "list"), ("pods/log", "get")],
    }


def test_fields_that_an_old_server_does_not_know_are_left_out() -> None:
    config, order = Kubernetes(image="an-image", pods=3, restarts=2).config, order_in(Path("/tmp"))
    old, middle, new = (job_manifest(config, order, "j", (1, v))["spec"] for v in (24, 26, 33))
    assert (old["backoffLimit"], "podFailurePolicy" in old) == (6, False)
    assert (middle["backoffLimit"], "podFailurePolicy" in middle) == (6, True)
    assert (new["backoffLimitPerIndex"], new["podReplacementPolicy"]) == (2, "Failed")
    assert "backoffLimit" not in new


def test_what_the_user_says_of_pods_is_in_the_manifest() -> None:
    job = job_manifest(Kubernetes(**FULL).config, order_in(Path("/tmp")), "j")
    spec = job["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert job["metadata"]["namespace"] == "team"
    assert job["metadata"]["labels"]["flowrl/run"] == "CartPole_dqn-seed0"
    assert container["resources"]["limits"] == {
        "cpu": "0.5",
        "memory": "4Gi",
        "nvidia.com/gpu": "1",
    }
    assert container["env"] == [{"name": "OMP_NUM_THREADS", "value": "1"}]
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert spec["nodeSelector"] == {"disk": "ssd"}


def test_the_key_is_in_the_secret_only(tmp_path: Path) -> None:
    from flowrl.channels.keys import read_key, write_key

    write_key(tmp_path / "key")
    order = order_in(tmp_path, read_key(tmp_path / "key"))
    config = Kubernetes(image="an-image").config
    job, secret = job_manifest(config, order, "j"), secret_manifest(config, order, "j")
    key = order.info.keys.secret.decode() if order.info.keys else ""
    assert key not in json.dumps(job)
    assert parse_join_text(secret["stringData"][order.join_file.name], "").keys == order.info.keys


def test_manifests_can_be_written_instead(tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    launcher = Kubernetes(image="an-image", write=str(folder), version="1.27")
    launcher.start(order_in(tmp_path))
    secret = folder / "secret.yaml"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    job = yaml.safe_load((folder / "job.yaml").read_text())
    assert (job["spec"]["suspend"], job["spec"]["backoffLimit"]) == (False, 6)
    assert job["metadata"]["name"] == yaml.safe_load(secret.read_text())["metadata"]["name"]
    assert launcher.watch().waiting == f"its manifests are written; kubectl apply -f {folder}"
    launcher.end()
    assert not secret.exists()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("{type: kubernetes}", "missing required parameter 'image'"),
        ("{type: kubernetes, image: i, memory: lots}", "--launch.memory is 'lots'; expected memory of each pod"),
        ("{type: kubernetes, image: i, cpu: many}", "--launch.cpu: 'many' is no number of cores"),
        ("{type: kubernetes, image: i, version: '2'}", "--launch.version is '2'; expected with `write`"),
        ("{type: kubernetes, image: i, node_selector: [a]}", "--launch.node_selector"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(given: str, text: str) -> None:
    with pytest.raises(GraphError) as error:
        load_launch(given)
    assert text in str(error.value)


# access


def kubeconfig(
    monkeypatch: pytest.MonkeyPatch, path: Path, user: Any = None, **cluster: Any
) -> None:
    found = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(found))
    monkeypatch.setenv("KUBECONFIG", str(path))


def test_a_command_of_the_kubeconfig_logs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = tmp_path / "login"
    plugin.write_text(
        '#!/bin/sh\nprintf \'{"status": {"token": "%s", "expirationTimestamp": "2020-01-01T00:00:00Z"}}\' "$1$WHO"\n'
    )
    plugin.chmod(0o700)
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./login", "args": ["for-"],
               "env": [{"name": "WHO", "value": "me"}]}  # fmt: skip
    kubeconfig(monkeypatch, tmp_path / "config", {"exec": command})
    login = find_access(None).log_in()
    assert (login.token, login.is_valid) == ("for-me", False)
    plugin.write_text("#!/bin/sh\necho expired >&2; exit 1\n")
    with pytest.raises(FlowError, match="login failed: expired"):
        find_access(None).log_in()


def test_the_certificate_and_the_token_of_a_kubeconfig_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
         "-keyout", "key.pem", "-out", "me.pem", "-subj", "/CN=me"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    user = {"client-certificate": "me.pem", "client-key": "key.pem"}
    kubeconfig(monkeypatch, tmp_path / "config", user, **{"certificate-authority": "me.pem"})
    access = find_access(None)
    assert access.tls(access.log_in()).cert_store_stats()["x509"] == 1
    (tmp_path / "token").write_text("one\n")
    kubeconfig(monkeypatch, tmp_path / "config", {"tokenFile": "token"})
    access = find_access(None)
    assert access.log_in().token == "one"
    (tmp_path / "token").write_text("two\n")
    assert access.log_in().token == "two"


def test_a_pod_uses_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"there is no kubeconfig .* and this is no pod"):
        find_access(None)
    monkeypatch.setattr("flowrl.cluster.kubernetes.kubeconfig.SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    for name, text in {"token": "t", "namespace": "team", "ca.crt": ""}.items():
        (tmp_path / name).write_text(text)
    access = find_access(None)
    assert (access.server, access.namespace, access.log_in().token) == (
        "https://[fd00::1]:443",
        "team",
        "t",
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"user": {"auth-provider": {"name": "gcp"}}}, "'auth-provider' is not supported; kubectl has removed it"),
        ({"tls-server-name": "x"}, "'tls-server-name' is not supported"),
    ],
)  # fmt: skip
def test_unsupported_kubeconfigs_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, text: str
) -> None:
    kubeconfig(monkeypatch, tmp_path / "config", **change)
    with pytest.raises(UsageError, match=text):
        find_access(None)
    with pytest.raises(UsageError, match="there is no 'b' among its contexts; it has: a"):
        find_access("b")


def test_pods_reach_the_run_at_its_address_towards_the_server(
    server: KubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        UsageError, match=r"is on this machine's loopback interface.*give `address`"
    ):
        Kubernetes(image="i").machine_of_run()
    assert Kubernetes(image="i", address="head").machine_of_run() == "head"
    monkeypatch.setattr(
        "flowrl.cluster.launchers.kubernetes.local_address_towards", lambda _: "10.1.1.1"
    )
    assert Kubernetes(image="i").machine_of_run() == "10.1.1.1"


# requests


def test_requests_are_made_again_and_an_answer_that_was_lost_creates_nothing_twice(
    tmp_path: Path, server: KubernetesServer
) -> None:
    server.pending = {"phase": "Pending"}
    server.faults = [
        ("GET /version", 503, {}),
        (f"POST {JOBS}", 429, {"message": "too many requests"}),
        (f"POST {JOBS}", 409, {"reason": "Conflict", "message": "the quota has been modified"}),
        (f"POST {SECRETS}", DROP, {}),
    ]
    server.lost_answers = [f"POST {JOBS}"]
    watched = Watched(tmp_path).start()
    assert len(server.jobs) == len(server.secrets) == 1
    assert watched.look().waiting == "waiting for 2 pods: being created"
    server.faults = [(f"GET {PODS}", 410, {"reason": "Expired"}), (f"GET {JOBS}", DROP, {})]
    until(lambda: watched.look() and not server.faults)
    until(lambda: watched.look() and not watched.launcher._is_silent)
    assert len(watched.news) in (1, 2)  # two, if an answer came between both faults
    assert "trying again, and its hosts go on" in watched.news[0]
    server.faults = [(f"DELETE {JOBS}", 500, {}), (f"DELETE {SECRETS}", DROP, {})]
    watched.launcher.end()
    assert not server.jobs
    assert not server.secrets
    assert not server.pods


def test_a_refusal_ends_the_start_with_its_reason(tmp_path: Path, server: KubernetesServer) -> None:
    with pytest.raises(FlowError, match=r"jobs is forbidden in other; the rights .* \(403\)"):
        Watched(tmp_path, namespace="other").start()
    assert not server.jobs


def test_a_job_whose_secret_is_refused_never_has_a_pod(
    tmp_path: Path, server: KubernetesServer
) -> None:
    server.faults = [(f"POST {SECRETS}", 422, {"message": "no"})]
    watched = Watched(tmp_path)
    with pytest.raises(FlowError, match="no"):
        watched.start()
    assert [job["spec"]["suspend"] for job in server.jobs.values()] == [True]
    watched.launcher.end()
    assert not server.jobs


def test_an_end_that_fails_is_told(tmp_path: Path, server: KubernetesServer) -> None:
    server.pending = {"phase": "Pending"}
    launcher = Kubernetes(image="i", address="127.0.0.1")
    hosts = LaunchedHosts({"k": (launcher, order_in(tmp_path))})
    until(lambda: server.pods)
    server.faults = [(f"DELETE {JOBS}", 403, {"message": "not allowed"})]
    hosts.end()
    assert "launch k: what it has started may be left" in hosts.take_news()[-1]


# pods


def waits(reason: str) -> dict[str, Any]:
    waiting = {"reason": reason, "message": "registry.example:\n not found"}
    return {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}


def test_pods_that_wait_say_why_and_an_image_that_never_comes_is_a_failure(
    tmp_path: Path, server: KubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "0/3 nodes are available: 3 Insufficient cpu."
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": text,
    }
    server.pending = {"phase": "Pending", "conditions": [condition]}
    watched = Watched(tmp_path).start()
    assert watched.look().waiting == f"waiting for 2 pods: Unschedulable: {text}"
    for pod in server.pods.values():
        pod.status = waits("ImagePullBackOff")
    assert (
        watched.look().waiting
        == "waiting for 2 pods: ImagePullBackOff: registry.example: not found"
    )
    assert not watched.status.failure
    monkeypatch.setattr("flowrl.cluster.launchers.kubernetes.IMAGE_TIMEOUT_S", 0.0)
    assert "has no image: ImagePullBackOff: registry.example: not found" in watched.look().failure
    watched.launcher.end()


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
         "was evicted (PreemptionByScheduler)"),
        ({"reason": "Evicted", "message": "low on memory"}, "failed (Evicted: low on memory)"),
        ({"containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
         "was killed by SIGKILL (OOMKilled)"),
        ({"containerStatuses": [{"state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]}, "ended with status 1"),
        ({}, "failed"),
    ],
)  # fmt: skip
def test_the_end_of_a_pod_is_told(status: Any, text: str) -> None:
    assert end_text({"metadata": {}, "status": {"phase": "Failed", **status}}) == text


def test_pods_that_are_not_created_yet_are_waited_for() -> None:
    running = {"metadata": {}, "status": {"phase": "Running"}}
    assert pending_text([running], 3) == "waiting for 2 pods: not created yet"
    assert not pending_text([running, running], 2)


@pytest.mark.slow
def test_hosts_that_cannot_join_end_the_job_with_their_last_line(
    tmp_path: Path, server: KubernetesServer
) -> None:
    watched = Watched(tmp_path, pods=1, restarts=0).start()
    deadline = time.monotonic() + 60
    while not watched.look().failure:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert (
        "has failed: Job has failed indexes; the last end: pod flowrl-cartpole"
        in watched.status.failure
    )
    assert (
        "ended with status 1 (flowrl: 127.0.0.1:9: no run was there"
        in watched.status.failure.replace("tcp://", "")
    )
    assert "waiting for a run" in (tmp_path / "kubernetes.pods.log").read_text()
    watched.launcher.end()


# runs


def graph_of(name: str) -> dict[str, Any]:
    return {"extends": name, "nodes": {"collector": {"replicas": 2}}, "snapshots": {"every_s": 0.5}}


def run_on_pods(graph: Any, tmp_path: Path, notes: Notes, iters: int, **settings: Any) -> Run:
    launch = {
        "type": "kubernetes",
        "image": "an-image",
        "address": "127.0.0.1",
        "label": "pod",
        **settings,
    }
    return launched_run(
        graph, tmp_path / "run", notes, launch, placement="collector=pod-*", limits=Limits(train_iters=iters)
    )  # fmt: skip


def assert_nothing_is_left(server: KubernetesServer) -> None:
    assert not server.jobs
    assert not server.secrets
    assert not server.alive()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "iters"), [("cartpole_dqn", 60), ("cartpole_ppo", 4)])
def test_a_run_on_pods_has_the_bits_of_serial(
    tmp_path: Path, server: KubernetesServer, name: str, iters: int
) -> None:
    serial = run_graph(graph_of(name), "serial", tmp_path / "s", train_iters=iters)
    assert run_on_pods(graph_of(name), tmp_path, Notes(), iters).run().digest == serial["digest"]
    assert_nothing_is_left(server)
    assert "joined the run" in (tmp_path / "run" / "hosts" / "pod.pods.log").read_text()


@pytest.mark.slow
def test_a_run_survives_an_evicted_pod_a_second_pod_of_an_index_and_a_deaf_server(
    tmp_path: Path, server: KubernetesServer
) -> None:
    graph = graph_of("cartpole_dqn")
    serial = run_graph(graph, "serial", tmp_path / "s", train_iters=150)

    def disturb(run: Run) -> None:
        first, second = server.alive()
        server.add_second_pod(second)
        server.evict(first)
        server.faults = [(f"GET {JOBS}", 503, {})] * 3

    notes = Notes(40, disturb)
    assert run_on_pods(graph, tmp_path, notes, 150).run().digest == serial["digest"]
    assert_nothing_is_left(server)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_waits_for_a_pod_until_the_server_is_back_that_was_down(
    tmp_path: Path, server: KubernetesServer
) -> None:
    graph = graph_of("cartpole_dqn")
    serial = run_graph(graph, "serial", tmp_path / "s", train_iters=150)

    class WhileServerIsDown(Notes):
        """A pod fails. The server comes back when the launcher has noticed that it was down."""

        def note(self, run: Run, text: str) -> None:
            super().note(run, text)
            if "trying again, and its hosts go on" in text:
                server.come_up()

    def disturb(run: Run) -> None:
        server.go_down()
        server.alive()[0].kill()

    notes = WhileServerIsDown(40, disturb)
    result = run_on_pods(graph, tmp_path, notes, 150).run()
    assert (result.digest, result.recoveries) == (serial["digest"], 1)
    assert any("was killed by SIGKILL" in note for note in notes.notes)
    assert_nothing_is_left(server)


def delete_by_request(out: Path) -> None:
    api = ApiServer(find_access(None), "team")
    [job] = api.list("jobs", f"{RUN_LABEL}={out.name}")
    api.delete("jobs", job["metadata"]["name"])


def delete_by_kubectl(out: Path) -> None:
    assert "deleted" in kubectl("delete", "job", "-l", f"{RUN_LABEL}={out.name}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "delete",
    [delete_by_request, pytest.param(delete_by_kubectl, marks=pytest.mark.needs("kubectl"))],
)
def test_a_job_that_is_deleted_ends_the_run_with_the_cause(
    delete: Callable[[Path], None], tmp_path: Path, server: KubernetesServer
) -> None:
    notes = Notes(30, lambda run: delete(Path(run.run_dir)))
    with pytest.raises((HostError, FlowError), match=r"the Job .* is gone; it was not this run"):
        run_on_pods(graph_of("cartpole_dqn"), tmp_path, notes, 2000).run()
    assert_nothing_is_left(server)


# kubectl


def kubectl(*words: str) -> str:
    """What kubectl prints. It finds the server by the kubeconfig that the environment names."""
    home = Path(os.environ["KUBECONFIG"]).parent  # for its cache
    done = subprocess.run(
        ["kubectl", *words],
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=SOON_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Applying(Notes):
    """A user who does what the run says."""

    def note(self, run: Run, text: str) -> None:
        super().note(run, text)
        if found := re.search("; kubectl (apply .*)", text):
            created = kubectl(*found[1].split())
            assert [line.partition("/")[0] for line in created.splitlines()] == [
                "job.batch",
                "secret",
            ]


@pytest.mark.slow
@pytest.mark.needs("kubectl")
def test_a_run_on_pods_of_manifests_that_kubectl_applies_has_the_bits_of_serial(
    tmp_path: Path, server: KubernetesServer
) -> None:
    """A server from Kubernetes 1.25 on refuses unknown fields of what kubectl applies."""
    graph, notes, manifests = graph_of("cartpole_dqn"), Applying(), tmp_path / "manifests"
    serial = run_graph(graph, "serial", tmp_path / "s", train_iters=60)
    run = run_on_pods(graph, tmp_path, notes, 60, write=str(manifests))
    assert run.run().digest == serial["digest"]
    until(lambda: not server.alive())
    assert [*server.jobs] == [*server.secrets] != []
    assert "deleted" in kubectl("delete", "-f", str(manifests / "job.yaml"))
    assert "deleted" in kubectl("delete", "secret", "-l", f"{RUN_LABEL}=run")
    assert_nothing_is_left(server)
