"""What a wrapper is: a described change of an env, made anew around each env."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import Part, PartSpec, param
from flowrl.core.node import UnsoundError


class Wrapper(Part):
    """The description of a wrapper; a user's own defines `wrap`."""

    kind = "wrapper"
    across_episodes: ClassVar[bool] = False  # what an episode is depends on those before
    of_agents: ClassVar[bool] = True  # can be put on one of many agents, who all step at once:
    # ^ it takes one step when told, with the action that was given, and ends no episode

    class Config(BaseConfig):
        only: Literal["collect", "evaluate"] | None = param(
            None, "where the wrapper is put on; default: wherever the env is made"
        )

    def wrap(self, env: Any) -> Any:
        """The env with gymnasium's interface, wrapped."""
        raise NotImplementedError(f"{type(self).__name__} does not define wrap")


Wrappers = Sequence[PartSpec | Wrapper]


def select_for_purpose(wrappers: Wrappers, purpose: str) -> tuple[PartSpec | Wrapper, ...]:
    """Those that are put on for a purpose."""
    return tuple(w for w in wrappers if _only(w) in (None, purpose))


def _only(wrapper: PartSpec | Wrapper) -> str | None:
    assert isinstance(wrapper.config, Wrapper.Config)
    return wrapper.config.only


def for_any_purpose(wrapper: PartSpec | Wrapper) -> PartSpec | Wrapper:
    """The same wrapper, for whichever purpose."""
    config = wrapper.config.model_copy(update={"only": None})
    if isinstance(wrapper, PartSpec):
        return PartSpec(wrapper.type, wrapper.cls, config)
    return type(wrapper)(config)


def wrap_env(env: Any, wrappers: Wrappers) -> Any:
    """The env in its wrappers, the first of them innermost; it counts the unwrapped rewards."""
    if not wrappers:
        return env
    from flowrl.nodes.envs.wrapped.returns import count_unwrapped_return

    def wrap_all(inner: Any) -> Any:
        for wrapper in wrappers:
            part = wrapper.make() if isinstance(wrapper, PartSpec) else wrapper
            inner = part.wrap(inner)
        return inner

    return count_unwrapped_return(env, wrap_all)


def refuse_wrappers_across_episodes(env: Any) -> None:
    """Raises `Unsound` where an episode cannot be begun in another env than the last one."""
    for wrapper in getattr(getattr(env, "config", None), "wrappers", ()):  # a function has none
        cls = wrapper.cls if isinstance(wrapper, PartSpec) else type(wrapper)
        if issubclass(cls, Wrapper) and cls.across_episodes and _only(wrapper) != "evaluate":
            what = f"with {cls.__name__} an env goes on where its last episode ended"
            raise UnsoundError(what, "leave the wrapper out, or do not reset ahead", "pre_reset")


def refuse_carry_over(carried: Sequence[str]) -> None:
    """The same, once envs have said what they carry from episode to episode."""
    if any(carried):
        what = "the envs carry something from one episode to the next"
        raise UnsoundError(what, "do not reset ahead: leave pre_reset out", "pre_reset")


class EpisodeRng:
    """A wrapper's own random numbers: in each episode they follow from its seed and a purpose."""

    def __init__(self, purpose: str) -> None:
        digest = hashlib.blake2b(purpose.encode(), digest_size=8).digest()
        self._purpose = int.from_bytes(digest, "little")
        self._rng = np.random.Generator(np.random.PCG64(self._purpose))

    def begin(self, seed: int | None) -> np.random.Generator:
        """Those of a new episode; without a seed they go on."""
        if seed is not None:
            self._rng = np.random.Generator(np.random.PCG64([seed, self._purpose]))
        return self._rng
