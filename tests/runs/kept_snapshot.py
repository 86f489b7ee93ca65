"""The graph of the snapshot that is kept in `data/snapshot_2`, to see whether later versions of flowrl read it.

    python -m tests.runs.kept_snapshot FOLDER

runs the graph, and leaves a run with a snapshot in FOLDER. A new format of snapshots gets a new folder; the old ones
stay.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import flowrl

ITERS = 15  # of the run that is kept


def graph() -> dict[str, Any]:
    """A graph whose bits are equal on every machine."""
    nodes = {
        "c": {"type": "tests.toys.toy_nodes:Source", "give": 1},
        "b": {"type": "naive_buffer", "size": 20, "batch_size": 2, "updates_per_push": 1},
        "l": {"type": "tests.toys.toy_nodes:Learner"},
    }
    edges = ["c -> b -> l", "l.weights -> c.weights"]
    warmup = [{"edges": ["c -> b"], "rounds": 3}]
    return {"nodes": nodes, "edges": edges, "warmup": warmup, "snapshots": {"every_rounds": 5}}


if __name__ == "__main__":
    flowrl.load(graph()).run(train_iters=ITERS, out=Path(sys.argv[1]), quiet=True)
