"""The API server of a Kubernetes cluster: the few requests that a launcher makes, and which failures pass."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from flowrl.cluster.kubernetes.kubeconfig import ClusterAccess, Login
from flowrl.core.errors import FlowError
from flowrl.core.json_text import parse_object

Result = TypeVar("Result")

TIMEOUT_S = 5.0  # of one request
FIRST_WAIT_S, MOST_WAIT_S = 0.25, 30.0  # before a request is made again
TRANSIENT = frozenset({408, 410, 429, 500, 502, 503, 504})
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT = 401, 403, 404, 409
GROUPS = {"jobs": "/apis/batch/v1", "secrets": "/api/v1", "pods": "/api/v1"}
JSON, MERGE_PATCH = "application/json", "application/merge-patch+json"


class ApiError(FlowError):
    """The API server refuses a request, or does not answer it. Then the status is 0."""

    def __init__(
        self, what: str, status: int = 0, reason: str = "", retry_after_s: float = 0.0
    ) -> None:
        super().__init__(what)
        self.status, self.reason, self.retry_after_s = status, reason, retry_after_s

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later. Quotas make conflicts that pass."""
        is_conflict = self.status == CONFLICT and self.reason != "AlreadyExists"
        return self.status == 0 or self.status in TRANSIENT or is_conflict


class Backoff:
    """How long to wait before a request is made again: each time twice as long, and as long as the server asks."""

    def __init__(self) -> None:
        self._wait_s = FIRST_WAIT_S

    def after(self, error: ApiError) -> float:
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, MOST_WAIT_S)
        return min(max(wait_s, error.retry_after_s), MOST_WAIT_S)


class ApiServer:
    """Makes requests, each over a connection of its own."""

    def __init__(self, access: ClusterAccess, namespace: str) -> None:
        self._access, self.namespace = access, namespace
        self._login: Login | None = None
        self._opener: OpenerDirector | None = None

    # requests

    def version(self) -> tuple[int, int]:
        """The version of the server, such as (1, 33)."""
        found = parse_object(self._request("GET", "/version"))
        digits = "".join(filter(str.isdigit, str(found.get("minor", "0"))))  # EKS says 33+
        return int(found.get("major", 1)), int(digits or 0)

    def create(self, kind: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object, unless an earlier request without an answer has created it."""
        try:
            return parse_object(self._request("POST", self._path(kind), manifest))
        except ApiError as error:
            if error.status == CONFLICT and error.reason == "AlreadyExists":
                return self.get(kind, manifest["metadata"]["name"])
            raise

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return parse_object(self._request("GET", self._path(kind, name)))

    def list(self, kind: str, selector: str) -> list[dict[str, Any]]:
        query = urlencode({"labelSelector": selector})
        found = parse_object(self._request("GET", f"{self._path(kind)}?{query}"))
        return list(found.get("items") or ())

    def patch(self, kind: str, name: str, change: Mapping[str, Any]) -> None:
        self._request("PATCH", self._path(kind, name), change, MERGE_PATCH)

    def delete(self, kind: str, name: str) -> None:
        """Delete an object, and what it owns; it may be gone already."""
        try:
            self._request("DELETE", self._path(kind, name), {"propagationPolicy": "Background"})
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    def log(self, pod: str, lines: int) -> str:
        """The last lines that a pod has printed."""
        query = urlencode({"tailLines": lines, "limitBytes": 1 << 18})
        data = self._request("GET", f"{self._path('pods', pod)}/log?{query}")
        return data.decode(errors="replace")

    def _path(self, kind: str, name: str = "") -> str:
        path = f"{GROUPS[kind]}/namespaces/{quote(self.namespace)}/{kind}"
        return f"{path}/{quote(name)}" if name else path

    # connections

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, content: str = JSON
    ) -> bytes:
        try:
            return self._request_once(method, path, body, content)
        except ApiError as error:
            if error.status != UNAUTHORIZED or self._login is None:
                raise
        self._login = None  # it may have been replaced before its end
        return self._request_once(method, path, body, content)

    def _request_once(
        self, method: str, path: str, body: Mapping[str, Any] | None, content: str
    ) -> bytes:
        opener, login = self._opener_and_login()
        headers = {"Accept": "*/*", "User-Agent": "flowrl"}
        if login.token:
            headers["Authorization"] = f"Bearer {login.token}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = content
        request = Request(self._access.server + path, data, headers, method=method)
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                return bytes(answer.read())
        except HTTPError as error:
            raise _refusal(error, f"{method} {path.partition('?')[0]}") from None
        except (OSError, HTTPException) as error:
            why = error.reason if isinstance(error, URLError) else error
            raise ApiError(f"{self._access.server} does not answer: {why}") from None

    def _opener_and_login(self) -> tuple[OpenerDirector, Login]:
        if self._login is None or self._opener is None or not self._login.is_valid:
            self._login = self._access.log_in()
            proxies = [ProxyHandler({"https": self._access.proxy})] if self._access.proxy else []
            tls = HTTPSHandler(context=self._access.tls(self._login))
            self._opener = build_opener(tls, *proxies)
        return self._opener, self._login


def _refusal(error: HTTPError, request: str) -> ApiError:
    """What the server answers instead of a result: an object of kind Status, or a text of something in between."""
    with error:
        try:
            text = error.read().decode(errors="replace")
        except (OSError, HTTPException):
            text = ""
    try:
        status = parse_object(text)
    except ValueError:
        status = {"message": text.strip()[:200]}
    what = status.get("message") or error.reason
    if error.code == FORBIDDEN:
        what = f"{what}; the rights that a launcher needs are in docs/clusters.md"
    wait = error.headers.get("Retry-After", "")
    return ApiError(
        f"{request}: {what} ({error.code})",
        error.code,
        str(status.get("reason", "")),
        float(wait) if wait.isdigit() else 0.0,
    )


def patiently(request: Callable[[], Result], within_s: float) -> Result:
    """Make a request until it succeeds, as long as its failures may pass."""
    deadline, backoff = time.monotonic() + within_s, Backoff()
    while True:
        try:
            return request()
        except ApiError as error:
            wait_s = backoff.after(error)
            if not error.is_transient or time.monotonic() + wait_s > deadline:
                raise
        time.sleep(wait_s)
