"""`python -m bench` runs all benchmarks, `python -m bench NAME [ARGUMENTS]` runs one.

A benchmark is a module of this folder with a function `main(arguments) -> dict`. Without arguments it
runs in full, and its results are written to `bench/results/NAME.json`. With arguments it is a trial,
whose results are only printed, unless `--write` is one of the arguments.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import json
import pkgutil
import shlex
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
WRITE = "--write"
# The facts that are published with results: no paths, and no names of machines.
APART = ("checkpoints", "learn", "zoo")  # these train, and take hours
PUBLISHED_FACTS = ("flowrl", "python", "packages", "cpu", "cores", "git")


def benchmark_names() -> list[str]:
    modules = pkgutil.iter_modules([str(FOLDER)])
    return sorted(m.name for m in modules if not m.ispkg and not m.name.startswith("_"))


def about(name: str) -> str:
    """The first line of a benchmark's docstring, without its imports."""
    module = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(module) or "").partition("\n")[0]


def run(name: str, arguments: Sequence[str] = ()) -> Mapping[str, Any]:
    """Run one benchmark; write its results if it runs in full, or if the arguments say so."""
    own = [argument for argument in arguments if argument != WRITE]
    start_s = time.perf_counter()
    results: Mapping[str, Any] = importlib.import_module(f"bench.{name}").main(own)
    if not own or WRITE in arguments:
        write_results(name, own, results, time.perf_counter() - start_s)
    return results


def write_results(
    name: str, arguments: Sequence[str], results: Mapping[str, Any], duration_s: float
) -> None:
    """Write the results with the command, the date and the environment."""
    facts = environment(FOLDER)
    record = {
        "command": shlex.join(["python", "-m", "bench", name, *arguments]),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "duration_s": round(duration_s, 1),
        **{fact: facts[fact] for fact in PUBLISHED_FACTS},
        "results": results,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")


def run_all() -> list[str]:
    """Run each benchmark in a new process; return the names of those that failed."""
    failed = []
    for name in (n for n in benchmark_names() if n not in APART):
        print(f"\n{name}", flush=True)
        if subprocess.run([sys.executable, "-m", "bench", name], cwd=FOLDER.parent).returncode:
            failed.append(name)
    return failed


def main(arguments: Sequence[str]) -> str | None:
    """Run the command line; return an error message, or None."""
    if not arguments:
        failed = run_all()
        return f"failed: {', '.join(failed)}" if failed else None
    name, *rest = arguments
    known = benchmark_names()
    if name in ("-h", "--help"):
        print(
            __doc__, *(f"  {known_name:<13} {about(known_name)}" for known_name in known), sep="\n"
        )
        return None
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"the benchmarks are {', '.join(known)}"
        return f"bench: no benchmark '{name}'; {hint}"
    run(name, rest)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
