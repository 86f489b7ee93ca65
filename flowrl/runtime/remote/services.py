"""Links across sites: in a service's place stands a stub that calls it there.

A call belongs to the firing of its client, wherever the service lives: what the service tells meanwhile comes with
the answer, and what it raises is raised again at the client's. So a run is the same as if both shared a site.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from flowrl.channels import ChannelLimits, Receiver, Sender
from flowrl.channels.calls import CallClient, CallServer
from flowrl.checks.ordering import exclusive_services
from flowrl.core.context import Context, instance_key
from flowrl.core.node import Node
from flowrl.core.ports import Service
from flowrl.graph.model import Edge, Graph, link_edges
from flowrl.graph.replica_pairs import pair_label
from flowrl.graph.site_layout import SiteLayout
from flowrl.runtime.control.messages import error_words, raised_there, record_data, record_of
from flowrl.runtime.instance import RAISED
from flowrl.runtime.instances import Instances
from flowrl.runtime.remote.call_values import CallValueCodec
from flowrl.runtime.remote.waiting import ServiceWait, SiteWaits

HELLO = "(hello)"  # in a method's place: the service was made; here is what it told meanwhile
RENEW = "(renew)"  # the same: make it anew
WORDS = (HELLO, RENEW)
BOUND = ChannelLimits(tokens=64)  # one call at a time; but so many go without a word about credit

Contexts = Mapping[str, Context]  # those of a service and of the services that it calls, by key
Answer = tuple[bool, Any, list[Any]]  # whether it worked; the value or the error; what was told


class ClientStub:
    """What a client holds in the place of a service that lives elsewhere."""

    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    def __getattr__(self, name: str) -> Callable[..., Any]:
        self._line.demand(name)
        return lambda *arguments, **named: self._line.ask(name, *arguments, **named)

    def begin(self, method: str, *arguments: Any, **named: Any) -> PendingCall:
        """Call a method, and do not wait; before the next call, the answer is to be taken."""
        self._line.demand(method)
        return self._line.begin(method, *arguments, **named)


class PendingCall:
    """A call that was begun."""

    def __init__(self, line: ServiceClient, number: int) -> None:
        self._line, self._number = line, number

    def ready(self) -> bool:
        """Whether the answer can be taken without waiting."""
        return self._line.answered(self._number)

    def take(self) -> Any:
        """The answer; what the service told meanwhile belongs to the firing that takes it."""
        return self._line.answer(self._number)

    def until(
        self,
        condition: Callable[[], bool],
        others: Iterable[PendingCall] = (),
        fds: Collection[int] = (),
    ) -> None:
        """Sleep until this holds, which the answer of this call or of others may bring about, or who writes
        to these descriptors. Whoever waits reads what was written there."""
        lines = [self._line, *(other._line for other in others)]
        self._line.wait.until(condition, [line.answers for line in lines], fds)


class ServiceClient:
    """The client's end of a link."""

    def __init__(
        self, service: Service, site: str, call: CallClient, wait: ServiceWait, told: Contexts
    ) -> None:
        self.service, self._site, self._call, self._told = service, site, call, told
        self.wait, self.answers = wait, call.replies
        self._records = CallValueCodec(service.values)
        self._open = ""  # the method whose answer was not taken

    def demand(self, method: str) -> None:
        """The service must offer this."""
        service = self.service
        if method not in service.methods:
            offers = ", ".join(service.methods)
            raise AttributeError(
                f"the service '{service.type}' offers {offers}; it has no '{method}'"
            )

    def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the service, or say one of the words above."""
        return self.begin(method, *arguments, **named).take()

    def begin(self, method: str, *arguments: Any, **named: Any) -> PendingCall:
        """The same, without waiting."""
        if self._open and method not in WORDS:
            raise RuntimeError(
                f"the service '{self.service.type}' was asked to {self._open}; take the answer "
                f"before it is asked to {method}"
            )
        plain = self._records.plain
        number = self._call.begin((method, plain(list(arguments)), plain(named)))
        self._open = method
        return PendingCall(self, number)

    def answered(self, number: int) -> bool:
        """Whether the answer is here."""
        if not self._call.has_reply(number):
            self.wait.look()
        return self._call.has_reply(number)

    def answer(self, number: int) -> Any:
        """Wait for it; with it comes what the service told meanwhile."""
        worked, value, told = self._call.wait_for_reply(number)
        self._open = ""
        for key, counted, records in told:
            context = self._told[key]
            if counted is not None:
                context.count(*counted)
            for record in records:
                context.emit(record_of(record))
        if not worked:
            raise raised_there(self._site, value)
        return self._records.whole(value)


class ServiceEndpoint:
    """The service's end of a link."""

    def __init__(
        self,
        service: Service,
        node: Callable[[], Node],
        renew: Callable[[], None],
        told: Contexts,
        serving: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._service, self._node, self._renew = service, node, renew
        self._told, self._serving = told, serving
        self._records = CallValueCodec(service.values)

    def serve(self, request: tuple[str, list[Any], dict[str, Any]]) -> Answer:
        """Do what is asked; what goes wrong is the client's to hear."""
        try:
            with self._serving():
                value = self._records.plain(self._do(*request))
        except RAISED as error:
            return self.failed(error)
        return True, value, self._meanwhile()

    def failed(self, error: BaseException) -> Answer:
        """The answer where something went wrong, or where the answer cannot be sent."""
        return False, error_words(error), self._meanwhile()

    def _do(self, method: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        if method == HELLO:
            return None
        if method == RENEW:
            return self._renew()
        if method not in self._service.methods:
            raise AttributeError(f"the service '{self._service.type}' has no '{method}'")
        whole = self._records.whole
        return getattr(self._node(), method)(*whole(arguments), **whole(named))

    def _meanwhile(self) -> list[Any]:
        """What was counted and told since the last answer."""
        told: list[Any] = []
        for key, context in self._told.items():
            did, records = context.take_count(), context.take_records()
            if did is not None or records:
                counted = None if did is None else [did.env_steps, did.episodes]
                told.append([key, counted, [record_data(record) for record in records]])
        return told


class RemoteServices:
    """The links between a site and the others."""

    def __init__(self, graph: Graph, layout: SiteLayout, site: str, waiting: SiteWaits) -> None:
        self._graph, self._layout, self._site, self._waiting = graph, layout, site, waiting
        self._owned = exclusive_services(graph)
        clients = [name for name, spec in graph.nodes.items() if spec.fires]
        self._told_by_client = {own for name in clients for own in self._owned[name]}
        self._callers: dict[str, CallClient] = {}
        self._waits: dict[str, ServiceWait] = {}
        self._desks: dict[str, tuple[Receiver, Sender]] = {}
        self._stubs: dict[str, ClientStub] = {}
        for edge in link_edges(graph):
            for replica in range(graph.nodes[edge.to.node].replicas):
                self._open(edge, replica)

    def _open(self, edge: Edge, replica: int) -> None:
        """The lanes of a link with one end here: before any mail comes, as a client may be early."""
        name, channels = _name(edge, replica), self._waiting.channels
        client = self._layout.site_of[edge.to.node, replica]
        server = self._layout.site_of[edge.source.node, replica]
        if client == self._site != server:
            requests = channels.open_sender(f"{name}?", server, limits=BOUND)
            answers = channels.open_receiver(f"{name}!", server, limits=BOUND)
            who = instance_key(edge.to.node, replica)
            link = pair_label(edge, (0, replica, replica))
            wait = self._waits[name] = self._waiting.calling(who, link, server)
            self._callers[name] = CallClient(requests, answers, wait)
        elif server == self._site != client:
            asked = channels.open_receiver(f"{name}?", client, limits=BOUND)
            self._desks[name] = asked, channels.open_sender(f"{name}!", client, limits=BOUND)

    def stub(self, instances: Instances, edge: Edge, replica: int, fresh: bool) -> ClientStub:
        """What a client here calls; its service elsewhere is made anew if `fresh`."""
        name = _name(edge, replica)
        if name not in self._stubs:
            told = self._contexts(instances, edge.source.node, replica)
            server = self._layout.site_of[edge.source.node, replica]
            caller, wait = self._callers[name], self._waits[name]
            line = ServiceClient(self._service(edge), server, caller, wait, told)
            line.ask(HELLO)
            self._stubs[name] = ClientStub(line)
        elif fresh:
            self._stubs[name]._line.ask(RENEW)
        return self._stubs[name]

    def serve(self, instances: Instances, node: str, replica: int) -> None:
        """A service was made here; its clients elsewhere may call."""
        for edge in link_edges(self._graph):
            name = _name(edge, replica)
            if edge.source.node == node and name in self._desks:
                told = self._contexts(instances, node, replica)
                counter = ServiceEndpoint(
                    self._service(edge),
                    lambda: instances.services[node, replica],
                    lambda: instances.renew_service(node, replica),
                    told,
                    self._waiting.as_service(instance_key(node, replica)),
                )
                channels = self._waiting.channels
                CallServer(channels, *self._desks[name], counter.serve, counter.failed)

    def _contexts(self, instances: Instances, service: str, replica: int) -> Contexts:
        """A service's context and those of the services it calls, if one client tells for them."""
        names = [n for n in (service, *self._owned[service]) if n in self._told_by_client]
        found = [instances.told.setdefault((n, replica), Context(n, replica)) for n in names]
        return {context.key: context for context in found}

    def _service(self, edge: Edge) -> Service:
        service = self._graph.nodes[edge.source.node].port(edge.source.port)
        assert isinstance(service, Service)
        return service


def _name(edge: Edge, replica: int) -> str:
    return f"{edge.source}-{edge.to}#{replica}"
