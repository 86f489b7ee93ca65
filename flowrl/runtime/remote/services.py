"""Links across sites: the client holds a stub, which calls the service on the service's site.

A call belongs to the firing of its client, wherever the service lives. The counts and records of the service return
with the reply and are emitted as part of that firing, and its errors are raised again at the client. So a run has the
same results as if both shared a site.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from flowrl.channels import ChannelLimits, Receiver, Sender
from flowrl.channels.calls import CallClient, CallServer
from flowrl.checks.ordering import exclusive_services
from flowrl.checks.service_paths import ServicePath
from flowrl.core.context import Context, instance_key
from flowrl.core.ports import Service
from flowrl.core.saved_state import SavedState
from flowrl.graph.model import Edge, Graph, link_edges
from flowrl.graph.replica_pairs import pair_label
from flowrl.graph.site_layout import SiteLayout
from flowrl.runtime.edge_factory import LocalService, Replica
from flowrl.runtime.instance import RAISED
from flowrl.runtime.records import RECORD
from flowrl.runtime.remote.call_values import CallValueCodec
from flowrl.runtime.remote.errors import REMOTE_ERROR, describe_error, restore_error
from flowrl.runtime.remote.waiting import ServiceWait, SiteWaits

# requests that stand in place of a method's name
FETCH_RECORDS = "(records)"  # return the records that the service emitted while it was made
RECREATE = "(recreate)"  # replace the service by a new one
SAVE_STATE = "(save)"  # return the state of the last service of a path that begins here
LOAD_STATE = "(load)"  # load it
REQUESTS = (FETCH_RECORDS, RECREATE, SAVE_STATE, LOAD_STATE)

CALL_LIMITS = ChannelLimits(tokens=64)  # one call at a time needs little credit

Contexts = Mapping[str, Context]  # of a service and of the services that it calls, by key
Reply = tuple[bool, Any, list[Any]]  # success; the value or the error; counts and records


class ClientStub:
    """Stands in for a service on another site. It has the methods of the service."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        self._client.check_method(name)
        return lambda *arguments, **named: self._client.call(name, *arguments, **named)

    def begin(self, method: str, *arguments: Any, **named: Any) -> PendingCall:
        """Start a call without waiting. Its reply must be taken before the next call."""
        self._client.check_method(method)
        return self._client.begin(method, *arguments, **named)


class PendingCall:
    """A call whose reply has not been taken yet."""

    def __init__(self, client: ServiceClient, number: int) -> None:
        self._client, self._number = client, number

    def ready(self) -> bool:
        """Return whether the reply can be taken without waiting."""
        return self._client.has_reply(self._number)

    def take(self) -> Any:
        """Wait for the reply. The records that come with it belong to the firing that takes it."""
        return self._client.wait_for_reply(self._number)

    def until(
        self,
        condition: Callable[[], bool],
        others: Iterable[PendingCall] = (),
        fds: Collection[int] = (),
    ) -> None:
        """Wait until the condition holds.

        The reply of this call or of others, or data at the file descriptors, can make it true. The caller reads the
        data.
        """
        clients = [self._client, *(other._client for other in others)]
        self._client.wait.until(condition, [client.replies for client in clients], fds)


