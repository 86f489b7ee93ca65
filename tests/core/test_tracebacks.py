"""The tracebacks that a user sees begin with the user's own code."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

from flowrl.core.batch import Batch
from flowrl.core.tracebacks import TextTraceback, first_cause_traceback, user_traceback


def error_of(fail: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fail()
    assert caught.tb.tb_next is not None
    return caught.value.with_traceback(caught.tb.tb_next)  # which begins with `fail`


def function_in(module: str, code: str, file: str, **names: Any) -> Callable[[], Any]:
    """Return the function `f` of this code, as if it were in this module and file."""
    scope: dict[str, Any] = {"__name__": module, **names}
    exec(compile(code, file, "exec"), scope)
    function: Callable[[], Any] = scope["f"]
    return function


def lines_of(text: str) -> list[str]:
    """Return the names of the functions in a traceback."""
    return [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("  File")]


def test_calls_before_the_users_code_are_left_out_and_those_after_it_are_not() -> None:
    batch = Batch({})
    own = function_in("my_node", "def f():\n    batch['x']", "/mine/my_node.py", batch=batch)
    error = error_of(function_in("flowrl.runtime.x", "def f():\n    own()", "/x.py", own=own))
    assert lines_of("".join(traceback.format_exception(error))) == ["f", "f", "__getitem__"]
    text = user_traceback(error)
    assert lines_of(text) == ["f", "__getitem__"]
    assert '"/mine/my_node.py", line 2' in text
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.splitlines()[-1].startswith("KeyError: \"no column 'x'")


def test_a_traceback_without_code_of_the_user_is_whole() -> None:
    installed = function_in("json", "def f():\n    1 / 0", traceback.__file__)
    error = error_of(function_in("flowrl.runtime.x", "def f():\n    own()", "/x.py", own=installed))
    assert lines_of(user_traceback(error)) == ["f", "f"]


def test_the_first_cause_is_shown_also_if_only_its_text_is_there() -> None:
    first = error_of(lambda: {}["wheel"])
    second = ValueError("the second")
    second.__cause__ = first
    assert "KeyError: 'wheel'" in first_cause_traceback(second)
    assert "the second" not in first_cause_traceback(second)
    first.__cause__ = TextTraceback("the whole", "the first cause")
    assert first_cause_traceback(second) == "the first cause"
