"""A Kubernetes API server for tests, whose pods are processes of this machine. It can fail as real ones do.

It does what the Job controller and the kubelets of its nodes would, whenever a request comes, and validates objects by
Kubernetes' own schemas. It speaks TLS, since `kubectl` sends its token over nothing else.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

TOKEN = "a-token"
PATHS = re.compile(
    r"/(?:api|apis/batch)/v1/namespaces/(?P<ns>[^/]+)/(?P<kind>\w+)(?:/(?P<name>[^/]+))?(?P<log>/log)?"
)
ADDRESS = "127.0.0.1"
KINDS = {"jobs": ("batch/v1", "Job"), "secrets": ("v1", "Secret"), "pods": ("v1", "Pod")}


def _resources(version: str, *plurals: str) -> dict[str, Any]:
    verbs = ["create", "delete", "get", "list", "patch"]
    resources = [
        {
            "name": plural,
            "singularName": "",
            "namespaced": True,
            "kind": KINDS[plural][1],
            "verbs": verbs,
        }
        for plural in plurals
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": resources,
    }


def _validated_patches(group: str, plural: str, kind: str) -> dict[str, Any]:
    """The part of a server's OpenAPI document by which kubectl sees that the server validates fields."""
    root = f"/apis/{group}/v1" if group else "/api/v1"
    patch = {
        "parameters": [{"name": "fieldValidation", "in": "query"}],
        "x-kubernetes-group-version-kind": {"group": group, "version": "v1", "kind": kind},
        "responses": {},
    }
    path = f"{root}/namespaces/{{namespace}}/{plural}/{{name}}"
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1"},
        "paths": {path: {"patch": patch}},
    }


def _protobuf(*fields: tuple[int, str | bytes]) -> bytes:
    """A message of protobuf with these fields, which are texts or messages of less than 16 KB."""
    found = b""
    for number, value in fields:
        data = value.encode() if isinstance(value, str) else value
        head = number << 3 | 2  # two bytes if the number is above 15, as the length always is
        found += bytes([head] if head < 128 else [head & 127 | 128, head >> 7])
        found += bytes([len(data) & 127 | 128, len(data) >> 7]) + data
    return found


def _any_fields() -> bytes:
    """An OpenAPI document in which objects may have any fields. kubectl before 1.25 validates by it."""
    schemas = []
    for version, kind in KINDS.values():
        group, _, number = version.rpartition("/")
        named = json.dumps([{"group": group, "version": number, "kind": kind}])
        extension = _protobuf((1, "x-kubernetes-group-version-kind"), (2, _protobuf((2, named))))
        schemas.append((1, _protobuf((1, kind), (2, _protobuf((31, extension))))))
    info = _protobuf((1, "Kubernetes"), (2, "v1"))
    return _protobuf((1, "2.0"), (2, info), (8, b""), (9, _protobuf(*schemas)))


# What a server says of itself, by path: the kinds that it has, and that it validates the fields of new objects.
DISCOVERY: Mapping[str, Any] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [{"name": "batch", "versions": [{"groupVersion": "batch/v1", "version": "v1"}]}],
    },
    "/api/v1": _resources("v1", "secrets", "pods"),
    "/apis/batch/v1": _resources("batch/v1", "jobs"),
    "/openapi/v2": _any_fields(),
    "/openapi/v3": {
        "paths": {
            path: {"serverRelativeURL": f"/openapi/v3/{path}"}
            for path in ("api/v1", "apis/batch/v1")
        }
    },
    "/openapi/v3/api/v1": _validated_patches("", "secrets", "Secret"),
    "/openapi/v3/apis/batch/v1": _validated_patches("batch", "jobs", "Job"),
}
DROP = 0  # as the status of a fault: the connection is closed without an answer


