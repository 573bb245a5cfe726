from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator
from pydantic.alias_generators import to_camel, to_pascal
from typing_extensions import Self

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def size(text: str) -> int:
    """Bytes of a size such as "256m" or "2 GiB"."""
    if not (match := SIZE.fullmatch(text.strip())):
        raise ValueError(f"{text!r} is not a size such as 256m or 2g")
    number, unit = match.groups()
    return int(float(number) * 1024 ** " kmgt".index(unit.lower() or " "))


HIDDEN = {"NewSecret": {"value", "value_base64"}, "SecretValue": {"value", "value_base64"}, "PortToken": {"token"}, "Key": {"token"}}
"""Fields that repr() does not show."""


class Model(BaseModel):
    """A value of the API. A field that does not exist is refused, but those that a newer daemon adds to an answer are ignored."""

    model_config = ConfigDict(
        alias_generator=lambda name: to_camel(name.rstrip("_")), populate_by_name=True, hide_input_in_errors=True, extra="forbid"
    )

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """The value of an answer."""
        return super().model_validate(obj, **{"extra": "ignore", **options})

    @field_validator("memory", "disk", mode="before", check_fields=False)
    @classmethod
    def _size(cls, value: Any) -> Any:
        return size(value) if isinstance(value, str) else value

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
