"""The bytes of tokens on the network with the edge options `compress` and `dtype`, and the time that these take.

    python -m bench compression         tokens of CartPole and of an Atari game, and trained weights (about 30 s)
    python -m bench compression SECONDS [TOKEN…]     a trial: seconds for each number, names of tokens

Observations of CartPole are those of random actions; Atari's are four stacked frames of Pong. The weights are those of
the checkpoint of `cartpole_dqn`. Times are of one thread: of the sender to narrow and compress, and of the receiver to
undo it.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from bench._arguments import benchmark_parser, one_of
from bench.storage import play
from flowrl.channels.codec import IncomingPayload, decode, encode
from flowrl.channels.wire_format import Compression, WireFormat, wire_format
from flowrl.core.batch import Batch
from flowrl.core.checkpoint import read_acting
from flowrl.core.state import State
from flowrl.runtime.half_precision import rounded

SECONDS = 1.0
STEPS = 2048  # of CartPole in a token
CHECKPOINT = Path(__file__).parents[1] / "graphs" / "checkpoints" / "cartpole_dqn.safetensors"
FORMATS = [(c, d) for d in ("float32", "float16") for c in ("none", "lz4", "zstd")][1:]

Row = dict[str, float]


def main(arguments: Sequence[str]) -> dict[str, dict[str, Row]]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=SECONDS, help="for each number")
    parser.add_argument("tokens", nargs="*", type=one_of(TOKENS), default=TOKENS, metavar="TOKEN")
    options = parser.parse_args(arguments)
    results: dict[str, dict[str, Row]] = {}
    print(
        f"{'token':<16} {'compress':<8} {'dtype':<8} {'sent':>6} {'to send':>12} {'to receive':>12}"
    )
    for name in options.tokens:
        token = TOKENS[name]()
        results[name] = {}
        for compress, dtype in FORMATS:
            row = measure(token, wire_format(compress, dtype), options.seconds)
            results[name][f"{compress}, {dtype}"] = row
            print(
                f"{name:<16} {compress:<8} {dtype:<8} {row['sent_share']:>6.1%} "
                f"{row['send_ms_per_mb']:>6.2f} ms/MB {row['receive_ms_per_mb']:>6.2f} ms/MB",
                flush=True,
            )
    return results


def measure(token: Any, wire: WireFormat, seconds: float) -> Row:
    """The share of a token's bytes that is sent, and the times at both ends for each of its megabytes."""
    nbytes = encode(token)[1].nbytes
    if wire.narrows:
        token = rounded(token)
    tree, payload = encode(token, wire.narrows)
    tree = msgpack.unpackb(msgpack.packb(tree))  # as it arrives
    content = payload.as_bytes()
    sent = content
    if wire.compression is not None:
        sent = min(wire.compression.compress(content), content, key=len)

    def send() -> None:
        written = encode(token, wire.narrows)[1].as_bytes()
        if wire.compression is not None:
            wire.compression.compress(written)

    def receive() -> None:
        received = received_bytes(wire.compression, sent, len(content))
        decode(tree, IncomingPayload(received, 0, len(received)))

    def per_mb(call: Callable[[], None]) -> float:
        return median_s(call, seconds) * 1e3 / (nbytes / 1e6)

    return {
        "bytes": nbytes,
        "sent_share": len(sent) / nbytes,
        "send_ms_per_mb": per_mb(send),
        "receive_ms_per_mb": per_mb(receive),
    }


def received_bytes(compression: Compression | None, sent: bytes, nbytes: int) -> bytes:
    if compression is None or len(sent) == nbytes:
        return sent
    return compression.decompress(sent, nbytes)


def median_s(call: Callable[[], None], seconds: float) -> float:
    """The median duration of a call."""
    durations_s = []
    end_s = time.perf_counter() + seconds
    while (start_s := time.perf_counter()) < end_s:
        call()
        durations_s.append(time.perf_counter() - start_s)
    return statistics.median(durations_s)


def cartpole_steps() -> Iterator[Mapping[str, Any]]:
    """Yield the steps of random actions."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    while True:
        action = env.action_space.sample()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
        yield {"obs": obs, "action": action, "reward": np.float32(reward), "terminated": terminated}
        obs = env.reset()[0] if done else next_obs


def cartpole_token() -> Batch:
    steps = list(itertools.islice(cartpole_steps(), STEPS))
    return Batch({name: np.array([step[name] for step in steps]) for name in steps[0]})


def weights_token() -> State:
    return State(read_acting(CHECKPOINT)[0].arrays)


TOKENS: Mapping[str, Callable[[], Any]] = {
    "CartPole": cartpole_token,
    "weights": weights_token,
    "Pong": lambda: next(itertools.islice(play("Pong"), 4, None)),
}
