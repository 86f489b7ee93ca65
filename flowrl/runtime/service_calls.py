"""Measures calls of services by clients of the same site. So their time is told apart from that of their clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from flowrl.runtime.site_state import ServiceCalls, SiteState


class LocalServiceStub:
    """Stands in for a service of the same site. Calls of its methods are measured; all else is the service's own."""

    def __init__(self, service: Any, methods: Iterable[str], calls: ServiceCalls, site: SiteState):
        self._service = service
        for name in methods:
            if hasattr(service, name):  # otherwise the call is an error, and not the link
                setattr(self, name, measured(getattr(service, name), calls, site))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)


def measured(
    method: Callable[..., Any], calls: ServiceCalls, site: SiteState
) -> Callable[..., Any]:
    """Return the method, with its time added to `calls`, without that of waits, which moves `last_fired_s`."""
    now = time.perf_counter

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        before_s = site.last_fired_s
        calls.began_s = began_s = now()
        try:
            return method(*arguments, **named)
        finally:
            calls.busy_s += now() - began_s - (site.last_fired_s - before_s)
            calls.count += 1
            calls.began_s = 0.0

    return call
