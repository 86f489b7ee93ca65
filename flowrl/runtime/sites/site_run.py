"""Runs a site in its own thread or process: makes it, executes its program, ends it, and reports its failure."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace

from flowrl.channels import ChannelError, SiteChannels
from flowrl.checks.check import CheckedGraph
from flowrl.core.errors import NodeError
from flowrl.graph.site_layout import COORDINATOR, SiteLayout
from flowrl.machine.numerics import reset_numerics
from flowrl.runtime.control.messages import (
    CONTROL_LIMITS,
    FAILURE,
    FAILURES,
    ConnectionFailure,
    Failure,
    NodeFailure,
    SiteFailure,
)
from flowrl.runtime.control.site_control import CoordinatorMessages, SiteReporter
from flowrl.runtime.failed_firing import keep_failed_firing
from flowrl.runtime.interruptions import ChannelFailure, SiteStopped
from flowrl.runtime.remote.edge_factory import SiteEdgeFactory
from flowrl.runtime.remote.errors import describe_error
from flowrl.runtime.sites.site import SiteScheduler

FAILURE_S = 5.0  # in which the coordinator shall receive the report of a failure


def run_site(
    checked: CheckedGraph,
    layout: SiteLayout,
    name: str,
    channels: SiteChannels,
    seed: int,
    on_made: Callable[[SiteScheduler], None] = lambda scheduler: None,
    continues: bool = False,
) -> None:
    """Make a site, execute its program, and end it. Failures are reported to the coordinator.

    `on_made` is called with the scheduler before the first firing. A site that `continues` loads parts of a snapshot.
    """
    scheduler: SiteScheduler | None = None
    try:
        reset_numerics(checked.graph.torch_threads)
        reporter = SiteReporter(channels, name, len(layout.kinds))
        messages = CoordinatorMessages(channels, name)
        edges = SiteEdgeFactory(checked, layout, name, channels)
        scheduler = SiteScheduler(checked, seed, edges, messages, reporter, channels, continues)
        on_made(scheduler)
        reset_numerics(checked.graph.torch_threads)
        scheduler.live()
    except SiteStopped:
        pass
    except (ChannelFailure, ChannelError) as error:
        _report_failure(channels, name, ConnectionFailure(str(error), traceback.format_exc()))
    except NodeError as error:
        if scheduler is not None:
            keep_failed_firing(error, scheduler.instances)
        _report_failure(channels, name, NodeFailure(describe_error(error)))
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        _report_failure(channels, name, SiteFailure(text, traceback.format_exc()))
    finally:
        if scheduler is not None:
            scheduler.close()
        channels.close(drop=True)  # the coordinator has received all that it needs


def _report_failure(channels: SiteChannels, name: str, failure: Failure) -> None:
    """Report a failure on a channel of its own, because the channel for reports may be full or not open yet."""
    sender = channels.open_sender(f"{FAILURES}:{name}", COORDINATOR, limits=CONTROL_LIMITS)
    try:
        refusals = tuple(channels.connections.refusal_lines())
        sender.send(FAILURE.encode(replace(failure, refusals=refusals)))
        channels.flush()
        channels.wait_until(lambda: sender.all_taken, (sender,), FAILURE_S)
    except (ChannelError, SiteStopped):
        return  # the coordinator has ended, or notices that this site has
