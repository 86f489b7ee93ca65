"""A module that starts a thread when it is imported, as some libraries do."""

from __future__ import annotations

import threading
import time

threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
