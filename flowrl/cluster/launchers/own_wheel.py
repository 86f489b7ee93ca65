"""This flowrl as a wheel, made of its installed files, for machines that do not have it."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from flowrl.core.errors import FlowError, UsageError
from flowrl.version import VERSION

# An editable install has them in other folders than below `flowrl`.
PACKAGES = ("flowrl", "flowrl.nodes", "flowrl.graphs", "flowrl.docs")
SAME_DATE = (1980, 1, 1, 0, 0, 0)  # equal files make an equal wheel
WHEEL = "Wheel-Version: 1.0\nGenerator: flowrl\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
REQUIREMENT = re.compile(r"([\w.-]+)(\[[^]]*\])?")


def own_wheel() -> tuple[str, bytes]:
    """The name and the content of a wheel of this flowrl."""
    files = dict(_files())
    info = f"flowrl-{VERSION}.dist-info"
    files[f"{info}/METADATA"] = _metadata("METADATA", "PKG-INFO")
    files[f"{info}/entry_points.txt"] = _metadata("entry_points.txt", "entry_points.txt")
    files[f"{info}/WHEEL"] = WHEEL.encode()
    files[f"{info}/RECORD"] = "".join(
        [*(f"{name},{_digest(files[name])},{len(files[name])}\n" for name in sorted(files)),
         f"{info}/RECORD,,\n"]
    ).encode()  # fmt: skip
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name in sorted(files):
            wheel.writestr(zipfile.ZipInfo(name, SAME_DATE), files[name], zipfile.ZIP_DEFLATED)
    return f"flowrl-{VERSION}-py3-none-any.whl", content.getvalue()


def _files() -> Iterator[tuple[str, bytes]]:
    """The files of all packages, each with its path in a wheel."""
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
            for path in folder.rglob("*"):
                if path.is_file() and "__pycache__" not in path.parts:
                    name = "/".join([*package.split("."), *path.relative_to(folder).parts])
                    yield name, path.read_bytes()


def _metadata(name: str, in_egg_info: str) -> bytes:
    """A file about the installed package. In a checkout it may be in `flowrl.egg-info`, under another name."""
    try:
        installed = importlib.metadata.distribution("flowrl")
        text = installed.read_text(name) or installed.read_text(in_egg_info)
    except importlib.metadata.PackageNotFoundError:
        text = None
    if text is None:
        raise FlowError(
            "this flowrl is not installed, so it cannot be sent; install it with pip, "
            "or leave out `install`"
        )
    return text.encode()


def _digest(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


def needed_packages(more: Sequence[str]) -> list[str]:
    """What flowrl needs, and `more`, each in the version that is installed here."""
    required = importlib.metadata.requires("flowrl") or []
    own = [text for text in required if ";" not in text]
    return [_pinned(requirement) for requirement in (*own, *more)]


def _pinned(requirement: str) -> str:
    """A requirement of exactly the version here. One of `more` may say its own version."""
    found = REQUIREMENT.match(requirement)
    assert found is not None
    try:
        version = importlib.metadata.version(found[1])
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(
            f"packages: '{found[1]}' is not installed here, so its version is unknown; write {found[1]}==VERSION"
        ) from None
    # a build such as 2.13.0+cpu is in no public index
    return f"{found[1]}{found[2] or ''}=={version.partition('+')[0]}"
