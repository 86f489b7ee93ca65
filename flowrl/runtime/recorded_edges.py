"""The ends of edges in a replay: they give the tokens that were recorded, or compare what is given with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from flowrl.core.state import State
from flowrl.runtime.half_precision import EdgeRounding
from flowrl.runtime.site_state import SiteState
from flowrl.runtime.state_versions import StateVersions
from flowrl.runtime.streams import AwaitedQueue, Token
from flowrl.runtime.token_contents import decode_token, encode_token
from flowrl.runtime.token_difference import first_difference
from flowrl.runtime.token_hashing import TokenHash


class EndOfRecording(BaseException):
    """An instance would take a token that was not recorded, because the recording ends before it."""


class ReplayDiffers(BaseException):
    """An instance gave something else than what was recorded."""


class RecordedTokens:
    """The recorded tokens by replica pair, read one after another."""

    def __init__(
        self, tokens_of: Callable[[int], Iterator[TokenHash]], pairs: Collection[int]
    ) -> None:
        """`tokens_of` yields the tokens of one pair. Other pairs than these count as not recorded."""
        self._tokens = {pair: tokens_of(pair) for pair in pairs}
        self._next = {pair: next(tokens, None) for pair, tokens in self._tokens.items()}

    def __contains__(self, pair: int) -> bool:
        return pair in self._tokens

    @property
    def is_over(self) -> bool:
        return not any(self._next.values())

    def peek(self, pair: int) -> TokenHash | None:
        """Return the next token of a pair, which stays there; None at the end of the recording."""
        return self._next[pair]

    def next_with_content(self, pair: int) -> TokenHash | None:
        """Return the next token of a pair, or the next version that was not read before, and skip what is between."""
        while (token := self._next[pair]) is not None and not token.content:
            self.take(pair)
        return token

    def take(self, pair: int) -> TokenHash:
        token = self._next[pair]
        if token is None:
            raise EndOfRecording
        self._next[pair] = next(self._tokens[pair], None)
        return token


@dataclass(slots=True)
class Comparison:
    """How many tokens and versions of each edge were equal."""

    equal: dict[str, int] = field(default_factory=dict)

    def compare(self, edge: str, what: str, recorded: TokenHash, token: Token) -> None:
        """Count a token that is equal to the recorded one; raise `ReplayDiffers` if it is not."""
        content = encode_token(token)
        if content != recorded.content:
            found = first_difference(decode_token(recorded.content), decode_token(content))
            if found:
                raise ReplayDiffers(f"{what} of {edge} differs from the recorded one: {found}")
        self.equal[edge] = self.equal.get(edge, 0) + 1


class RecordedInput(AwaitedQueue):
    """A queue that continues with recorded tokens."""

    def __init__(self, tokens: Collection[Token], recorded: RecordedTokens, pair: int) -> None:
        super().__init__(tokens)
        self._recorded, self._pair = recorded, pair

    def popleft(self) -> Token:
        self.fill(1)
        return super().popleft()

    def fill(self, tokens: int) -> None:
        while len(self) < tokens:
            self.append(decode_token(self._recorded.take(self._pair).content))


class ComparedQueue(deque[Token]):
    """A queue into an instance of the replay, or out of it: what is pushed is compared with what was recorded."""

    def __init__(
        self,
        edge: str,
        site: SiteState,
        recorded: RecordedTokens,
        pair: int,
        comparison: Comparison,
        tokens: Collection[Token] | None = None,
    ) -> None:
        """`tokens` are there already; None if the consumer is not replayed, so that nothing is kept."""
        super().__init__(tokens or ())
        self._keeps = tokens is not None
        self._edge, self._site, self._recorded = edge, site, recorded
        self._pair, self._comparison = pair, comparison

    def append(self, token: Token) -> None:
        self._compare(token)
        if self._keeps:
            super().append(token)

    def _compare(self, token: Token) -> None:
        if self._pair not in self._recorded or self._recorded.peek(self._pair) is None:
            return  # the edge was not recorded, or not so long
        recorded = self._recorded.take(self._pair)
        at = self._site.position
        number = self._comparison.equal.get(self._edge, 0)
        if recorded.position != at:
            raise ReplayDiffers(
                f"token {number} of {self._edge} comes from firing {at[-1]}, and was recorded in firing "
                f"{recorded.position[-1]}"
            )
        what = f"token {number}, from firing {at[-1]} (round {at[0]}),"
        self._comparison.compare(self._edge, what, recorded, token)


class ComparedVersions:
    """Compares the versions of a state with those that one consumer read."""

    def __init__(
        self,
        edge: str,
        versions: StateVersions,
        recorded: RecordedTokens,
        pair: int,
        comparison: Comparison,
        rounding: EdgeRounding | None,
    ) -> None:
        self._edge, self._versions, self._recorded = edge, versions, recorded
        self._pair, self._comparison, self._rounding = pair, comparison, rounding

    def compare_newest(self) -> None:
        """Compare the newest version, if the consumer read it."""
        self.compare(self._versions.newest())

    def compare_newest_whole(self) -> None:
        """Compare the newest version with the node's whole state, if the consumer read it."""
        self.compare(self._versions.newest_whole())

    def compare_token(self, token: Token) -> None:
        """Compare the version in a token, if the consumer read it."""
        self.compare(token[0])

    def compare(self, state: State) -> None:
        """Compare a version, if the consumer read it."""
        if self._rounding is not None:
            state = self._rounding.rounded_state(state)
        while (recorded := self._recorded.peek(self._pair)) is not None:
            if recorded.version > state.version:
                return
            self._recorded.take(self._pair)
            if recorded.version == state.version and recorded.content:
                what = f"version {state.version}"
                self._comparison.compare(self._edge, what, recorded, (state, state.clock))


class RecordedState:
    """The versions that an instance read, each from the firing on in which it was read first."""

    def __init__(self, site: SiteState, recorded: RecordedTokens, pair: int) -> None:
        self._site, self._recorded, self._pair = site, recorded, pair
        self._current: Token | None = None
        self._last_round = -1  # of the last read; in each round, the first one was recorded

    def take(self) -> Token:
        now = self._site.position
        while (following := self._recorded.peek(self._pair)) is not None:
            if following.position > now:
                break
            read = self._recorded.take(self._pair)
            self._last_round = read.position[0]
            if read.content:
                self._current = decode_token(read.content)
        if self._current is None or (following is None and now[0] > self._last_round):
            raise EndOfRecording
        return self._current
