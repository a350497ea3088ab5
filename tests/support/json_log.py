"""Records of a logger as a logger that writes JSON would write them."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

#: What every record has.
USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Writes the line, its level, and each field that not every record has."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in USUAL}
        return json.dumps({"level": record.levelname, "message": record.getMessage(), **fields})


class Lines(logging.Handler):
    """Keeps the lines, as objects."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The fields of each line, without its level and its text."""
        usual = ("level", "message")
        return [{n: v for n, v in each.items() if n not in usual} for each in self.lines]


@contextlib.contextmanager
def json_lines(level: int = logging.INFO) -> Iterator[Lines]:
    """Collect what the package logs from ``level`` on."""
    logger, lines = logging.getLogger("celery_fairness"), Lines()
    before = logger.level
    logger.addHandler(lines)
    logger.setLevel(level)
    try:
        yield lines
    finally:
        logger.setLevel(before)
        logger.removeHandler(lines)
