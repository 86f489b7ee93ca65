"""A base class for env wrappers that imports gymnasium only when an env is wrapped.

Graphs are described and checked where gymnasium may be missing, so a module that declares wrappers must not import it.
`EnvWrapper` stands in for `gymnasium.Wrapper`: the first instance of a subclass makes a class that inherits from both.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gymnasium import Wrapper as EnvWrapper
else:

    class EnvWrapper:
        def __new__(cls, *_: Any, **__: Any) -> Any:
            return object.__new__(_with_gymnasium_base(cls))

    @functools.cache
    def _with_gymnasium_base(cls: type) -> type:
        from gymnasium import Wrapper

        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        return type(cls.__name__, (cls, Wrapper), names)


__all__ = ["EnvWrapper"]
