"""The immutable values that ``Fairness`` returns, and their JSON.

``model_dump(mode="json")`` is the only JSON form of a value, with times in RFC 3339. The commands'
``--json`` prints it. A value may contain dataclasses, such as the rows of a status.

Weakness: a mapping inside a value can be changed, and a value with a mapping has no hash.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """A value of a public method; its fields are given by name."""

    model_config = ConfigDict(frozen=True)
