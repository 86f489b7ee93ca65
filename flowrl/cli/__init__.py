"""The command line: `flowrl VERB …`. One verb, one job."""

import sys

try:
    from flowrl.cli.main import command, main
except KeyboardInterrupt:  # `command`, which turns it into words, is not there yet
    print("flowrl: interrupted", file=sys.stderr)
    raise SystemExit(130) from None

__all__ = ["command", "main"]
