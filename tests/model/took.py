"""How long tasks of one kind hold their places: what a call has heard of it.

A task that is claimed carries what those of its kind took lately, where the call that started it
heard of the end of one: the mean goes on from task to task. Where ends are told by themselves, for
places are free and no claim waits for one, what they say is kept for the claims that come, of the
last kinds.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

#: The part that the last run has in a mean is one of so many.
PARTS = 8
#: TaskFilter that are kept between calls.
KINDS = 8


class Took:
    """What one call has heard.

    Args:
        kept: What was kept between calls: the mean of each kind, the last kinds first.
    """

    def __init__(self, kept: Mapping[str, int] | None = None) -> None:
        self._kept = kept or {}
        self._means: dict[str, float] = {}

    def note(self, kind: str, took_ms: int, mean_ms: int | None) -> None:
        """Hear of the end of a task that carried a mean.

        The logical clock does not note its shortest steps, and the server's may have gone back.
        """
        took_ms = max(0, took_ms)
        mean = self._means.get(kind, mean_ms)
        self._means[kind] = float(took_ms) if mean is None else mean + (took_ms - mean) / PARTS

    def mean_ms(self, kind: str) -> int | None:
        """Return the mean that a task carries which starts now."""
        return round(self._means[kind]) if kind in self._means else self._kept.get(kind)

    def kept(self) -> dict[str, int]:
        """Return what is kept for the calls that come."""
        means = {kind: round(mean) for kind, mean in self._means.items()}
        means |= {kind: mean for kind, mean in self._kept.items() if kind not in means}
        return dict(itertools.islice(means.items(), KINDS))
