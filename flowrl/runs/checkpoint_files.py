"""Which checkpoint of a run a user names: `best`, `last`, another name such as `iter-10000`, or a file."""

from __future__ import annotations

from pathlib import Path

from flowrl.core.checkpoint import SUFFIX
from flowrl.core.errors import RunError, UsageError, spelling_hint


def checkpoint_file(
    folder: Path, name: str | None, usual: tuple[str, ...] = ("best", "last")
) -> Path:
    """The file of a run's checkpoint; without a name, the first of the usual ones that exists, or else the newest."""
    if name is not None and name.endswith(SUFFIX):
        if not Path(name).is_file():
            raise UsageError(f"{name}: there is no such file; give a checkpoint, or its name")
        return Path(name)
    files = {path.stem: path for path in (folder / "checkpoints").glob(f"*{SUFFIX}")}
    if not files:
        raise RunError(f"{folder}: the run has saved no checkpoint yet")
    if name is None:
        newest = max(files, key=lambda found: files[found].stat().st_mtime)
        name = next((found for found in usual if found in files), newest)
    if name not in files:
        raise UsageError(f"{folder}: there is no checkpoint '{name}'; {spelling_hint(name, files)}")
    return files[name]
