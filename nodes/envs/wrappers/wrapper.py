"""The base class of wrappers, and functions that apply a list of them to an env.

A wrapper in a graph is a description (`Wrapper`). Its `wrap` is called for each env that is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import Part, PartSpec, param
from flowrl.core.errors import shortened_repr
from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.entry_points import import_entry_point
from flowrl.nodes.envs.wrappers.lazy_base import EnvWrapper


class Wrapper(Part):
    """The description of a wrapper. A wrapper of your own is a subclass that defines `wrap`."""

    kind = "wrapper"
    spans_episodes: ClassVar[bool] = False
    """Whether an episode depends on those before it."""
    works_per_agent: ClassVar[bool] = True
    """Whether it can be applied to one of many agents, which step together.

    Such a wrapper takes exactly one step per step, with the action it was given, and ends no episode.
    """

    class Config(BaseConfig):
        only: Literal["collect", "evaluate"] | None = param(
            None, "apply the wrapper only where envs collect, or evaluate; default: to both"
        )

    def wrap(self, env: Any) -> Any:
        """Wrap an env that has gymnasium's interface."""
        raise NotImplementedError(f"{type(self).__name__} does not define wrap")


class ImportedWrapper(Wrapper):
    """A wrapper of gymnasium, or a class or function of your own, by its import path. It is called with the env."""

    class Config(Wrapper.Config):
        id: str = param(
            ..., "such as gymnasium.wrappers:RescaleAction", pattern=r"^[\w.]+:[A-Za-z_]\w*$"
        )
        kwargs: dict[str, Any] = param({}, "its arguments after the env")

    def wrap(self, env: Any) -> Any:
        make = import_entry_point(self.config.id, "wrapper")
        return make(env, **self.config.kwargs)


Wrappers = Sequence[PartSpec | Wrapper]


def select_for_purpose(wrappers: Wrappers, purpose: str) -> tuple[PartSpec | Wrapper, ...]:
    """The wrappers that apply to a purpose: "collect" or "evaluate"."""
    return tuple(w for w in wrappers if _only(w) in (None, purpose))


def for_any_purpose(wrapper: PartSpec | Wrapper) -> PartSpec | Wrapper:
    """The same wrapper without its `only`."""
    config = wrapper.config.model_copy(update={"only": None})
    if isinstance(wrapper, PartSpec):
        return PartSpec(wrapper.type, wrapper.cls, config)
    return type(wrapper)(config)


def _only(wrapper: PartSpec | Wrapper) -> str | None:
    assert isinstance(wrapper.config, Wrapper.Config)
    return wrapper.config.only


def wrap_env(env: Any, wrappers: Wrappers) -> Any:
    """Put an env into wrappers, the first of them innermost; the result knows the return of unwrapped rewards."""
    if not wrappers:
        return env
    innermost = wrapped = RewardSumEnv(env)
    for wrapper in wrappers:
        part = wrapper.make() if isinstance(wrapper, PartSpec) else wrapper
        wrapped = _wrap(part, wrapped)
    return UnwrappedReturnEnv(wrapped, innermost)


def _wrap(wrapper: Wrapper, env: Any) -> Any:
    try:
        wrapped = wrapper.wrap(env)
    except (UnsoundError, ModuleNotFoundError):
        raise
    except Exception as error:  # it may be anyone's code
        what = f"the wrapper {type(wrapper).__name__} raised {type(error).__name__}: {error}"
        raise UnsoundError(what, "correct its parameters, or its method `wrap`", "env") from error
    if not hasattr(wrapped, "step"):
        what = f"the wrapper {type(wrapper).__name__} returned {shortened_repr(wrapped)}"
        raise UnsoundError(what, "return an env from its method `wrap`", "env")
    return wrapped


class RewardSumEnv(EnvWrapper):
    """The innermost wrapper: sums the env's own rewards."""

    reward_sum = 0.0
    spec = None  # no registered id makes this env

    def step(self, action: Any) -> Any:
        stepped = self.env.step(action)
        self.reward_sum += float(stepped[1])
        return stepped


class UnwrappedReturnEnv(EnvWrapper):
    """The outermost wrapper: knows the sum of the env's own rewards since the last reset from outside."""

    def __init__(self, env: Any, innermost: RewardSumEnv) -> None:
        super().__init__(env)
        self._innermost = innermost

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Reset; steps that wrappers take within a reset (no-ops, a start button) do not count."""
        first = self.env.reset(seed=seed, options=options)
        self._innermost.reward_sum = 0.0
        return first

    @property
    def unwrapped_return(self) -> float:
        return self._innermost.reward_sum


def refuse_wrappers_across_episodes(env: Any) -> None:
    """Raise `UnsoundError` if a wrapper makes episodes depend on earlier ones: these cannot be begun ahead of time."""
    for wrapper in getattr(getattr(env, "config", None), "wrappers", ()):  # functions have none
        cls = wrapper.cls if isinstance(wrapper, PartSpec) else type(wrapper)
        if issubclass(cls, Wrapper) and cls.spans_episodes and _only(wrapper) != "evaluate":
            what = f"{cls.__name__} makes episodes depend on earlier ones"
            raise UnsoundError(what, "leave out the wrapper or pre_reset", "pre_reset")


def refuse_carry_over(carried: Sequence[str]) -> None:
    """Raise `UnsoundError` if envs carry data over to their next episodes: these cannot be begun ahead of time."""
    if any(carried):
        what = "the envs carry data from one episode to the next"
        raise UnsoundError(what, "leave out pre_reset", "pre_reset")


class EpisodeRng:
    """A wrapper's own random numbers: in each episode they follow from its seed and a purpose."""

    def __init__(self, purpose: str) -> None:
        digest = hashlib.blake2b(purpose.encode(), digest_size=8).digest()
        self._purpose = int.from_bytes(digest, "little")
        self._rng = np.random.Generator(np.random.PCG64(self._purpose))

    def begin(self, seed: int | None) -> np.random.Generator:
        """The generator of a new episode. Without a seed, the last generator continues."""
        if seed is not None:
            self._rng = np.random.Generator(np.random.PCG64([seed, self._purpose]))
        return self._rng
