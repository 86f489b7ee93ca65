"""`flowrl` whose states have relays from another number of sends on: `python -m bench._relays SENDS WORDS…`."""

from __future__ import annotations

import sys
from functools import partial

from flowrl.checks.state_relays import with_relays
from flowrl.cli import command
from flowrl.runs import run_sites

if __name__ == "__main__":
    sends = int(sys.argv.pop(1))
    run_sites.with_relays = partial(with_relays, min_sends=sends)
    sys.exit(command())
