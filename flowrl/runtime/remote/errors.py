"""Errors that are raised on one site and raised again on another, where their cause shows the original traceback."""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from flowrl.core.errors import NodeError, attached_files
from flowrl.core.plain_data import DataCodec


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An error that was raised on another site. `node` and `doing` are empty if it was not a node's."""

    node: str
    doing: str
    type: str
    text: str
    traceback: str
    files: Mapping[str, str]


REMOTE_ERROR: DataCodec[RemoteError] = DataCodec(RemoteError)


class RemoteTraceback(Exception):
    """Where an error was raised on another site."""


def describe_error(error: BaseException) -> RemoteError:
    """An error in a form that can be sent."""
    node, doing = (error.node, error.doing) if isinstance(error, NodeError) else ("", "")
    cause = error.__cause__ or error if node else error
    text = "".join(traceback.format_exception(cause))
    return RemoteError(node, doing, type(cause).__name__, str(cause), text, attached_files(error))


def restore_error(site: str, remote: RemoteError) -> Exception:
    """An error of another site, to be raised here: of a class with the same name and, if that is builtin, base."""
    base = vars(builtins).get(remote.type)
    if not (isinstance(base, type) and issubclass(base, Exception)):
        base = Exception
    kind = type(remote.type, (base,), {"__str__": lambda self: remote.text})
    cause: Exception = kind.__new__(kind)  # type: ignore[call-overload]  # some want more than a text
    cause.files = remote.files  # type: ignore[attr-defined]
    cause.__cause__ = RemoteTraceback(f"on site '{site}'\n{remote.traceback}")
    return NodeError(remote.node, remote.doing, cause) if remote.node else cause
