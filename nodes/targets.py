"""The rule by which a target network follows the network that learns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.core.errors import shortened_repr
from flowrl.core.facts import UnsoundError


class Target(BaseConfig, title="target rule"):
    """How a target network follows the network that learns."""

    tau: float | None = param(
        None, "share by which it moves towards the network in each train iteration", gt=0, le=1
    )
    every_iters: int | None = param(None, "train iterations between two copies", ge=1)

    @model_validator(mode="after")
    def _check_choice(self) -> Target:
        if (self.tau is None) == (self.every_iters is None):
            raise UnsoundError(
                "a target network is copied (`every_iters: 100`) or moved (`tau: 0.005`)",
                "give one of both (`every_iters: null` removes that of an extended graph)",
                "every_iters",
            )
        return self

    def share_due(self, iters: int) -> float:
        """The share by which the target moves after so many train iterations; 0: not now."""
        if self.tau is not None:
            return self.tau
        return 1.0 if self.every_iters and iters % self.every_iters == 0 else 0.0


def _read_target(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Target.model_validate(dict(value))
    if not isinstance(value, Target):
        raise ValueError(
            f"{shortened_repr(value)} is no mapping such as {{every_iters: 100}} or {{tau: 0.005}}"
        )
    return value


# The type of a parameter that `follows` declares.
TargetRule = Annotated[Target, BeforeValidator(_read_target)]


def follows(about: str = "how the target networks follow", **rule: Any) -> Any:
    """Declare the rule by which target networks follow: `every_iters`, or `tau`."""
    extra: dict[str, Any] = {"phase": False, "file": False}
    return Field(Target(**rule), description=about, json_schema_extra=extra)
