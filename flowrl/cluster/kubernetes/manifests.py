"""The manifests of the hosts of a run: an Indexed Job, whose pods are hosts, and a Secret with their join file."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

from pydantic import field_validator

from flowrl.cluster.launcher import HostOrder, Launcher
from flowrl.core.config import param

NEWEST = (1, 99)  # a version that knows every field
# The versions of Kubernetes that know these fields by default.
POD_FAILURE_POLICY, LIMIT_PER_INDEX = (1, 26), (1, 29)
FOLDER = "/run/flowrl"  # in pods, of the join file
GRACE_S = 10  # in which a host ends after SIGTERM
KEEP_FINISHED_S = 600  # a Job whose run was killed, so that nothing else deletes it
RUN_LABEL, JOB_LABEL = "flowrl/run", "flowrl/job"
LABEL_LENGTH = 63
NAME_LENGTH = 40  # of Jobs, to whose name Kubernetes appends an index and six letters
QUANTITY = r"^\d+(\.\d+)?([EPTGMk]i?|m)?$"


class JobConfig(Launcher.Config):
    """What a user can say of the hosts."""

    pods: int = param(2, "how many hosts are started", ge=1, le=10_000)
    image: str = param(..., "the container image, in which flowrl is installed", min_length=1)
    python: str = param("python", "the Python of the image", min_length=1)
    namespace: str | None = param(None, "the namespace (default: that of the context)")
    context: str | None = param(None, "the context of the kubeconfig (default: the current one)")
    address: str | None = param(
        None,
        "the name or address at which pods reach the machine of the run (default: its address towards the API server)",
    )
    cpu: int | float | str | None = param(None, "cores of each pod, such as 2, 0.5 or 500m")
    memory: str | None = param(None, "memory of each pod, such as 4Gi", pattern=QUANTITY)
    gpus: int = param(0, "GPUs of each pod", ge=0)
    gpu_resource: str = param("nvidia.com/gpu", "how the cluster calls its GPUs")
    node_selector: dict[str, str] = param({}, "labels of the nodes on which pods may run")
    service_account: str | None = param(None, "the service account of the pods")
    pull_secret: str | None = param(None, "the Secret with which the image is pulled")
    labels: dict[str, str] = param({}, "further labels of the Job and its pods")
    pod_spec: dict[str, Any] = param(
        {}, "further fields of the pods' spec, as in Kubernetes, such as tolerations"
    )
    container_spec: dict[str, Any] = param(
        {}, "further fields of the container, as in Kubernetes, such as env"
    )
    restarts: int = param(3, "how often a host that has died is started again", ge=0, le=1000)
    write: str | None = param(
        None, "write manifests into this folder, for 'kubectl apply -f', instead of applying them"
    )
    version: str | None = param(
        None,
        "with `write`: the version of the cluster, which decides which fields there are (default: the newest)",
        pattern=r"^1\.\d+$",
    )

    @field_validator("cpu")
    @classmethod
    def _check_cpu(cls, cpu: float | str | None) -> float | str | None:
        if cpu is not None and not re.match(QUANTITY, str(cpu)):
            raise ValueError(f"'{cpu}' is no number of cores; expected 2, 0.5 or 500m")
        return cpu


def new_name(order: HostOrder) -> str:
    """A new name for a Job and its Secret, which tells people which run it is."""
    words = re.sub(r"[^a-z0-9]+", "-", f"flowrl-{order.run_name}".lower())
    return f"{words[: NAME_LENGTH - 9].strip('-')}-{secrets.token_hex(4)}"


def run_label(order: HostOrder) -> str:
    """The value of the label of everything that belongs to a run."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", order.run_name)[:LABEL_LENGTH].strip("-_.")


def job_manifest(
    config: JobConfig, order: HostOrder, name: str, version: tuple[int, int] = NEWEST
) -> dict[str, Any]:
    """The Job. It is suspended until its Secret is there, so that a start that breaks off leaves no pod."""
    metadata = _metadata(config, order, name)
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": config.pods,
        "parallelism": config.pods,
        "suspend": config.write is None,
        "ttlSecondsAfterFinished": KEEP_FINISHED_S,
        "template": {
            "metadata": {"labels": metadata["labels"]},
            "spec": _pod_spec(config, order, name),
        },
    }
    if version >= LIMIT_PER_INDEX:
        spec |= {"backoffLimitPerIndex": config.restarts, "podReplacementPolicy": "Failed"}
    else:
        spec["backoffLimit"] = config.restarts * config.pods
    if version >= POD_FAILURE_POLICY:
        evicted = [{"type": "DisruptionTarget", "status": "True"}]
        spec["podFailurePolicy"] = {"rules": [{"action": "Ignore", "onPodConditions": evicted}]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def secret_manifest(
    config: JobConfig, order: HostOrder, name: str, job: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The Secret with the join file. The Job owns it, so that Kubernetes deletes both together."""
    metadata = _metadata(config, order, name)
    if job is not None:
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": name,
            "uid": job["metadata"]["uid"],
        }
        metadata["ownerReferences"] = [owner]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
        "stringData": {order.join_file.name: order.info.text()},
    }


def _metadata(config: JobConfig, order: HostOrder, name: str) -> dict[str, Any]:
    labels = {
        **config.labels,
        "app.kubernetes.io/managed-by": "flowrl",
        RUN_LABEL: run_label(order),
        JOB_LABEL: name,
    }
    found: dict[str, Any] = {"name": name, "labels": labels}
    return found | ({"namespace": config.namespace} if config.namespace else {})


def _pod_spec(config: JobConfig, order: HostOrder, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,  # hosts have nothing to do with the API server
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "containers": [_merged(_container(config, order), config.container_spec)],
        "volumes": [
            {"name": "join", "secret": {"secretName": name, "defaultMode": 0o444}},
            # sites of one pod share memory, of which a container has only 64 MB by default
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    if config.node_selector:
        spec["nodeSelector"] = dict(config.node_selector)
    if config.service_account is not None:
        spec["serviceAccountName"] = config.service_account
    if config.pull_secret is not None:
        spec["imagePullSecrets"] = [{"name": config.pull_secret}]
    return _merged(spec, config.pod_spec)


def _container(config: JobConfig, order: HostOrder) -> dict[str, Any]:
    # The shell opens the file whatever user the image has: its mode depends on that user, and hosts refuse join
    # files that others can read.
    join = f'exec "$0" "$@" <{FOLDER}/{order.join_file.name}'
    amounts = {"cpu": config.cpu, "memory": config.memory, config.gpu_resource: config.gpus or None}
    resources = {key: str(amount) for key, amount in amounts.items() if amount is not None}
    return {
        "name": "host",
        "image": config.image,
        "command": ["/bin/sh", "-c", join, *order.command([config.python], "-")],
        "resources": {"requests": resources, "limits": resources} if resources else {},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {"name": "join", "mountPath": FOLDER, "readOnly": True},
            {"name": "memory", "mountPath": "/dev/shm"},
        ],
    }


def _merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Both: mappings are merged, lists are joined, and other values are theirs."""
    found = dict(ours)
    for key, value in theirs.items():
        here = found.get(key)
        if isinstance(here, Mapping) and isinstance(value, Mapping):
            found[key] = _merged(here, value)
        elif isinstance(here, list) and isinstance(value, list):
            found[key] = [*here, *value]
        else:
            found[key] = value
    return found
