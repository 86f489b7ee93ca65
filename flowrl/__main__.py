"""`python -m flowrl` is `flowrl`."""

import sys

from flowrl.cli import main

sys.exit(main())
