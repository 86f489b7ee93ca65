"""How this machine reaches a Kubernetes cluster: by a kubeconfig file, as kubectl does, or as a pod."""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from flowrl.core.errors import FlowError, UsageError
from flowrl.core.json_text import parse_object

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LOGIN_TIMEOUT_S = 20.0  # of a command that logs in
LOGIN_MARGIN_S = 60.0  # before the end of a login, in which it is renewed
UNSUPPORTED = {
    "tls-server-name": "use a server whose certificate has its own name",
    "username": "Kubernetes has removed passwords; use a token",
    "auth-provider": "kubectl has removed it; use an exec plugin",
}


@dataclass(frozen=True, slots=True)
class Login:
    """What proves to the server who asks."""

    token: str = ""
    certificate: bytes = b""  # in PEM, with its key
    until_s: float = float("inf")  # of the wall clock

    @property
    def is_valid(self) -> bool:
        return time.time() < self.until_s - LOGIN_MARGIN_S


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Where the API server of a cluster is, and how to log in there."""

    server: str  # https://…
    namespace: str
    log_in: Callable[[], Login]
    authorities: str | None = None  # certificates in PEM; those of the system if None
    is_verified: bool = True
    proxy: str = ""

    def tls(self, login: Login) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authorities)
        if not self.is_verified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if login.certificate:
            # The file has mode 0600. Python reads certificates from files only.
            with tempfile.NamedTemporaryFile() as file:
                file.write(login.certificate)
                file.flush()
                context.load_cert_chain(file.name)
        return context


def find_access(context: str | None) -> ClusterAccess:
    """Return the access of a context of the kubeconfig, of its current one, or of this pod's service account."""
    given = os.environ.get("KUBECONFIG", "")
    paths = [Path(p) for p in given.split(os.pathsep) if p] or [Path.home() / ".kube" / "config"]
    found = [path for path in paths if path.is_file()]
    if found:
        return _Kubeconfig(found).access(context)
    if given:
        raise UsageError(f"KUBECONFIG: there is no file {given}")
    if (SERVICE_ACCOUNT / "token").is_file() and "KUBERNETES_SERVICE_HOST" in os.environ:
        return _access_of_pod()
    raise UsageError(
        f"launch kubernetes: there is no kubeconfig ({paths[0]}), and this is no pod; name the file in $KUBECONFIG, "
        "or let `write: DIR` write manifests instead"
    )


def _access_of_pod() -> ClusterAccess:
    host, port = (
        os.environ["KUBERNETES_SERVICE_HOST"],
        os.environ.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    return ClusterAccess(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=(SERVICE_ACCOUNT / "namespace").read_text().strip(),
        log_in=lambda: _token_login(SERVICE_ACCOUNT / "token"),
        authorities=(SERVICE_ACCOUNT / "ca.crt").read_text(),
    )


def _token_login(file: Path) -> Login:
    """The token of a file, which the cluster replaces now and then."""
    return Login(file.read_text().strip(), until_s=time.time() + 2 * LOGIN_MARGIN_S)


class _Kubeconfig:
    """The kubeconfig files of a user. What several of them say is taken from the first."""

    def __init__(self, paths: list[Path]) -> None:
        self._current = ""
        self._sections: dict[str, dict[str, tuple[dict[str, Any], Path]]] = {}
        self._name = os.pathsep.join(map(str, paths))
        for path in paths:
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            found = yaml.safe_load(path.read_text())
            self._current = self._current or found.get("current-context") or ""
            for section, kind in (
                ("clusters", "cluster"),
                ("contexts", "context"),
                ("users", "user"),
            ):
                for entry in found.get(section) or ():
                    named = self._sections.setdefault(section, {})
                    named.setdefault(entry["name"], (entry.get(kind) or {}, path.parent))
        except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
            raise UsageError(f"{path}: it is no kubeconfig: {error}") from None

    def _entry(self, section: str, name: str) -> tuple[dict[str, Any], Path]:
        named = self._sections.get(section, {})
        if name not in named:
            known = ", ".join(named) or "none"
            raise UsageError(
                f"{self._name}: there is no '{name or '(none)'}' among its {section}; it has: {known}"
            )
        return named[name]

    def access(self, name: str | None) -> ClusterAccess:
        context, _ = self._entry("contexts", name or self._current)
        cluster, folder = self._entry("clusters", context.get("cluster", ""))
        user, user_folder = (
            self._entry("users", context["user"]) if context.get("user") else ({}, folder)
        )
        for key, remedy in UNSUPPORTED.items():
            if {**cluster, **user}.get(key):
                raise UsageError(f"{self._name}: '{key}' is not supported; {remedy}")
        authorities = _content(cluster, "certificate-authority", folder)
        return ClusterAccess(
            server=str(cluster.get("server", "")).rstrip("/"),
            namespace=context.get("namespace") or "default",
            log_in=_login_of(user, user_folder),
            authorities=authorities.decode() if authorities else None,
            is_verified=not cluster.get("insecure-skip-tls-verify", False),
            proxy=cluster.get("proxy-url", ""),
        )


def _content(entry: Mapping[str, Any], key: str, folder: Path) -> bytes:
    """What the entry holds itself (`key-data`), or in a file (`key`)."""
    try:
        if data := entry.get(f"{key}-data"):
            return base64.b64decode(data)
        return (folder / entry[key]).read_bytes() if entry.get(key) else b""
    except (OSError, binascii.Error) as error:
        raise UsageError(f"kubeconfig: {key} cannot be read: {error}") from None


def _login_of(user: Mapping[str, Any], folder: Path) -> Callable[[], Login]:
    if user.get("exec"):
        return lambda: _login_by_command(user["exec"], folder)
    if user.get("token"):
        return lambda: Login(user["token"])
    if user.get("tokenFile"):
        return lambda: _token_login(folder / user["tokenFile"])
    certificate = _content(user, "client-certificate", folder)
    key = _content(user, "client-key", folder)
    return lambda: Login(certificate=certificate and certificate + b"\n" + key)


def _login_by_command(plugin: Mapping[str, Any], folder: Path) -> Login:
    """Log in by a command of the kubeconfig, such as `aws eks get-token`."""
    command = str(plugin["command"])
    if os.sep in command:
        command = str(folder / command)
    request = {
        "apiVersion": plugin["apiVersion"],
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    variables = {v["name"]: v["value"] for v in plugin.get("env") or ()}
    where = f"kubeconfig: the command {command}"
    try:
        done = subprocess.run(
            [command, *(plugin.get("args") or ())],
            env={**os.environ, **variables, "KUBERNETES_EXEC_INFO": json.dumps(request)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LOGIN_TIMEOUT_S,
            check=True,
        )
        status = parse_object(done.stdout)["status"]
        until = status.get("expirationTimestamp")
        return Login(
            status.get("token", ""),
            "\n".join(status.get(key, "") for key in ("clientCertificateData", "clientKeyData"))
            .strip()
            .encode(),
            datetime.fromisoformat(until.replace("Z", "+00:00")).timestamp()
            if until
            else float("inf"),
        )
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        raise FlowError(f"{where} failed: {said[-1] if said else error.returncode}") from None
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        raise FlowError(f"{where} gives no credential: {error}") from None
