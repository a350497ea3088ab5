"""The partitions of an installation: which keys each of them has, and which tenant is in it.

A tenant is wholly in one partition, so its limit, its turns and its pause are exact there. All keys
of a partition have a hash tag of its own, chosen so that the slots of all partitions are spread
evenly over a cluster (ADR 27).

The *home* of an installation has what all partitions share: their number, the bells at which
workers sleep, the workers, and the tiers. An installation with one partition is its own home.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator

from celery_fairness.errors import SettingsError
from celery_fairness.store.cluster import SLOTS, slot_of
from celery_fairness.store.keys import Names


class Partitions:
    """The partitions of one installation.

    Args:
        namespace: The setting ``namespace``.
        before: The broker's ``global_keyprefix``.
        count: The number of partitions, a power of two.
    """

    def __init__(self, namespace: str, before: str = "", count: int = 1) -> None:
        self.count = count
        self.namespace, self._before = namespace, before
        self.home = Names(namespace, before)
        #: The names of each partition.
        self.names: tuple[Names, ...] = (self.home,)
        if count > 1:
            self._tags = _tag_numbers(namespace, count)
            self.names = tuple(Names(f"{namespace}#{number}", before) for number in self._tags)
        self._by_prefix = {names.prefix: number for number, names in enumerate(self.names)}

    @property
    def are_several(self) -> bool:
        """Whether the installation has more than one partition."""
        return self.count > 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    def alone(self, partition: int | None) -> Partitions:
        """Return one partition of several, or their home (None), as an installation of its own."""
        tag = "" if partition is None else f"#{self._tags[partition]}"
        return Partitions(self.namespace + tag, self._before)

    def prefix(self, partition: int) -> str:
        """Return the beginning of the keys of a partition."""
        return self.names[partition].prefix

    def of_tenant(self, tenant: str, task_id: str = "") -> int:
        """Return the partition of a tenant's tasks; a task without a tenant is placed by its id.

        Args:
            tenant: The tenant as it is written in keys. "" for a system task.
            task_id: The task's id as it is written in keys.
        """
        return zlib.crc32((tenant or task_id).encode()) % self.count

    def of_key(self, key: str) -> int:
        """Return the home of a limit's key: the partition that grants its permits (ADR 30)."""
        return zlib.crc32(key.encode()) % self.count

    def tag_of(self, partition: int, tag: str) -> str:
        """Return the delivery tag of a task in a partition. Its leases begin with it too."""
        return f"{partition}-{tag}" if self.are_several else tag

    def bare_tag(self, tag: str) -> str:
        """Return the delivery tag of a task without its partition."""
        return tag.partition("-")[2] if self.are_several else tag

    def of_prefix(self, prefix: str) -> int:
        """Return the partition whose keys begin with ``prefix``."""
        return self._by_prefix[prefix]

    def find(self, prefix: str) -> int | None:
        """Return the partition whose keys begin with ``prefix``; None for the home of several."""
        return self._by_prefix.get(prefix)

    def of_tag(self, tag: str) -> int:
        """Return the partition of a delivery tag or a lease."""
        return int(tag.partition("-")[0]) if self.are_several else 0


def other_number(error: Exception, count: int, place: str = "") -> SettingsError | None:
    """Return the error of a process whose settings differ from those of the installation.

    Args:
        error: An answer to a read of the epoch.
        count: The number of partitions by the settings.
        place: The place of the server that answered, by the settings.
    """
    word, _, fixed = str(error).partition(" ")
    if word == "PARTITIONS":
        return number_error(fixed, count)
    if word == "SERVERS":
        return SettingsError(
            f"broker_url: expected the list of servers of this installation, in which this server "
            f"is {_place_text(fixed)}, got: {_place_text(place)}; use the same list in the same "
            "order in each process, or another namespace"
        )
    return None


def _place_text(place: str) -> str:
    number, _, count = place.partition("/")
    return f"number {number} of {count}" if count else "alone"


def number_error(fixed: str, count: int) -> SettingsError:
    """Return the error of a process with ``count`` where the installation has ``fixed``."""
    return SettingsError(
        f"fairness.partitions: expected {fixed}, which the first process of this installation has "
        f"set, got: {count}; use {fixed}, or another namespace"
    )


@functools.cache
def _tag_numbers(namespace: str, count: int) -> tuple[int, ...]:
    """Return for each partition the least number whose hash tag is in the middle of its slots."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < count:
        place = slot_of(f"{{{namespace}#{number}}}") * count / SLOTS
        # Primaries may not end exactly between two partitions, so only the middle half counts.
        if 0.25 <= place % 1 < 0.75:
            found.setdefault(int(place), number)
        number += 1
    return tuple(found[partition] for partition in range(count))