class ServiceClient:
    """The client's end of a link across sites."""

    def __init__(
        self, service: Service, site: str, calls: CallClient, wait: ServiceWait, contexts: Contexts
    ) -> None:
        self.service, self._site, self._calls, self._contexts = service, site, calls, contexts
        self.wait, self.replies = wait, calls.replies
        self._codec = CallValueCodec(service.values)
        self._pending_method = ""  # the method whose reply has not been taken

    def check_method(self, method: str) -> None:
        """Raise if the service does not offer this method."""
        service = self.service
        if method not in service.methods:
            offers = ", ".join(service.methods)
            raise AttributeError(
                f"the service '{service.type}' offers {offers}; it has no '{method}'"
            )

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the service, or send one of the requests above, and wait for the reply."""
        return self.begin(method, *arguments, **named).take()

    def begin(self, method: str, *arguments: Any, **named: Any) -> PendingCall:
        """Start a call without waiting."""
        if self._pending_method and method not in REQUESTS:
            raise RuntimeError(
                f"service '{self.service.type}': a call of '{self._pending_method}' is pending; "
                f"take its reply before '{method}' is called"
            )
        encode = self._codec.encode
        number = self._calls.begin((method, encode(list(arguments)), encode(named)))
        self._pending_method = method
        return PendingCall(self, number)

    def has_reply(self, number: int) -> bool:
        """Return whether the reply has arrived."""
        if not self._calls.has_reply(number):
            self.wait.drain()
        return self._calls.has_reply(number)

    def wait_for_reply(self, number: int) -> Any:
        """Wait for the reply, and emit the records that come with it."""
        succeeded, value, emitted = self._calls.wait_for_reply(number)
        self._pending_method = ""
        for key, counted, records in emitted:
            context = self._contexts[key]
            if counted is not None:
                context.count(*counted)
            for record in records:
                context.emit(RECORD.decode(record))
        if not succeeded:
            raise restore_error(self._site, REMOTE_ERROR.decode(value))
        return self._codec.decode(value)


class ServiceEndpoint:
    """The service's end of a link across sites."""

    def __init__(
        self,
        port: Service,
        service: LocalService,
        contexts: Contexts,
        serving: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._port, self._service = port, service
        self._contexts, self._serving = contexts, serving
        self._codec = CallValueCodec(port.values)

    def serve(self, request: tuple[str, list[Any], dict[str, Any]]) -> Reply:
        """Answer a request. An error is raised again at the client."""
        try:
            with self._serving():
                value = self._codec.encode(self._handle(*request))
        except RAISED as error:
            return self.failed(error)
        return True, value, self._take_records()

    def failed(self, error: BaseException) -> Reply:
        """The reply to a request that failed, or whose reply cannot be sent."""
        return False, REMOTE_ERROR.encode(describe_error(error)), self._take_records()

    def _handle(self, method: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        if method == FETCH_RECORDS:
            return None
        if method == RECREATE:
            self._service.recreate()
            return None
        if method == SAVE_STATE:
            saved = self._service.save(tuple(arguments[0]))
            return [dict(saved.arrays), saved.text]
        if method == LOAD_STATE:
            path, arrays, text = arguments
            self._service.load(tuple(path), SavedState(arrays, text))
            return None
        if method not in self._port.methods:
            raise AttributeError(f"the service '{self._port.type}' has no '{method}'")
        decode = self._codec.decode
        return getattr(self._service.node(), method)(*decode(arguments), **decode(named))

    def _take_records(self) -> list[Any]:
        """Return the counts and records, since the last reply, of the service and the services that it calls."""
        emitted: list[Any] = []
        for key, context in self._contexts.items():
            count, records = context.take_count(), context.take_records()
            if count is not None or records:
                counted = None if count is None else [count.env_steps, count.episodes]
                emitted.append([key, counted, [RECORD.encode(record) for record in records]])
        return emitted


class RemoteServices:
    """The links between a site and other sites."""

    def __init__(self, graph: Graph, layout: SiteLayout, site: str, waits: SiteWaits) -> None:
        self._graph, self._layout, self._site, self._waits = graph, layout, site, waits
        self._exclusive = exclusive_services(graph)
        clients = [name for name, spec in graph.nodes.items() if spec.fires]
        self._can_record = {service for name in clients for service in self._exclusive[name]}
        self._clients: dict[str, tuple[CallClient, ServiceWait]] = {}
        self._servers: dict[str, tuple[Receiver, Sender]] = {}
        self._stubs: dict[str, tuple[ClientStub, ServiceClient]] = {}
        for edge in link_edges(graph):
            for replica in range(graph.nodes[edge.to.node].replicas):
                self._open_channels(edge, replica)

    def _open_channels(self, edge: Edge, replica: int) -> None:
        """Open the channels of a link with one end on this site."""
        name, channels = _link_name(edge, replica), self._waits.channels
        client = self._layout.site_of[edge.to.node, replica]
        server = self._layout.site_of[edge.source.node, replica]
        if client == self._site != server:
            call_sender = channels.open_sender(f"{name}?", server, limits=CALL_LIMITS)
            reply_receiver = channels.open_receiver(f"{name}!", server, limits=CALL_LIMITS)
            instance = instance_key(edge.to.node, replica)
            label = pair_label(edge, (0, replica, replica))
            wait = self._waits.on_service(instance, label, server)
            self._clients[name] = CallClient(call_sender, reply_receiver, wait), wait
        elif server == self._site != client:
            requests = channels.open_receiver(f"{name}?", client, limits=CALL_LIMITS)
            replies = channels.open_sender(f"{name}!", client, limits=CALL_LIMITS)
            self._servers[name] = requests, replies

    def client_stub(
        self, edge: Edge, replica: int, contexts: dict[Replica, Context], fresh: bool
    ) -> ClientStub:
        """Return the stub of a service on another site. With `fresh`, the service is recreated."""
        name = _link_name(edge, replica)
        if name not in self._stubs:
            own = self._recording_contexts(contexts, edge.source.node, replica)
            server = self._layout.site_of[edge.source.node, replica]
            client = ServiceClient(self._service(edge), server, *self._clients[name], own)
            client.call(FETCH_RECORDS)
            self._stubs[name] = ClientStub(client), client
        elif fresh:
            self._stubs[name][1].call(RECREATE)
        return self._stubs[name][0]

    def save_service(self, edge: Edge, path: ServicePath, replica: int) -> SavedState:
        """Return the state of the last service of a path that begins with the service of this link."""
        arrays, text = self._stubs[_link_name(edge, replica)][1].call(SAVE_STATE, list(path))
        return SavedState(arrays, text)

    def load_service(self, edge: Edge, path: ServicePath, replica: int, saved: SavedState) -> None:
        """Load the state of the last service of such a path."""
        client = self._stubs[_link_name(edge, replica)][1]
        client.call(LOAD_STATE, list(path), dict(saved.arrays), saved.text)

    def serve(self, service: LocalService, contexts: dict[Replica, Context]) -> None:
        """Let clients on other sites call a service of this site."""
        node, replica = service.replica
        for edge in link_edges(self._graph):
            name = _link_name(edge, replica)
            if edge.source.node == node and name in self._servers:
                own = self._recording_contexts(contexts, node, replica)
                serving = self._waits.serving(instance_key(node, replica))
                endpoint = ServiceEndpoint(self._service(edge), service, own, serving)
                channels = self._waits.channels
                CallServer(channels, *self._servers[name], endpoint.serve, endpoint.failed)

    def _recording_contexts(
        self, contexts: dict[Replica, Context], service: str, replica: int
    ) -> Contexts:
        """Return the contexts of a service and of the services that it calls, except services with several clients."""
        names = [n for n in (service, *self._exclusive[service]) if n in self._can_record]
        found = [contexts.setdefault((n, replica), Context(n, replica)) for n in names]
        return {context.key: context for context in found}

    def _service(self, edge: Edge) -> Service:
        service = self._graph.nodes[edge.source.node].port(edge.source.port)
        assert isinstance(service, Service)
        return service


def _link_name(edge: Edge, replica: int) -> str:
    return f"{edge.source}-{edge.to}#{replica}"
