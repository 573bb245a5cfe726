from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """A value of the API. Fields that a newer daemon adds are ignored."""

    model_config = ConfigDict(alias_generator=lambda name: to_camel(name.rstrip("_")), populate_by_name=True)

    def to_json(self) -> dict[str, Any]:
        """The value as it travels, without what was left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
