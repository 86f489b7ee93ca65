"""A site as home of some instances: what stands in the place of those that live elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from flowrl.channels import Bound, ChannelError, Exchange, Receiver, Sender
from flowrl.checks.check import Checked
from flowrl.context import key_of
from flowrl.engine.runner import Position, Site
from flowrl.engine.streams import Awaited, Push, Queue, Take, Token, nothing
from flowrl.engine.versions import Versions
from flowrl.engine.waits import Wait
from flowrl.engine.ways import Lane, lane_name
from flowrl.engine.wiring import Home, Wired
from flowrl.graph import Edge, PortRef
from flowrl.sites.layout import Layout
from flowrl.sites.services import Calls
from flowrl.sites.waiting import Elsewhere, Waiting
from flowrl.state import START, State

SLACK_ROUNDS = 2  # rounds of tokens that may be under way beside the one that is worked on
STATE_TOKENS = 256  # ends of rounds: most are a word that nothing has changed


class Arriving(Awaited):
    """A queue that another site fills. What lies in it is here; the rest is waited for."""

    def __init__(
        self, waiting: Waiting, receiver: Receiver, wait: Wait, tokens: Iterable[Token] = ()
    ) -> None:
        super().__init__(tokens)
        self._waiting, self._receiver, self.wait = waiting, receiver, wait

    def popleft(self) -> Token:
        """The next token, whenever it comes."""
        return super().popleft() if super().__len__() else self.fetched()

    def fetched(self) -> Token:
        """The next token from the lane."""
        receiver = self._receiver
        try:
            self._waiting.on(receiver, self.wait)
            return receiver.take()
        except ChannelError as error:
            raise Elsewhere(error) from error

    def fill(self, tokens: int) -> None:
        while super().__len__() < tokens:
            super().append(self.fetched())

    def __len__(self) -> int:
        """Tokens that could be taken now."""
        self._waiting.exchange.drain()
        return super().__len__() + len(self._receiver)


class Leaving(deque[Token]):
    """A queue that another site empties."""

    def __init__(self, waiting: Waiting, sender: Sender, wait: Wait) -> None:
        super().__init__()
        self._waiting, self._sender, self._wait = waiting, sender, wait

    def append(self, token: Token) -> None:
        """Send a token, as soon as there is room."""
        sender = self._sender
        try:
            self._waiting.on(sender, self._wait)
            sender.send(*token)
        except ChannelError as error:
            raise Elsewhere(error) from error


class LeavingOrLost(Leaving):
    """The same on an edge that drops: the newest token goes where there is no room for it."""

    def __init__(self, waiting: Waiting, sender: Sender, wait: Wait) -> None:
        super().__init__(waiting, sender, wait)
        self.dropped = 0

    def append(self, token: Token) -> None:
        """Send a token, or lose it."""
        self._waiting.exchange.drain()
        if self._sender.ready():
            super().append(token)
        else:
            self.dropped += 1


class FirstCome(Awaited):
    """Several queues as one: whatever is here first is taken first."""

    def __init__(self, waiting: Waiting, queues: list[Queue], wait: Wait) -> None:
        super().__init__()
        self._waiting, self._queues, self._wait = waiting, queues, wait

    def popleft(self) -> Token:
        """A token of any of them."""
        return super().popleft() if super().__len__() else self._first()

    def _first(self) -> Token:
        self._waiting.until(lambda: any(map(len, self._queues)), self._wait)
        return next(queue for queue in self._queues if len(queue)).popleft()

    def fill(self, tokens: int) -> None:
        while super().__len__() < tokens:
            super().append(self._first())

    def append(self, token: Token) -> None:
        """A token from this site goes into the first, which is its own."""
        self._queues[0].append(token)

    def __len__(self) -> int:
        """Tokens that could be taken now."""
        return super().__len__() + sum(map(len, self._queues))


class Ends:
    """The versions of a state that lives elsewhere, as the rounds there ended with them."""

    def __init__(self, site: Site, arriving: Arriving, lag: int) -> None:
        self._site, self._arriving = site, arriving
        self._ends: deque[State] = deque(maxlen=lag + 1)
        self._rounds = -1  # rounds whose end has come; before them, version 0

    def take(self) -> Token:
        """The version at the end of round r - 1 - lag."""
        while self._rounds < self._site.rounds:
            state = self._arriving.popleft()[0]
            if self._rounds < 0:
                self._ends.extend([state] * (self._ends.maxlen or 1))
            else:
                self._ends.append(self._ends[-1] if state is None else state)
            self._rounds += 1
        return self._ends[0], self._ends[0].clock


class Pacing:
    """The versions that pace: all firings that one of them paces see the same."""

    def __init__(self, site: Site, arriving: Arriving) -> None:
        self._site, self._arriving = site, arriving
        self._at: Position = ()
        self._token: Token = nothing()

    def take(self) -> Token:
        """The version that this part of the program is paced by."""
        if self._at != self._site.at:
            state = self._arriving.popleft()[0]
            self._at, self._token = self._site.at, (state, state.clock)
        return self._token


class Newest:
    """The newest version that has come of a state that lives elsewhere."""

    def __init__(self, arriving: Arriving) -> None:
        self._arriving = arriving
        self._state: State | None = None

    def take(self) -> Token:
        """Whatever is newest; the first is waited for."""
        while self._state is None or len(self._arriving):
            state = self._arriving.popleft()[0]
            self._state = state or self._state
        return self._state, self._state.clock


class SiteHome(Home):
    """The home of one site's instances."""

    def __init__(self, checked: Checked, layout: Layout, name: str, exchange: Exchange) -> None:
        super().__init__()
        self._checked, self._layout, self.name = checked, layout, name
        self._exchange, self.waiting = exchange, Waiting(exchange, self.site)
        lags = [e.lag for e in checked.graph.edges if e.kind == "state"]
        self._beginnings: list[Callable[[], None]] = []
        self._views: dict[tuple[PortRef, int], Take] = {}
        self._rounds = max(lags, default=0) + SLACK_ROUNDS
        self._calls = Calls(checked.graph, layout, name, self.waiting)  # before any mail comes

    def begin(self) -> None:
        """All lanes are open on all sites: send what is there before round 0."""
        for send in self._beginnings:
            send()

    def stub(self, wired: Wired, edge: Edge, replica: int, fresh: bool) -> Any:
        return self._calls.stub(wired, edge, replica, fresh)

    def serve(self, wired: Wired, node: str, replica: int) -> None:
        self._calls.serve(wired, node, replica)

    def has(self, node: str, replica: int) -> bool:
        return self._layout.where[node, replica] == self.name

    def taking(self, edge: Edge, lane: Lane, tokens: list[Token]) -> Queue:
        peer = self._layout.where[edge.sources[lane[0]].node, lane[1]]
        receiver = self._exchange.receiver(_name(edge, lane), peer, bound=self._bound(edge))
        wait = self.waiting.on_input(key_of(edge.to.node, lane[2]), lane_name(edge, lane), receiver)
        return Arriving(self.waiting, receiver, wait, tokens)

    def giving(self, edge: Edge, lane: Lane) -> Queue:
        peer = self._layout.where[edge.to.node, lane[2]]
        sender = self._exchange.sender(_name(edge, lane), peer, bound=self._bound(edge))
        who = key_of(edge.sources[lane[0]].node, lane[1])
        wait = self.waiting.on_output(who, lane_name(edge, lane), sender)
        kind = LeavingOrLost if edge.when_full == "drop_oldest" else Leaving
        return kind(self.waiting, sender, wait)

    def joined(self, edge: Edge, replica: int, queues: list[Queue]) -> Queue:
        wait = self.waiting.on_input(key_of(edge.to.node, replica), f"any of {edge}")
        return FirstCome(self.waiting, queues, wait)

    def view(self, edge: Edge, replica: int) -> Take:
        """The same view whenever a phase connects the instance anew."""
        if (edge.to, replica) not in self._views:
            self._views[edge.to, replica] = self._new_view(edge, replica)
        return self._views[edge.to, replica]

    def _new_view(self, edge: Edge, replica: int) -> Take:
        """An end of each round, or the versions that pace, or the newest."""
        peer = self._layout.where[edge.source.node, 0]
        receiver = self._exchange.receiver(_state_name(edge, replica), peer, bound=_STATES)
        who, name = key_of(edge.to.node, replica), lane_name(edge, (0, 0, replica))
        arriving = Arriving(self.waiting, receiver, self.waiting.on_input(who, name, receiver))
        if edge.every is not None:
            return Pacing(self.site, arriving).take
        if edge.latest:
            return Newest(arriving).take
        return Ends(self.site, arriving, edge.lag).take

    def readers(self, edge: Edge, versions: Versions) -> list[Push]:
        """Each reader elsewhere is sent version 0, and then what each round ended with."""
        return [self._reader(edge, replica, versions) for replica in self._elsewhere(edge)]

    def _reader(self, edge: Edge, replica: int, versions: Versions) -> Push:
        leaving = self._state_lane(edge, replica)
        last: list[State | None] = [None]

        def push(token: Token) -> None:
            state = token[0]
            leaving.append((None if state is last[0] else state, START))
            last[0] = state

        self._beginnings.append(lambda: push((versions.newest(), START)))
        return push

    def paced(self, edge: Edge, versions: Versions) -> list[Callable[[], None]]:
        """What sends the versions that pace instances elsewhere."""
        return [self._teller(edge, replica, versions) for replica in self._elsewhere(edge)]

    def _teller(self, edge: Edge, replica: int, versions: Versions) -> Callable[[], None]:
        leaving = self._state_lane(edge, replica)
        return lambda: leaving.append((versions.newest(), START))

    def attempts(self, node: str) -> Callable[[], bool]:
        """What a node that may find too few tokens does elsewhere, turn by turn."""
        peer = self._layout.where[node, 0]
        receiver = self._exchange.receiver(_attempts_name(node, self.name), peer, bound=_STATES)
        arriving = Arriving(self.waiting, receiver, self.waiting.on_turns(node, receiver))
        return lambda: bool(arriving.popleft()[0])

    def told_attempts(self, node: str) -> list[Push]:
        """Every site where something is paced by a node here is told of its turns."""
        paced = {e.to.node for e in self._checked.graph.edges if e.every and e.source.node == node}
        sites = {site for (name, _), site in self._layout.where.items() if name in paced}
        return [self._attempts_lane(node, site).append for site in sorted(sites - {self.name})]

    def _attempts_lane(self, node: str, site: str) -> Leaving:
        sender = self._exchange.sender(_attempts_name(node, site), site, bound=_STATES)
        return Leaving(self.waiting, sender, self.waiting.on_telling(node, sender))

    def _state_lane(self, edge: Edge, replica: int) -> Leaving:
        peer = self._layout.where[edge.to.node, replica]
        sender = self._exchange.sender(_state_name(edge, replica), peer, bound=_STATES)
        name = lane_name(edge, (0, 0, replica))
        return Leaving(self.waiting, sender, self.waiting.on_output(edge.source.node, name, sender))

    def _elsewhere(self, edge: Edge) -> list[int]:
        replicas = range(self._checked.graph.nodes[edge.to.node].replicas)
        return [r for r in replicas if not self.has(edge.to.node, r)]

    def _bound(self, edge: Edge) -> Bound:
        """Room for some rounds, unless the graph says how much."""
        capacity = self._checked.program.capacity[edge.to]
        return Bound(tokens=capacity if edge.capacity else capacity * self._rounds)


_STATES = Bound(tokens=STATE_TOKENS)


def _name(edge: Edge, lane: Lane) -> str:
    return f"{edge.to}:{lane[0]}.{lane[1]}.{lane[2]}"


def _state_name(edge: Edge, replica: int) -> str:
    return f"{edge.to}#{replica}"


def _attempts_name(node: str, site: str) -> str:
    return f"{node}?{site}"
