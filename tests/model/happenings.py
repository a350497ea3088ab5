"""What happened, in its order, as the functions write it into the stream ``events``.

An event is told by the call that causes it, and says of a task its id and name: no table knows
them, so they are read where the headers of its message begin, as Celery's do, with plain values.
Where they are not found there they are its delivery tag and its kind.
"""

from __future__ import annotations

import re

from tests.model.lanes import Task

#: A message is long, and its body, which has no quotes in it, comes first.
_HEADERS = '"headers":'
_PLAIN = re.compile(r'"headers": ?\{([^{\[]*)')
_ID = re.compile(r'"id": ?"([^"\\]+)"')
_NAME = re.compile(r'"task": ?"([^"\\]+)"')


class Happenings:
    """The stream; the model forgets nothing of it.

    Attributes:
        told: The type of each event and what it says.
    """

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, str]]] = []

    def tell(self, what: str, **fields: object) -> None:
        """Something happened."""
        self.told.append((what, {name: str(value) for name, value in fields.items()}))

    def tell_of(self, what: str, queue: str, task: Task, **fields: object) -> None:
        """Something happened to a task."""
        job_id, job_type = names_of(task)
        self.tell(what, job_id=job_id, job_type=job_type, queue=queue, **fields)


def names_of(task: Task) -> tuple[str, str]:
    """Return a task's id and name."""
    found = _PLAIN.match(task.message, max(0, task.message.find(_HEADERS)))
    plain = found[1] if found else ""
    job_id, job_type = _ID.search(plain), _NAME.search(plain)
    return job_id[1] if job_id else task.tag, job_type[1] if job_type else task.kind
