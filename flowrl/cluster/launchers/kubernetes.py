"""Starts hosts as the pods of a Kubernetes Job. It needs no custom resources, and no rights beyond one namespace."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from flowrl.cluster.kubernetes.api_server import (
    NOT_FOUND,
    ApiError,
    ApiServer,
    Backoff,
    patiently,
)
from flowrl.cluster.kubernetes.kubeconfig import find_access
from flowrl.cluster.kubernetes.manifests import (
    JOB_LABEL,
    NEWEST,
    RUN_LABEL,
    JobConfig,
    job_manifest,
    new_name,
    run_label,
    secret_manifest,
)
from flowrl.cluster.kubernetes.pods import (
    HOPELESS,
    Pod,
    end_text,
    image_error,
    name_of,
    pending_text,
    phase_of,
    why_pending,
)
from flowrl.cluster.launcher import HostOrder, Launcher, LaunchStatus
from flowrl.core.errors import FlowError, UsageError
from flowrl.machine.network_address import Address, local_address_towards, resolve_machine

POLL_S = 2.0  # between two questions to the API server
REQUESTS_S = 10.0  # for which requests that start or end hosts are repeated
IMAGE_TIMEOUT_S = 120.0  # within which an image that cannot be pulled must come
LOG_LINES = 1000  # of a pod, which are kept
LOGS_S = 3.0  # for keeping the logs of the pods that are left at the end


class Kubernetes(Launcher):
    """Hosts that are pods of an Indexed Job, which Kubernetes starts again when they fail or are evicted."""

    class Config(JobConfig):
        """What a user can say of the hosts."""

    order: HostOrder
    name = ""  # of the Job and its Secret

    @property
    def host_count(self) -> int:
        return int(self.config.pods)

    def machine_of_run(self) -> str:
        if self.config.address is not None:
            return str(self.config.address)
        if self.config.write is not None:
            return super().machine_of_run()
        server = urlsplit(find_access(self.config.context).server)
        where = f"launch kubernetes: the API server {server.geturl()}"
        if server.hostname is None:
            raise UsageError(f"{where}: this is no URL; expected https://…")
        machine = resolve_machine(server.hostname, where)
        port = server.port or (443 if server.scheme == "https" else 80)
        own = local_address_towards(Address(machine, str(port)))
        if Address(own, "*").is_loopback:
            raise UsageError(
                f"{where} is on this machine's loopback interface, at which pods cannot reach the run; give `address`: "
                "the name or address of this machine in the network of the pods"
            )
        return own

    def start(self, order: HostOrder) -> None:
        self.order, self.name = order, new_name(order)
        if self.config.write is not None:
            self._write_manifests(Path(self.config.write))
            return
        access = find_access(self.config.context)
        self._api = ApiServer(access, self.config.namespace or access.namespace)
        self._log_file = order.folder / f"{order.label}.pods.log"
        self._waiting = f"starting the Job {self.name}"
        self._next_poll_s, self._backoff = 0.0, Backoff()
        self._is_silent = False  # whether the API server does not answer
        self._ended_pods: set[str] = set()  # by their ids
        self._image_errors: dict[str, float] = {}  # since when, by the ids of pods
        self._failed_indexes = ""
        self._last_end = ""  # of a pod
        patiently(self._create, REQUESTS_S)

    def _create(self) -> None:
        """Create the Job and its Secret; what is there from an earlier attempt remains."""
        api = self._api
        manifest = job_manifest(self.config, self.order, self.name, api.version())
        job = api.create("jobs", manifest)
        api.create("secrets", secret_manifest(self.config, self.order, self.name, job))
        api.patch("jobs", self.name, {"spec": {"suspend": False}})

    def _write_manifests(self, folder: Path) -> None:
        """Write manifests for kubectl. The file with the key is for its owner's eyes only."""
        version = self.config.version
        known = (1, int(version.partition(".")[2])) if version is not None else NEWEST
        folder.mkdir(parents=True, exist_ok=True)
        manifests = {
            "secret.yaml": secret_manifest(self.config, self.order, self.name),
            "job.yaml": job_manifest(self.config, self.order, self.name, known),
        }
        for file, manifest in manifests.items():
            (folder / file).unlink(missing_ok=True)
            mode = 0o600 if manifest["kind"] == "Secret" else 0o644
            descriptor = os.open(folder / file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "w", encoding="utf-8") as written:
                yaml.safe_dump(manifest, written, sort_keys=False)

    # while it runs

    def watch(self) -> LaunchStatus:
        if self.config.write is not None:
            return LaunchStatus(
                waiting=f"its manifests are written; kubectl apply -f {self.config.write}"
            )
        if time.monotonic() < self._next_poll_s:
            return LaunchStatus(waiting=self._waiting)
        try:
            status = self._job_status()
        except ApiError as error:
            if not error.is_transient:
                raise
            return self._without_answer(error)
        self._next_poll_s = time.monotonic() + POLL_S
        self._is_silent, self._backoff = False, Backoff()
        self._waiting = status.waiting
        return status

    def _without_answer(self, error: ApiError) -> LaunchStatus:
        """Hosts and their run do not need the API server, so they go on."""
        self._next_poll_s = time.monotonic() + self._backoff.after(error)
        news = [] if self._is_silent else [f"{error}; trying again, and its hosts go on"]
        self._is_silent = True
        return LaunchStatus(waiting=self._waiting, news=news)

    def _job_status(self) -> LaunchStatus:
        try:
            job = self._api.get("jobs", self.name)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            return LaunchStatus(
                failure=f"the Job {self.name} is gone; it was not this run that deleted it"
            )
        pods = self._api.list("pods", f"{JOB_LABEL}={self.name}")
        news = [self._after_end(pod) for pod in pods if self._has_newly_failed(pod)]
        news += self._news_of_indexes(job)
        if job.get("spec", {}).get("suspend"):
            return LaunchStatus(waiting=f"the Job {self.name} is suspended", news=news)
        failure = self._failure(job) or self._image_failure(pods)
        waiting = "" if failure else pending_text(pods, self._wanted(job))
        return LaunchStatus(waiting, failure, news)

    def _wanted(self, job: Any) -> int:
        """How many pods should be there: all but those that have succeeded or failed for good."""
        status = job.get("status", {})
        over = status.get("succeeded", 0) + _index_count(status.get("failedIndexes", ""))
        return max(self.host_count - int(over), 0)

    def _has_newly_failed(self, pod: Pod) -> bool:
        uid = pod["metadata"]["uid"]
        if phase_of(pod) != "Failed" or uid in self._ended_pods:
            return False
        self._ended_pods.add(uid)
        return True

    def _after_end(self, pod: Pod) -> str:
        self._last_end = f"pod {name_of(pod)} {end_text(pod)}"
        last_line = self._keep_log(name_of(pod))
        if last_line:
            self._last_end += f" ({last_line})"
        return self._last_end

    def _keep_log(self, pod: str) -> str:
        """Append what a pod has printed to the launcher's log, and return the last line of it, if there is one."""
        try:
            text = self._api.log(pod, LOG_LINES).strip()
        except ApiError:
            return ""  # a pod that never ran, or whose node is gone, has no log
        with self._log_file.open("a", encoding="utf-8") as log:
            log.writelines(f"[{pod}] {line}\n" for line in text.splitlines())
        return text.splitlines()[-1].strip() if text else ""

    def _news_of_indexes(self, job: Any) -> list[str]:
        failed = job.get("status", {}).get("failedIndexes", "")
        if failed == self._failed_indexes:
            return []
        self._failed_indexes = failed
        return [f"pods of index {failed} have failed too often, and are not started again"]

    def _failure(self, job: Any) -> str:
        conditions = job.get("status", {}).get("conditions") or ()
        done = {c["type"]: c.get("message", "") for c in conditions if c.get("status") == "True"}
        if "Failed" in done:
            last = self._last_end and f"; the last end: {self._last_end}"
            return f"the Job {self.name} has failed: {done['Failed']}{last}"
        if "Complete" in done:
            return f"the Job {self.name} is complete: all its hosts have ended"
        return ""

    def _image_failure(self, pods: Sequence[Pod]) -> str:
        """Why the image does not come. Registries may fail for some time, which is no reason to give up."""
        errors = {pod["metadata"]["uid"]: pod for pod in pods if image_error(pod)}
        now = time.monotonic()
        self._image_errors = {uid: self._image_errors.get(uid, now) for uid in errors}
        for uid, pod in errors.items():
            if image_error(pod) in HOPELESS or now - self._image_errors[uid] >= IMAGE_TIMEOUT_S:
                return f"pod {name_of(pod)} has no image: {why_pending(pod)}"
        return ""

    # the end

    def end(self) -> None:
        if self.config.write is not None:
            (Path(self.config.write) / "secret.yaml").unlink(missing_ok=True)
        elif self.name:
            self._keep_logs()
            patiently(lambda: self._api.delete("jobs", self.name), REQUESTS_S)
            patiently(lambda: self._api.delete("secrets", self.name), REQUESTS_S)

    def _keep_logs(self) -> None:
        deadline = time.monotonic() + LOGS_S
        with suppress(FlowError):
            for pod in self._api.list("pods", f"{JOB_LABEL}={self.name}"):
                if pod["metadata"]["uid"] not in self._ended_pods and time.monotonic() < deadline:
                    self._keep_log(name_of(pod))

    def facts(self) -> dict[str, str]:
        if not self.name or self.config.write is not None:
            return {}
        return {
            "Job": self.name,
            "namespace": self._api.namespace,
            "selector": f"{RUN_LABEL}={run_label(self.order)}",
        }


def _index_count(text: str) -> int:
    """How many indexes a list such as `1,3-5` has."""
    ranges = [part.partition("-") for part in text.split(",") if part]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)
