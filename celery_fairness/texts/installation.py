"""The texts of an installation's function libraries, and of what it leaves in Redis."""

from __future__ import annotations

from collections.abc import Sequence

from celery_fairness.control.installation.libraries import LibraryStatus
from celery_fairness.control.installation.uninstall import Leftovers
from celery_fairness.control.key.limit_in_force import time_text
from celery_fairness.texts.format import (
    count,
    table,
)
from celery_fairness.util.printable import printable


def libraries_lines(libraries: Sequence[LibraryStatus]) -> list[str]:
    """Return the libraries of a server for people."""
    rows = [
        (
            each.name,
            "this version" if each.current else "another version",
            time_text(each.used) if each.used else "never here",
            each.size,
        )
        for each in libraries
    ]
    return table(("library", "of", "used last", "bytes"), rows, empty="no library is loaded")


def leftovers_lines(left: Leftovers, *, yes: bool) -> list[str]:
    """Return what an installation has in Redis, and what keeps it there, for people."""
    where = f"namespace {left.namespace} on {left.redis}"
    if left.deleted:
        return [f"{where}: {count(left.keys, 'key')} deleted"]
    lines = [f"{where}: {count(left.keys, 'key')}, {count(left.tasks, 'task')}"]
    lines += [f"  worker {printable(name)} is announced: stop it" for name in left.workers]
    if left.tasks:
        lines.append("  to keep the tasks: queue migrate QUEUE --to redis, task requeue ID")
        lines.append("  to delete them too: --with-tasks")
    return [*lines, "nothing is deleted" if yes else "nothing is deleted; --yes deletes the keys"]
