"""`python -m bench` measures everything, `python -m bench NAME [ARGS]` one thing.

A benchmark is a module of this folder with `main(arguments) -> dict`. Without arguments it measures
what it is meant to, and the answer goes to `bench/results/NAME.json`; with arguments it is a trial,
and only printed.
"""

from __future__ import annotations

import difflib
import importlib
import json
import pkgutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import bench
from flowrl.machine.environment import environment

FOLDER = Path(bench.__file__).parent
RESULTS = FOLDER / "results"
FACTS = ("flowrl", "python", "packages", "cpu", "cores", "git")  # no paths, no names of machines


def names() -> list[str]:
    """The benchmarks there are."""
    found = pkgutil.iter_modules([str(FOLDER)])
    return sorted(m.name for m in found if not m.ispkg and not m.name.startswith("_"))


def run(name: str, arguments: Sequence[str] = ()) -> Mapping[str, Any]:
    """One benchmark; a full one is written down."""
    begun_s = time.perf_counter()
    found: Mapping[str, Any] = importlib.import_module(f"bench.{name}").main(list(arguments))
    if not arguments:
        write(name, found, time.perf_counter() - begun_s)
    return found


def write(name: str, found: Mapping[str, Any], took_s: float) -> None:
    """What was found, and what it was found on."""
    known = environment(FOLDER)
    result = {
        "command": f"python -m bench {name}",
        "date": datetime.now(timezone.utc).date().isoformat(),
        "took_s": round(took_s, 1),
        **{fact: known[fact] for fact in FACTS},
        "found": found,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")


def run_all() -> list[str]:
    """All, each in a process of its own (none finds what another left); gives those that failed."""
    failed = []
    for name in names():
        print(f"\n{name}", flush=True)
        if subprocess.run([sys.executable, "-m", "bench", name], cwd=FOLDER.parent).returncode:
            failed.append(name)
    return failed


def main(words: Sequence[str]) -> str | None:
    """The command line; gives what went wrong."""
    if not words:
        failed = run_all()
        return f"failed: {', '.join(failed)}" if failed else None
    name, *arguments = words
    if name not in names():
        near = difflib.get_close_matches(name, names(), 1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(names())}"
        return f"bench: no benchmark '{name}'; {hint}"
    run(name, arguments)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
