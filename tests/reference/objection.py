"""How a rule objects to an answer."""

from __future__ import annotations


class Objection(AssertionError):
    """An answer breaks a rule. The text names the rule and the facts."""


def require(holds: object, rule: str, **facts: object) -> None:
    """Raise an objection unless a rule holds."""
    if not holds:
        told = ", ".join(f"{name}={value!r}" for name, value in facts.items())
        raise Objection(f"{rule}: {told}" if told else rule)
