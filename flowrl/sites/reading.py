"""What a site has read: prints of each node, the edges and the schedule, to compare with what the run has read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from flowrl.checks.check import Checked
from flowrl.checks.program import Part, Program
