"""The two base classes of every model: what users write, and what processes send each other."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """A part of a custom resource: camelCase on the wire, unknown fields are refused, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, extra="forbid", frozen=True
    )


class Message(BaseModel):
    """A message between processes: camelCase, immutable; unknown fields are ignored.

    A newer sender must not break an older receiver during a rolling upgrade, hence `extra="ignore"`.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, extra="ignore", frozen=True
    )
