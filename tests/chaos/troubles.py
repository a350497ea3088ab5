"""Troubles that a message brings: poisons, unreadable messages, and a pool without a process.

The run writes into the ledger what it wants, and the process that sends the load sends these too.
"""

from __future__ import annotations

import uuid
from typing import Any

from celery import Celery

from tests.chaos import ledger
from tests.chaos.app import ON
from tests.chaos.plan import OUR_BROKERS

#: What each unreadable message has instead of a readable part: headers, the body, its type.
SHAPES: tuple[tuple[dict[str, Any], bytes, str | None], ...] = (
    ({"task": ["chaos.early"]}, b"[[], {}, {}]", "application/json"),
    ({"id": ["an", "id"]}, b"[[], {}, {}]", "application/json"),
    ({"timelimit": "soon"}, b"[[], {}, {}]", "application/json"),
    ({"eta": {"at": 1}}, b"[[], {}, {}]", "application/json"),
    ({"stamps": 1, "stamped_headers": 1}, b"[[], {}, {}]", "application/json"),
    ({}, b"null", "application/json"),
    ({}, b"\xff\xfe", "application/json"),
    ({}, b"[[], {}, {}]", "application/x-of-nobody"),
)
#: What Celery itself rejects on every broker: an unknown type, and no task.
SHAPES_OF_CELERY = (SHAPES[7], ({"task": None}, b"{}", "application/json"))


def cause(app: Celery, event: ledger.Event) -> bool:
    """Cause what a line of the ledger wants; return False if the broker did not take it."""
    try:
        _CAUSES[event["what"]](app, event)
    except Exception as error:  # noqa: BLE001 - whatever the transport raises in an outage
        ledger.write("wanted_failed", error=repr(error), what=event["what"])
        return False
    return True


def _poison(app: Celery, event: ledger.Event) -> None:
    task: Any = app.tasks["chaos.late_poison" if event["late"] else "chaos.early_poison"]
    begins = ledger.now()
    kwargs = {"tenant": event["tenant"], "whole": event["whole"]}
    task.apply_async(kwargs=kwargs, task_id=event["id"], retry=False)
    facts = {key: event[key] for key in ("id", "tenant", "late")}
    ledger.write("submit", begins, taken=ledger.now(), due=begins, poison=True, **facts)


def _unreadable(app: Celery, event: ledger.Event) -> None:
    shapes = SHAPES if ON in OUR_BROKERS else SHAPES_OF_CELERY
    headers, body, content_type = shapes[event["number"] % len(shapes)]
    whole = {"lang": "py", "task": "chaos.early", "id": uuid.uuid4().hex, "argsrepr": "()"}
    with app.producer_or_acquire() as producer:
        producer.publish(
            body,
            routing_key=app.conf.task_default_queue,
            headers={key: value for key, value in (whole | headers).items() if value is not None},
            content_type=content_type,
            content_encoding="binary" if content_type and "nobody" in content_type else "utf-8",
            serializer=None,
            retry=False,
        )
    ledger.write("unreadable", number=event["number"])


def _resize(app: Celery, event: ledger.Event) -> None:
    resize = app.control.pool_grow if event["grow"] else app.control.pool_shrink
    resize(event["places"], destination=[f"{event['worker']}@localhost"])


_CAUSES = {"poison": _poison, "unreadable": _unreadable, "resize": _resize}
