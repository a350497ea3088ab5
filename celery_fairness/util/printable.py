"""Text of others for a terminal or a log: without control characters and line ends.

Ids and names in a message are any text. In a line of the log they could colour a terminal, or begin
another line that nothing has logged.

Invariant: a value in a line adds no line and no escape to it. A line has more lines only if its own
text does.

Weakness: a traceback has the text of its exception as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

#: Our loggers, and Celery's with lines about one task.
LOGGERS = (
    "celery_fairness",
    "celery.app.trace",
    "celery.worker.consumer.consumer",
    "celery.worker.control",
    "celery.worker.request",
    "celery.worker.strategy",
)


def printable(text: str) -> str:
    """Return ``text`` with an escape in place of each character that is not printable.

    A backslash beside an escape is doubled. A text without an escape stays as it is.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() and each != "\\" else ascii(each)[1:-1] for each in text
    )


class _Shown(str):
    """The text of a value for ``%s``, with the value's own for ``%r``."""

    of: Any

    def __repr__(self) -> str:
        return printable(repr(self.of))


class PrintableValues(logging.Filter):
    """Makes the values of each record printable, and lets each record pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the values that are not printable."""
        values = record.args
        if isinstance(values, Mapping):
            # Celery's lines name their values. It logs the same mapping as a field, too.
            record.args = {name: _shown(value) for name, value in values.items()}
        elif values:
            record.args = tuple(map(_shown, values))
        return True


_FILTER = PrintableValues()


def make_logs_printable() -> None:
    """Let lines about tasks have printable values, in this process."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)


def _shown(value: Any) -> Any:
    try:
        if value is None or isinstance(value, (int, float)):
            return value
        text = str(value)
    except Exception:  # noqa: BLE001
        # A filter raises into the code that logs. The handler reports the error of the value.
        return value
    if text.isprintable():
        return value
    shown = _Shown(printable(text))
    shown.of = value
    return shown
