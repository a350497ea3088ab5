"""What ``Fairness`` answers with: values that never change, and plain JSON of each.

``model_dump(mode="json")`` is the one JSON form of a value, with times in RFC 3339: the commands'
``--json`` prints it. What stands within one, such as the rows of a status, may be a dataclass.

Weakness: a mapping within one can be changed, and such a value has no hash.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """A value of a public method; its fields are given by name."""

    model_config = ConfigDict(frozen=True)
