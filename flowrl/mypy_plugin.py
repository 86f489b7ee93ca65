"""A plugin of mypy, which shows it the keywords of nodes and parts: those that their `Config` declares.

    [tool.mypy]
    plugins = ["flowrl.mypy_plugin"]

Without it, mypy takes every keyword of a node or part, with any value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mypy.nodes import ARG_NAMED, ARG_NAMED_OPT, ARG_STAR2, ArgKind, TypeInfo, Var
from mypy.plugin import FunctionSigContext, Plugin
from mypy.types import AnyType, CallableType, FunctionLike, Instance, Type, TypeOfAny

PART, NODE, CONFIG = "flowrl.core.config.Part", "flowrl.core.node.Node", "flowrl.core.config.Config"
LINK = "flowrl.core.ports.Link"

Keyword = tuple[str, Type, ArgKind]


class FlowrlPlugin(Plugin):
    """Replaces the signature of calls that make a node or a part."""

    def get_function_signature_hook(
        self, fullname: str
    ) -> Callable[[FunctionSigContext], FunctionLike] | None:
        symbol = self.lookup_fully_qualified(fullname)
        info = symbol.node if symbol is not None else None
        if isinstance(info, TypeInfo) and (info.has_base(PART) or info.has_base(NODE)):
            made = info
            return lambda context: _signature(made, context.default_signature)
        return None


def _signature(info: TypeInfo, signature: CallableType) -> CallableType:
    """The signature with the keywords of the class in place of `**params`."""
    if ARG_STAR2 not in signature.arg_kinds:
        return signature
    kept = [k for k, kind in enumerate(signature.arg_kinds) if kind != ARG_STAR2]
    names = {signature.arg_names[k] for k in kept}
    added: dict[str, Keyword] = {}
    for keyword in (*_declared_keywords(info), *_links(info), *_config_keywords(info)):
        if keyword[0] not in names:
            added.setdefault(keyword[0], keyword)
    return signature.copy_modified(
        arg_names=[signature.arg_names[k] for k in kept] + list(added),
        arg_types=[signature.arg_types[k] for k in kept] + [t for _, t, _ in added.values()],
        arg_kinds=[signature.arg_kinds[k] for k in kept] + [kind for *_, kind in added.values()],
    )


def _declared_keywords(info: TypeInfo) -> Iterator[Keyword]:
    """The keywords that the constructors of a class and its bases declare, such as a policy's `obs`."""
    for base in info.mro:
        symbol = base.names.get("__init__")
        init = getattr(symbol.node, "type", None) if symbol is not None else None
        if isinstance(init, CallableType):
            for name, of_type, kind in zip(
                init.arg_names, init.arg_types, init.arg_kinds, strict=True
            ):
                if name is not None and kind in (ARG_NAMED, ARG_NAMED_OPT):
                    yield name, of_type, kind


def _links(info: TypeInfo) -> Iterator[Keyword]:
    """The links of a node. Whether one is optional is known at run time only.

    A link may be annotated, `envs: Any = Link(…)`, so that the node can use the service. Then its type tells no more.
    """
    if not info.has_base(NODE):
        return
    for name, variable in _variables(info):
        of_type = variable.type
        is_link = isinstance(of_type, Instance) and of_type.type.fullname == LINK
        if is_link or isinstance(of_type, AnyType):
            yield name, AnyType(TypeOfAny.explicit), ARG_NAMED_OPT


def _config_keywords(info: TypeInfo) -> Iterator[Keyword]:
    """The parameters of a `Config` with their types. Which of them are required is known at run time only."""
    symbol = info.get("Config")
    config = symbol.node if symbol is not None else None
    if isinstance(config, TypeInfo) and config.has_base(CONFIG):
        for name, variable in _variables(config):
            if variable.type is not None and not variable.is_classvar:
                yield name, variable.type, ARG_NAMED_OPT


def _variables(info: TypeInfo) -> Iterator[tuple[str, Var]]:
    """The variables of a class and its bases in flowrl's hierarchy; those of the class itself come first."""
    for base in info.mro:
        if base.has_base(CONFIG) or base.has_base(NODE):
            for name, symbol in base.names.items():
                if isinstance(symbol.node, Var) and not name.startswith(("_", "model_")):
                    yield name, symbol.node


def plugin(version: str) -> type[Plugin]:
    """The entry point that mypy calls with its version."""
    return FlowrlPlugin
