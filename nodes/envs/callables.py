"""An env part made of functions, for use without the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowrl.core.batch import Column
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import Part, param
from flowrl.core.import_paths import without_arguments
from flowrl.nodes.envs.entry_points import require_interface, require_maker
from flowrl.nodes.envs.spec import probe_columns
from flowrl.nodes.observations import ObsColumns

EnvMaker = Callable[[], Any]


class CallableEnvs(Part):
    """Env i is made by callable i, modulo their number.

    Worker processes import the callables by path. There they must be functions or classes at the top of a module, or
    `functools.partial` of these with arguments that `portable` can encode.
    """

    kind = "env"

    class Config(BaseConfig):
        makers: tuple[Any, ...] = param(..., "functions without arguments; each call makes an env")

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        super().__init__(config, **params)
        self._spec: tuple[ObsColumns, Column] | None = None

    def spec(self) -> tuple[ObsColumns, Column]:
        """The columns of observations and actions; one env is made to find them."""
        if self._spec is None:
            self._spec = probe_columns(lambda: self.make(0), "of a function")
        return self._spec

    def make(self, index: int) -> Any:
        from flowrl.nodes.envs.zero_based import make_zero_based

        makers = self.config.makers
        maker = makers[index % len(makers)]
        require_maker(maker, getattr(without_arguments(maker), "__qualname__", "the function"))
        env = maker()
        require_interface(env, "the function")
        return make_zero_based(env)


def env_makers(env: Any) -> Sequence[EnvMaker]:
    """The callables given instead of an env part; empty if it is something else."""
    if callable(env):
        return (env,)
    several = isinstance(env, list | tuple) and len(env) > 0
    return tuple(env) if several and all(map(callable, env)) else ()
