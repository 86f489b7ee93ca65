"""A Kubernetes API server for tests, whose pods are processes of this machine. It can fail as real ones do.

It does what the Job controller and a kubelet would, whenever a request comes.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "a-token"
PATHS = re.compile(
    r"/(?:api|apis/batch)/v1/namespaces/(?P<ns>[^/]+)/(?P<kind>\w+)(?:/(?P<name>[^/]+))?(?P<log>/log)?"
)
DROP = 0  # as the status of a fault: the connection is closed without an answer


@dataclass
class FakePod:
    name: str
    index: int
    job: str
    log: Path
    labels: dict[str, str]
    uid: str
    process: subprocess.Popen[bytes] | None = None
    status: dict[str, Any] = field(default_factory=dict)  # instead of that of the process
    is_counted: bool = False

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def described(self) -> dict[str, Any]:
        metadata = {"name": self.name, "uid": self.uid, "labels": self.labels}
        return {"metadata": metadata, "status": self.status or self._status_of_process()}

    def _status_of_process(self) -> dict[str, Any]:
        if self.process is None:
            return {
                "phase": "Pending",
                "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}],
            }
        status = self.process.poll()
        if status is None:
            return {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
        ended = {"exitCode": 128 - status if status < 0 else status}
        phase = "Succeeded" if status == 0 else "Failed"
        return {"phase": phase, "containerStatuses": [{"state": {"terminated": ended}}]}


class KubernetesServer:
    """The server, its objects, and the faults that it is to have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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
        self.come_up()
        self.url = f"http://127.0.0.1:{self._port}"

    def come_up(self) -> None:
        """Listen, at the same port as before."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                server.handle(self)

            do_GET = do_POST = do_DELETE = do_PATCH = handle_any

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
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
        for pod in self.pods.values():
            pod.kill()

    def kubeconfig(self) -> Path:
        path = self.folder / "kubeconfig"
        path.write_text(json.dumps({
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me", "namespace": "team"}}],
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {"token": TOKEN}}],
        }))  # fmt: skip
        return path

    # what happens to pods

    def alive(self) -> list[FakePod]:
        return [p for p in self.pods.values() if p.described()["status"]["phase"] == "Running"]

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
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        request.send_response(status)
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
            return 200, {"major": "1", "minor": self.minor}
        found = PATHS.fullmatch(url.path)
        if found is None or found["ns"] != "team":
            return 403, {
                "message": f"jobs is forbidden in {found and found['ns']}",
                "reason": "Forbidden",
            }
        self._reconcile()
        if found["kind"] == "pods":
            if found["log"]:
                return 200, self.pods[found["name"]].log.read_bytes()
            key, _, value = parse_qs(url.query)["labelSelector"][0].partition("=")
            pods = [p.described() for p in self.pods.values() if p.labels.get(key) == value]
            return 200, {"items": pods}
        objects = self.jobs if found["kind"] == "jobs" else self.secrets
        return self._change(request.command, objects, found["name"], body)

    def _change(
        self, method: str, objects: dict[str, Any], name: str | None, body: Any
    ) -> tuple[int, Any]:
        if method == "POST":
            name = body["metadata"]["name"]
            if name in objects:
                return 409, {"reason": "AlreadyExists", "message": f"{name} already exists"}
            body["metadata"]["uid"] = f"uid-{next(self._numbers)}"
            objects[name] = body
            return 201, body
        if name not in objects:
            return 404, {"reason": "NotFound", "message": f"jobs.batch {name!r} not found"}
        if method == "PATCH":
            objects[name]["spec"] |= body["spec"]
        elif method == "DELETE":
            self._delete(objects, name)
            return 200, {"status": "Success"}
        return 200, objects[name]

    def _delete(self, objects: dict[str, Any], name: str) -> None:
        uid = objects.pop(name)["metadata"]["uid"]
        for other, secret in list(self.secrets.items()):
            if any(o["uid"] == uid for o in secret["metadata"].get("ownerReferences", ())):
                del self.secrets[other]
        for pod in [p for p in self.pods.values() if p.job == name and objects is self.jobs]:
            pod.kill()
            del self.pods[pod.name]

    # the Job controller and the kubelet

    def _reconcile(self) -> None:
        for job in self.jobs.values():
            if job["spec"].get("suspend") or job.get("status", {}).get("conditions"):
                continue
            for index in range(job["spec"]["completions"]):
                self._reconcile_index(job, index)

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
        pod = FakePod(name, index, job["metadata"]["name"], self.folder / f"{name}.log",
                      template["metadata"]["labels"], f"uid-{number}", status=self.pending or {})  # fmt: skip
        pod.log.touch()
        self.pods[name] = pod
        if self.pending is None:
            pod.process = self._process(template["spec"], pod)

    def _process(self, spec: dict[str, Any], pod: FakePod) -> subprocess.Popen[bytes]:
        """What a kubelet would start: the container, which sees the Secret as files."""
        [container] = spec["containers"]
        volumes = {v["name"]: v for v in spec["volumes"]}
        words = container["command"]
        for mount in container["volumeMounts"]:
            volume = volumes[mount["name"]]
            if "secret" in volume:
                folder = self.folder / f"{pod.name}.secret"
                folder.mkdir()
                for file, text in self.secrets[volume["secret"]["secretName"]][
                    "stringData"
                ].items():
                    (folder / file).write_text(text)
                    (folder / file).chmod(volume["secret"]["defaultMode"])
                words = [word.replace(mount["mountPath"], str(folder)) for word in words]
        words = [sys.executable if word == "python" else word for word in words]
        with pod.log.open("ab") as log:
            return subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
