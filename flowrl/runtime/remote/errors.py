"""Sends errors from the site where they were raised to another site, with the original traceback as their cause."""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from flowrl.core.errors import NodeError, attached_files, needs_traceback
from flowrl.core.plain_data import DataCodec
from flowrl.core.tracebacks import TextTraceback, first_cause_traceback


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An error of another site, as it is sent. `node` and `doing` are empty unless it was a `NodeError`."""

    node: str
    doing: str
    type: str
    text: str
    traceback: str
    first_cause: str  # its traceback, as it is shown
    files: Mapping[str, str]
    failed_firing: bytes = b""
    needs_traceback: bool = True


REMOTE_ERROR: DataCodec[RemoteError] = DataCodec(RemoteError)


class RemoteTraceback(TextTraceback):
    """The traceback of an error on another site."""


def describe_error(error: BaseException) -> RemoteError:
    """Describe an error so that it can be sent."""
    node, doing = (error.node, error.doing) if isinstance(error, NodeError) else ("", "")
    cause = error.__cause__ or error if node else error
    text = "".join(traceback.format_exception(cause))
    firing = error.failed_firing if isinstance(error, NodeError) else b""
    files = attached_files(error)
    return RemoteError(
        node,
        doing,
        type(cause).__name__,
        str(cause),
        text,
        first_cause_traceback(cause),
        files,
        firing,
        needs_traceback(cause),
    )


def restore_error(site: str, remote: RemoteError) -> Exception:
    """Make an error like the one of another site: of a class with the same name, derived from it if it is builtin."""
    base = vars(builtins).get(remote.type)
    if not (isinstance(base, type) and issubclass(base, Exception)):
        base = Exception
    kind = type(remote.type, (base,), {"__str__": lambda self: remote.text})
    cause: Exception = kind.__new__(kind)  # type: ignore[call-overload]  # some constructors need more arguments
    cause.files = remote.files  # type: ignore[attr-defined]
    cause.needs_traceback = remote.needs_traceback  # type: ignore[attr-defined]
    text = f"on site '{site}'\n{remote.traceback}"
    cause.__cause__ = RemoteTraceback(text, remote.first_cause)
    if not remote.node:
        return cause
    error = NodeError(remote.node, remote.doing, cause)
    error.failed_firing = remote.failed_firing
    return error
