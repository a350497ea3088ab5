"""Waits with a jitter, for comparing."""

from __future__ import annotations


class Jittered(float):
    """A wait in seconds that equals every one to which such a jitter may have been added.

    That is a quarter of it at most, and a second.
    """

    def __eq__(self, without: object) -> bool:
        assert isinstance(without, float)
        return without <= self <= without + min(without / 4, 1.0)

    __hash__ = None  # type: ignore[assignment]  # what equals several has none
