"""Names groups of runs by the settings in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SHOWN_SETTINGS = 3  # of a label

Settings = Mapping[str, Any]


def setting_labels(groups: Sequence[Settings]) -> list[str]:
    """A label for each group: the settings that it has, of those that differ. Empty if there is only one group.

    What several nodes have alike, such as `policy.lr`, is one setting.
    """
    columns = _merged_columns(_differing_columns(groups))
    return [
        _label({path: column[i] for path, column in columns.items()}) for i in range(len(groups))
    ]


def _differing_columns(groups: Sequence[Settings]) -> dict[str, tuple[Any, ...]]:
    """The values in all groups of each setting that differs between them.

    A node or part whose type differs has other parameters, so they are left out, and so are edges from a node that some
    groups do not have.
    """
    paths = dict.fromkeys(path for group in groups for path in group)
    columns = {path: tuple(group.get(path) for group in groups) for path in paths}
    differing = {path: column for path, column in columns.items() if len(set(column)) > 1}
    types = [path for path in differing if path.endswith(".type")]
    missing = {_node_of(path) for path in types if None in differing[path]}
    return {
        path: column
        for path, column in differing.items()
        if not any(path != t and path.startswith(t.removesuffix("type")) for t in types)
        and not (path.endswith(".from") and missing & {_node_of(value) for value in column})
    }


def _node_of(end: Any) -> str:
    return str(end).partition(".")[0]


def _merged_columns(columns: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The columns with one for all nodes and parts that have the same values of a setting.

    So the `lr` of `policy` and of a collector's `learning_policy`, which one section of the graph sets, is shown once.
    """
    alike: dict[tuple[str, tuple[Any, ...]], list[str]] = {}
    for path, column in columns.items():
        setting = path.partition(".")[2]
        name = path if setting in ("", "type") else setting.rpartition(".")[2]
        alike.setdefault((name, column), []).append(path)
    return {_merged_path(paths): column for (_, column), paths in alike.items()}


def _merged_path(paths: Sequence[str]) -> str:
    """The path of a setting that is found at these paths: of several, the shortest without its node."""
    if len(paths) == 1:
        return paths[0]
    return min((path.partition(".")[2] for path in paths), key=len)


def _label(settings: Settings) -> str:
    shown = [_text(path, value) for path, value in settings.items()]
    more = [f"and {len(shown) - SHOWN_SETTINGS} more"] if len(shown) > SHOWN_SETTINGS else []
    return ", ".join([*shown[:SHOWN_SETTINGS], *more])


def _text(path: str, value: Any) -> str:
    typed = path.removesuffix(".type")
    if typed != path:
        return f"no {typed}" if value is None else f"{typed}: {value}"
    return f"{path} {'default' if value is None else value}"
