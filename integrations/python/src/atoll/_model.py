from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel, to_pascal

HIDDEN = {"NewSecret": {"value", "value_base64"}, "SecretValue": {"value", "value_base64"}, "PortToken": {"token"}, "Key": {"token"}}
"""Fields that repr() does not show."""


class Model(BaseModel):
    """A value of the API. Fields that a newer daemon adds are ignored."""

    model_config = ConfigDict(alias_generator=lambda name: to_camel(name.rstrip("_")), populate_by_name=True, hide_input_in_errors=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        hidden = HIDDEN.get(type(self).__name__, ())
        for name, value in super().__repr_args__():
            yield name, "***" if name in hidden and value is not None else value

    def to_json(self) -> dict[str, Any]:
        """The value as JSON, without fields that are not set."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


CELLS = {"computer_use", "desktop_stream", "file_system", "git", "recording", "terminal"}


class Cells(Model):
    """A value whose cells have names that begin with a capital letter."""

    model_config = ConfigDict(alias_generator=lambda name: to_pascal(name) if name in CELLS else to_camel(name))