@dataclass
class FakePod:
    name: str
    index: int
    job: str
    log: Path
    labels: dict[str, str]
    uid: str
    node: str
    process: subprocess.Popen[bytes] | None = None
    status: dict[str, Any] = field(default_factory=dict)  # instead of that of the process
    is_counted: bool = False
    is_out_of_sight: bool = (
        False  # since its node is cut off, so that its last state is that of before
    )

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def described(self) -> dict[str, Any]:
        metadata = {"name": self.name, "uid": self.uid, "labels": self.labels, "namespace": "team"}
        status = self.status or self._status_of_process()
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}

    def _status_of_process(self) -> dict[str, Any]:
        if self.process is None:
            return {
                "phase": "Pending",
                "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}],
            }
        status = None if self.is_out_of_sight else self.process.poll()
        if status is None:
            return {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
        ended = {"exitCode": 128 - status if status < 0 else status}
        phase = "Succeeded" if status == 0 else "Failed"
        return {"phase": phase, "containerStatuses": [{"state": {"terminated": ended}}]}


ONE_NODE: Mapping[str, Sequence[str]] = {"node": ()}


class KubernetesServer:
    """The server, its objects, and the faults that it is to have."""

    def __init__(self, folder: Path, nodes: Mapping[str, Sequence[str]] = ONE_NODE) -> None:
        """`nodes` are by name the words before a command that is executed there."""
        self.folder, self._nodes = folder, nodes
        self._cut_off: set[str] = set()  # nodes
        self._unwanted: list[FakePod] = []  # on nodes that were cut off when the pods were deleted
        self.jobs: dict[str, dict[str, Any]] = {}
        self.secrets: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, FakePod] = {}
        self.requests: list[str] = []
        # The beginning of a request, and its answer.
        self.faults: list[tuple[str, int, dict[str, Any]]] = []
        self.lost_answers: list[str] = []  # requests that are done, but not answered
        self.pending: dict[str, Any] | None = (
            None  # the status of all new pods, which stay like that
        )
        self.minor = "33"
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        self._http: ThreadingHTTPServer | None = None
        self._port = 0  # any free one
        self._tls = self._certified()
        self.come_up()
        self.url = f"https://{ADDRESS}:{self._port}"

    def _certified(self) -> ssl.SSLContext:
        """Make a certificate, which the kubeconfig names."""
        words = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ]
        words += ["-subj", "/CN=kubernetes", "-addext", f"subjectAltName=IP:{ADDRESS}"]
        words += ["-keyout", "server.key", "-out", "server.crt"]
        subprocess.run(words, cwd=self.folder, check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.crt", self.folder / "server.key")
        return context

    def come_up(self) -> None:
        """Listen, at the same port as before."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                server.handle(self)

            do_GET = do_POST = do_DELETE = do_PATCH = handle_any

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer((ADDRESS, self._port), Handler)
        self._http.socket = self._tls.wrap_socket(self._http.socket, server_side=True)
        self._http.daemon_threads = True
        self._port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def go_down(self) -> None:
        """Refuse all connections. Pods go on, and nothing is done about those that end."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    def close(self) -> None:
        self.go_down()
        for pod in [*self.pods.values(), *self._unwanted]:
            pod.kill()

    def kubeconfig(self) -> Path:
        path = self.folder / "kubeconfig"
        path.write_text(json.dumps({
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me", "namespace": "team"}}],
            "clusters": [{"name": "fake", "cluster": {"server": self.url, "certificate-authority": "server.crt"}}],
            "users": [{"name": "me", "user": {"token": TOKEN}}],
        }))  # fmt: skip
        return path

    # what happens to pods

    def alive(self) -> list[FakePod]:
        return [p for p in self.pods.values() if p.described()["status"]["phase"] == "Running"]

    def processes(self) -> list[int]:
        """The process ids of all pods that are alive, also of those that the server does not see."""
        pods = [*self.pods.values(), *self._unwanted]
        return [p.process.pid for p in pods if p.process is not None and p.process.poll() is None]

    def evict(self, pod: FakePod) -> None:
        with self._lock:
            pod.kill()
            condition = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "EvictionByEvictionAPI",
            }
            pod.status = {"phase": "Failed", "conditions": [condition]}
            pod.is_counted = True  # by the Job's podFailurePolicy it does not count

    def add_second_pod(self, pod: FakePod) -> None:
        with self._lock:
            self._start(self.jobs[pod.job], pod.index)

    def cut_off(self, node: str) -> None:
        """Lose sight of a node. Its pods live on, and are not told of what becomes of their objects."""
        with self._lock:
            self._cut_off.add(node)
            for pod in self._pods_on(node):
                pod.is_out_of_sight = True

    def give_up(self, node: str) -> None:
        """Take the pods of a node that is cut off for lost, as Kubernetes does when the node is deleted."""
        with self._lock:
            condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
            for pod in self._pods_on(node):
                pod.status = {"phase": "Failed", "conditions": [condition]}
                pod.is_counted = True
                self._unwanted.append(pod)

    def reconnect(self, node: str) -> None:
        """See a node again. Its kubelet kills the pods that nobody wants any more."""
        with self._lock:
            self._cut_off.discard(node)
            for pod in [pod for pod in self._unwanted if pod.node == node]:
                pod.kill()
                self._unwanted.remove(pod)
            for pod in self._pods_on(node):
                pod.is_out_of_sight = False

    def _pods_on(self, node: str) -> list[FakePod]:
        return [pod for pod in self.pods.values() if pod.node == node]

    # requests

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        what = f"{request.command} {urlsplit(request.path).path}"
        with self._lock:
            self.requests.append(what)
            status, answer = self._answer(request, what, json.loads(body or "{}"))
            if what in self.lost_answers:
                self.lost_answers.remove(what)
                status = DROP
        if status == DROP:
            request.close_connection = True
            return
        if status >= 400:
            answer = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "code": status,
                **answer,
            }
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        request.send_response(status)
        request.send_header(
            "Content-Type", "text/plain" if isinstance(answer, bytes) else "application/json"
        )
        if status == 429:
            request.send_header("Retry-After", "0")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def _answer(self, request: BaseHTTPRequestHandler, what: str, body: Any) -> tuple[int, Any]:
        for fault in self.faults:
            if what.startswith(fault[0]):
                self.faults.remove(fault)
                return fault[1], fault[2]
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"message": "Unauthorized"}
        url = urlsplit(request.path)
        if url.path == "/version":
            return 200, {"major": "1", "minor": self.minor, "gitVersion": f"v1.{self.minor}.0"}
        if url.path in DISCOVERY:
            return 200, DISCOVERY[url.path]
        found = PATHS.fullmatch(url.path)
        if found is None or found["ns"] != "team":
            return 403, {
                "message": f"jobs is forbidden in {found and found['ns']}",
                "reason": "Forbidden",
            }
        self._reconcile()
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if found["log"]:
            return 200, self.pods[found["name"]].log.read_bytes()
        if request.command == "GET" and found["name"] is None:
            return 200, self._listed(found["kind"], query)
        objects = self._objects(found["kind"])
        if query.get("fieldValidation") == "Strict" and (wrong := self._mistake_in(body)):
            return 400, {"reason": "BadRequest", "message": wrong}
        answer = self._change(request.command, objects, found["name"], body)
        self._reconcile()
        return answer

    def _objects(self, kind: str) -> dict[str, Any]:
        """The objects of a kind, by name. Pods are changed by their Job only."""
        if kind == "pods":
            return {name: pod.described() for name, pod in self.pods.items()}
        return self.jobs if kind == "jobs" else self.secrets

    def _listed(self, kind: str, query: Mapping[str, str]) -> dict[str, Any]:
        """The objects that a selector means, of labels or of the name."""
        name, label = query.get("fieldSelector", ""), query.get("labelSelector", "")
        name, (key, _, value) = name.removeprefix("metadata.name="), label.partition("=")
        items = [
            found
            for found in self._objects(kind).values()
            if name in ("", found["metadata"]["name"])
            and (not key or found["metadata"]["labels"].get(key) == value)
        ]
        version, singular = KINDS[kind]
        metadata = {"resourceVersion": "1"}
        return {
            "apiVersion": version,
            "kind": f"{singular}List",
            "metadata": metadata,
            "items": items,
        }

    def _mistake_in(self, manifest: Any) -> str:
        """What is wrong in a manifest by the schemas of this version of Kubernetes."""
        try:
            kubernetes_validate.validate(manifest, f"1.{self.minor}", strict=True)
        except kubernetes_validate.ValidationError as error:
            return f"strict decoding error: {error.message}"
        return ""

    def _change(
        self, method: str, objects: dict[str, Any], name: str | None, body: Any
    ) -> tuple[int, Any]:
        if method == "POST":
            name = body["metadata"]["name"]
            if name in objects:
                return 409, {"reason": "AlreadyExists", "message": f"{name} already exists"}
            body["metadata"] |= {"uid": f"uid-{next(self._numbers)}", "namespace": "team"}
            objects[name] = body
            return 201, body
        if name not in objects:
            return 404, {"reason": "NotFound", "message": f"jobs.batch {name!r} not found"}
        if method == "PATCH":
            objects[name]["spec"] |= body["spec"]
        elif method == "DELETE":
            self._delete(objects, name)
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        return 200, objects[name]

    def _delete(self, objects: dict[str, Any], name: str) -> None:
        uid = objects.pop(name)["metadata"]["uid"]
        for other, secret in list(self.secrets.items()):
            if any(o["uid"] == uid for o in secret["metadata"].get("ownerReferences", ())):
                del self.secrets[other]
        for pod in [p for p in self.pods.values() if p.job == name and objects is self.jobs]:
            del self.pods[pod.name]
            if pod.node in self._cut_off:
                self._unwanted.append(pod)
            else:
                pod.kill()

    # the Job controller and the kubelet

    def _reconcile(self) -> None:
        for job in self.jobs.values():
            if job["spec"].get("suspend") or job.get("status", {}).get("conditions"):
                continue
            for index in range(job["spec"]["completions"]):
                self._reconcile_index(job, index)
        for pod in self.pods.values():
            if pod.process is None and not pod.status:
                self._start_container(pod, self.jobs[pod.job]["spec"]["template"]["spec"])

    def _reconcile_index(self, job: dict[str, Any], index: int) -> None:
        name = job["metadata"]["name"]
        pods = [p for p in self.pods.values() if (p.job, p.index) == (name, index)]
        phases = [p.described()["status"]["phase"] for p in pods]
        failures = sum(
            phase == "Failed" and not p.is_counted for phase, p in zip(phases, pods, strict=True)
        )
        if set(phases) & {"Pending", "Running", "Succeeded"}:
            return
        if failures > job["spec"]["backoffLimitPerIndex"]:
            failed = {"type": "Failed", "status": "True", "message": "Job has failed indexes"}
            job["status"] = {"failedIndexes": str(index), "conditions": [failed]}
            return
        self._start(job, index)

    def _start(self, job: dict[str, Any], index: int) -> None:
        number = next(self._numbers)
        name = f"{job['metadata']['name']}-{index}-{number}"
        template = job["spec"]["template"]
        node = self._emptiest_node()
        pod = FakePod(name, index, job["metadata"]["name"], self.folder / f"{name}.log",
                      template["metadata"]["labels"], f"uid-{number}", node, status=self.pending or {})  # fmt: skip
        pod.log.touch()
        self.pods[name] = pod

    def _emptiest_node(self) -> str:
        nodes = [node for node in self._nodes if node not in self._cut_off]
        return min(nodes, key=lambda node: len(self._pods_on(node)))

    def _start_container(self, pod: FakePod, spec: dict[str, Any]) -> None:
        """Start the process of a pod, which sees Secrets as files, as soon as they are there."""
        [container] = spec["containers"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        words = container["command"]
        for mount in container["volumeMounts"]:
            volume = volumes[mount["name"]].get("secret")
            if volume is None:
                continue
            secret = self.secrets.get(volume["secretName"])
            if secret is None:
                return
            folder = self.folder / f"{pod.name}.secret"
            folder.mkdir()
            for file, text in secret["stringData"].items():
                (folder / file).write_text(text)
                (folder / file).chmod(volume["defaultMode"])
            words = [word.replace(mount["mountPath"], str(folder)) for word in words]
        words = [sys.executable if word == "python" else word for word in words]
        with pod.log.open("ab") as log:
            pod.process = subprocess.Popen(
                [*self._nodes[pod.node], *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
