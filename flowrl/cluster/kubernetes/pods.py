"""What the API server says of pods: why they do not run yet, and why they have ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from flowrl.core.wording import count_text
from flowrl.machine.child_process import exit_text

IMAGE_ERRORS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)
HOPELESS = frozenset({"InvalidImageName", "ErrImageNeverPull"})  # these do not pass
BEING_MADE = frozenset({"ContainerCreating", "PodInitializing"})
SIGNAL_STATUS = 128  # a container that a signal killed ends with this status and more

Pod = Mapping[str, Any]


def name_of(pod: Pod) -> str:
    return str(pod["metadata"]["name"])


def phase_of(pod: Pod) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def _containers(pod: Pod) -> list[Any]:
    """What became of the containers of the pod."""
    return [c.get("state", {}) for c in pod.get("status", {}).get("containerStatuses") or ()]


def _conditions(pod: Pod) -> dict[str, Any]:
    return {c["type"]: c for c in pod.get("status", {}).get("conditions") or ()}


def _reason_and_message(found: Mapping[str, Any]) -> str:
    texts = (found.get("reason"), found.get("message"))
    return ": ".join(" ".join(str(text).split()) for text in texts if text)


def image_error(pod: Pod) -> str:
    """Why a pod has no image: the reason of Kubernetes, such as ErrImagePull; nothing if it has one."""
    reasons = [c["waiting"].get("reason", "") for c in _containers(pod) if "waiting" in c]
    return next((reason for reason in reasons if reason in IMAGE_ERRORS), "")


def why_pending(pod: Pod) -> str:
    """Why a pod does not run yet."""
    for container in _containers(pod):
        waiting = container.get("waiting", {})
        if waiting and waiting.get("reason") not in BEING_MADE:
            return _reason_and_message(waiting)
    scheduled = _conditions(pod).get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return _reason_and_message(scheduled)
    return "being created"


def pending_text(pods: Sequence[Pod], wanted: int) -> str:
    """Why pods are not there yet; nothing if all are."""
    present = [pod for pod in pods if phase_of(pod) in ("Pending", "Running")]
    reasons = Counter(why_pending(pod) for pod in present if phase_of(pod) == "Pending")
    missing = wanted - len(present)
    if missing > 0:
        reasons["not created yet"] = missing
    if not reasons:
        return ""
    parts = [f"{count_text(count, 'pod')}: {reason}" for reason, count in sorted(reasons.items())]
    return f"waiting for {'; '.join(parts)}"


def end_text(pod: Pod) -> str:
    """Why a pod has failed."""
    disruption = _conditions(pod).get("DisruptionTarget", {})
    if disruption.get("status") == "True":
        return f"was evicted ({_reason_and_message(disruption)})"
    status = pod.get("status", {})
    if status.get("reason"):
        return f"failed ({_reason_and_message(status)})"
    for container in _containers(pod):
        ended = container.get("terminated")
        if ended:
            return _container_end_text(ended)
    return "failed"


def _container_end_text(ended: Mapping[str, Any]) -> str:
    status = int(ended.get("exitCode", 0))
    text = exit_text(SIGNAL_STATUS - status if status > SIGNAL_STATUS else status)
    reason = ended.get("reason", "")
    return text if reason in ("", "Error", "Completed") else f"{text} ({reason})"
