"""Lines of the log with values of strangers."""

from __future__ import annotations

import logging

import pytest

from celery_fairness.util.printable import PrintableValues, printable

FORGED = "x\n[2026-01-01 00:00:00,000: CRITICAL/MainProcess] forged\x1b[31m\u2028"
SHOWN = "x\\n[2026-01-01 00:00:00,000: CRITICAL/MainProcess] forged\\x1b[31m\\u2028"


def line(text: str, *values: object) -> str:
    record = logging.LogRecord("any", logging.INFO, __file__, 1, text, values, None)
    assert PrintableValues().filter(record)
    return record.getMessage()


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("task %s[%s]", ("tâsk", FORGED), f"task tâsk[{SHOWN}]"),
        ("%(name)s: %(of)d", ({"name": FORGED, "of": 3},), f"{SHOWN}: 3"),
        ("%r", (FORGED,), repr(FORGED)),
        ("%s, %r", (ValueError("a\nb"), ValueError("a\nb")), "a\\nb, ValueError('a\\nb')"),
        (
            "%s after %.1f s\nin a second line",
            (["\x1b"], 1.25),
            "['\\x1b'] after 1.2 s\nin a second line",
        ),
        ("%s %s", (None, b"\n"), "None b'\\n'"),
        ("%s", ("Größe\t日本 'a' \"b\"",), "Größe\\t日本 'a' \"b\""),
        ("%s, %s", ("C:\\new", "C:\\new\n"), "C:\\new, C:\\\\new\\n"),
        ("100 %", (), "100 %"),
    ],
)
def test_a_value_adds_no_line_and_no_escape(text, values, expected):
    assert line(text, *values) == expected


def test_the_values_of_the_caller_stay_as_they_are():
    values = {"name": FORGED}
    line("%(name)s", values)
    assert values == {"name": FORGED}
    assert printable("naïve 日本") == "naïve 日本"


class Broken:
    """A value of a user whose text fails."""

    def __str__(self) -> str:
        raise LookupError("no text")


class Unbound:
    """A proxy without an object: even its class is an error."""

    @property
    def __class__(self):
        raise LookupError("no object")


@pytest.mark.parametrize("kind", [Broken, Unbound])
def test_a_value_without_a_text_is_left_to_the_handler(kind):
    value = kind()
    record = logging.LogRecord("any", logging.INFO, __file__, 1, "%s %s", ("\n", value), None)
    assert PrintableValues().filter(record)
    assert record.args[0] == "\\n"
    assert record.args[1] is value
