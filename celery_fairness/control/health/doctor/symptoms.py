"""The symptoms that ``doctor`` reports, and the checks that find them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from celery_fairness.control.health.doctor.facts import Facts
from celery_fairness.control.health.views import Verdict
from celery_fairness.util.value import Value

Level = Literal["problem", "advice"]


class Found(NamedTuple):
    """A :class:`Symptom` without the check's name, as a check yields it."""

    level: Level
    what: str
    consequence: str
    fix: str


def problem(what: str, consequence: str, fix: str) -> Found:
    """Return a problem: somebody must act."""
    return Found("problem", what, consequence, fix)


def advice(what: str, consequence: str, fix: str) -> Found:
    """Return advice: something that could be better."""
    return Found("advice", what, consequence, fix)


@dataclass(frozen=True, slots=True)
class Symptom:
    """One thing that is wrong, or that could be better.

    Attributes:
        check: The name of the check that found it, such as ``eviction``.
        level: ``problem`` if somebody must act, otherwise ``advice``.
        what: What the check found.
        consequence: What follows from it.
        fix: What to do.
    """

    check: str
    level: Level
    what: str
    consequence: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}: {self.consequence}; {self.fix}"


class Diagnosis(Value):
    """The answer of ``doctor``.

    Attributes:
        at: Time of the look, by the clock of this process.
        symptoms: What the checks found, problems first.
        verdict: The verdict of the status.
    """

    at: datetime
    symptoms: tuple[Symptom, ...]
    verdict: Verdict

    @property
    def is_well(self) -> bool:
        """Whether nobody must act. Advice does not count."""
        problems = any(each.level == "problem" for each in self.symptoms)
        return not problems and self.verdict.level != "trouble"


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One check, with the name of its function.

    Attributes:
        find: Yields what it finds. Its docstring has the condition, as ``Find that …``.
        at_start: Whether starting workers and Django run it too: it needs no other worker.
    """

    find: Callable[[Any], Iterable[Found]]
    at_start: bool = True

    @property
    def name(self) -> str:
        """Its name."""
        return self.find.__name__

    @property
    def finds(self) -> str:
        """The condition under which it finds something, as the documentation shows it."""
        words = " ".join((self.find.__doc__ or "").replace("``", "`").split())
        return words.removeprefix("Find that ").removesuffix(".").replace(". A ", "; a ")

    def symptoms(self, facts: Facts) -> list[Symptom]:
        """Return what the check finds in ``facts``."""
        return [Symptom(self.name, *each) for each in self.find(facts)]


class FleetCheck(DoctorCheck):
    """A check of the workers and their work, whose function looks at :class:`FleetFacts`."""

    def symptoms(self, facts: Facts) -> list[Symptom]:
        """Return what the check finds, if the workers are known."""
        found = () if facts.fleet is None else self.find(facts.fleet)
        return [Symptom(self.name, *each) for each in found]
