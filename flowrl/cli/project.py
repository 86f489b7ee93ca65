"""The verbs around a project: new, doctor."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path


def new(arguments: Namespace) -> int:
    """`flowrl new`."""
    from flowrl.cli.new_project import new_project

    print(new_project(Path(arguments.dir)))
    return 0


def doctor(arguments: Namespace) -> int:
    """`flowrl doctor`."""
    from flowrl.cli.doctor import doctor as findings
    from flowrl.cli.doctor import doctor_text

    found = findings()
    print(doctor_text(found))
    return 0 if all(f.ok for f in found) else 1
