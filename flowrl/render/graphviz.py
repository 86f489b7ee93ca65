"""Runs the `dot` program of Graphviz."""

from __future__ import annotations

import shutil
import subprocess

from flowrl.core.errors import UsageError

TIMEOUT_S = 60.0


def is_installed() -> bool:
    return shutil.which("dot") is not None


def run_dot(dot: str, format: str, timeout_s: float = TIMEOUT_S) -> bytes:
    """Draw DOT text as `png` or `svg`."""
    program = shutil.which("dot")
    if program is None:
        raise UsageError(
            f"draw: .{format} needs the program 'dot', which is not on the PATH; "
            "install Graphviz (apt install graphviz, brew install graphviz), "
            "or draw .svg, .html, .md or .dot, which do not need it"
        )
    try:
        done = subprocess.run(
            [program, f"-T{format}"],
            input=dot.encode(),
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"draw: dot has not finished after {timeout_s:g} s; "
            "draw .html or .md, which do not need it"
        ) from None
    except OSError as error:
        raise UsageError(
            f"draw: {program} cannot be started: {error.strerror}; reinstall Graphviz"
        ) from None
    if done.returncode or not done.stdout:
        reason = done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}"
        raise UsageError(f"draw: dot failed: {reason}")
    return done.stdout
