"""Calls `describe` of one node type, in a fork where it makes an env, which may end or block its process."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flowrl.core.config import Config, PartSpec, field_extras
from flowrl.core.errors import Problem
from flowrl.core.facts import Facts, MissingPackageError, Surroundings, UnsoundError
from flowrl.graph.model import NodeSpec
from flowrl.graph.yaml_text import SourceLocation
from flowrl.machine.forked_call import ForkEndedError, NoForkResultError, call_in_fork

MAX_DESCRIBE_S = 300.0  # simulators take minutes to start
NOTICE_S = 20.0  # after which the user is told what takes so long
CORRECT_ENV = "correct the env (`flowrl check --no-envs` checks the rest of the graph)"


@dataclass(frozen=True, slots=True)
class Description:
    """The facts of a node, or why there are none."""

    facts: Facts | None = None
    problem: Problem | None = None
    missing_package: str = ""  # the problem, if it is that
    location: SourceLocation | None = (
        None  # of a parameter that does not fit to what the node depends on
    )


def makes_env(config: Config) -> bool:
    """Return whether a node with these parameters makes an env to describe itself."""
    fields = type(config).model_fields
    made = [n for n, info in fields.items() if field_extras(info).get("made_to_describe")]
    values = (getattr(config, name) for name in made)
    return any(isinstance(value, PartSpec) and value.cls.kind == "env" for value in values)


def describe(
    spec: NodeSpec, config: Config, surroundings: Surroundings, in_fork: bool
) -> Description:
    """Describe a node with this config. With `in_fork`, an env is made in a fork of this process."""
    if not makes_env(config):
        return _describe_here(spec, config, surroundings)
    with _notice_if_slow(spec):
        if in_fork:
            try:
                return call_in_fork(
                    lambda: _describe_in_fork(spec, config, surroundings), MAX_DESCRIBE_S
                )
            except ForkEndedError as ended:
                what = f"nodes.{spec.name}: the process that made its env {ended}"
                return Description(problem=Problem(str(spec.location("env")), what, CORRECT_ENV))
            except NoForkResultError:
                pass
        return _describe_here(spec, config, surroundings)


def _describe_in_fork(spec: NodeSpec, config: Config, surroundings: Surroundings) -> Description:
    try:
        return _describe_here(spec, config, surroundings)
    except (SystemExit, KeyboardInterrupt) as error:  # not Ctrl-C, which does not reach the fork
        return _raised(spec, error, CORRECT_ENV)


def _describe_here(spec: NodeSpec, config: Config, surroundings: Surroundings) -> Description:
    try:
        facts = spec.cls.describe(config, surroundings)
        if not isinstance(facts, Facts):
            raise TypeError(f"it returned {type(facts).__name__}; expected Facts")
        return Description(facts)
    except UnsoundError as error:
        what = f"{_owner(spec, config, error.key)}: {error.what}"
        location = spec.location(error.key)
        problem = Problem(str(location), what, error.hint)
        if isinstance(error, MissingPackageError):
            return Description(None, problem, str(error))
        return Description(None, problem, location=location)
    except Exception as error:
        return _raised(spec, error, f"fix the node type '{spec.type}'")


def _owner(spec: NodeSpec, config: Config, key: str) -> str:
    """What has the parameter of a problem. That of a shared section is the section's, whichever node has found it.

    A phase of the warm-up may have set the parameter for this node alone.
    """
    param = key.partition(".")[0]
    is_set = getattr(config, param, None) is not getattr(spec.config, param, None)
    return f"nodes.{spec.name}" if is_set else spec.owner(key)


def _raised(spec: NodeSpec, error: BaseException, hint: str) -> Description:
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(last.filename).name}:{last.lineno}"
    what = f"nodes.{spec.name}: describe raised {type(error).__name__}: {error} ({place})"
    return Description(problem=Problem(str(spec.location()), what, hint))


@contextmanager
def _notice_if_slow(spec: NodeSpec) -> Iterator[None]:
    text = (
        f"note: {spec.location('env')}: nodes.{spec.name}: its env takes more than {NOTICE_S:g} s to be made and "
        "closed; Ctrl-C gives up"
    )
    timer = threading.Timer(NOTICE_S, print, (text,), {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # so that a later fork is one of a process with one thread
