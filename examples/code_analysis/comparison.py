"""The runs side by side, and the last one with other snoozes.

Invariant: every sentence is computed from the runs, and claims no more than they showed.

Weakness: the result with the ADR's snooze is only a calculation, see `replay`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from examples.code_analysis.figures import (
    UserFigures,
    by_user,
    format_wait,
    percentile,
    quiet_waits_seconds,
)
from examples.code_analysis.jobs import Job
from examples.code_analysis.replay import Replayed, Snooze, replay
from examples.code_analysis.run import Mode, Run
from examples.code_analysis.users import the_flood
from examples.code_analysis.verdict import (
    find_faults,
    find_unfairness,
    longest_quiet_p95_seconds,
)

#: ADR-10: 30 s and up to 10 s more.
ADR_SNOOZE = Snooze(30.0, 10.0)

LABELS: Mapping[Mode, str] = {
    "plain": "plain Celery",
    "turns": "turns alone",
    "fair": "limits and turns",
    "gate": "limits at the gate",
}


@dataclass(frozen=True)
class Outlook:
    """The calculated result with another snooze."""

    quiet_p95_seconds: float
    flood_seconds: float
    flood_refusals: float


@dataclass(frozen=True)
class Comparison:
    """All facts about the runs.

    Attributes:
        plain: The run without the package.
        fair: The run with limits.
        seed: The seed of the load.
        turns: The run with turns alone. None if the limits are those of a gate.
    """

    plain: Run
    fair: Run
    seed: int
    turns: Run | None = None

    @property
    def runs(self) -> tuple[Run, ...]:
        """All, in the order in which they ran."""
        return (
            (self.plain, self.fair) if self.turns is None else (self.plain, self.turns, self.fair)
        )

    def figures(self, run: Run) -> list[UserFigures]:
        """The lines of one run's table. Those of plain Celery have the limits of the last run."""
        limits = self.fair.limits if run is self.plain else run.limits
        return by_user(run.book.jobs.values(), limits, run.until_seconds)

    def quiet_p95_seconds(self, run: Run) -> float:
        """The p95 of all quiet users' waits together."""
        return percentile(quiet_waits_seconds(self.figures(run)), 95) or 0.0

    def flood_seconds(self, run: Run) -> float:
        """From the flood's first submission to the end of its last job."""
        jobs = _flood_jobs(run)
        ends = [end for job in jobs for _, end in job.runs(run.until_seconds)]
        sent = [moment for job in jobs for moment in job.sends]
        return max(ends) - min(sent) if ends and sent else 0.0

    @property
    def findings(self) -> list[str]:
        """The broken promises; empty if there are none."""
        findings = []
        longest = self.longest_quiet_seconds
        for run in self.runs:
            label = LABELS[run.mode]
            if run.stopped:
                findings.append(f"{label}: {run.stopped}")
            findings += find_faults(label, run.book.jobs.values())
            if run is not self.plain:
                findings += find_unfairness(label, self.figures(run), longest)
        return findings

    @property
    def longest_quiet_seconds(self) -> float:
        """The longest allowed wait of a quiet user at p95 in the package's runs."""
        return round(longest_quiet_p95_seconds(self.quiet_p95_seconds(self.plain)), 1)

    @property
    def sentence(self) -> str:
        """The purpose of the demo, in one sentence."""
        flood = the_flood()
        plain, fair = self.quiet_p95_seconds(self.plain), self.quiet_p95_seconds(self.fair)
        return (
            f"While {flood.name} ({flood.tier}) had {len(_flood_jobs(self.fair))} jobs to do, 95 % "
            f"of everybody else's jobs started within {format_wait(fair)} instead of "
            f"{format_wait(plain)}; "
            f"{flood.name} had at most {self.flood_at_once(self.fair)} running at once instead of "
            f"{self.flood_at_once(self.plain)}, and took {self.flood_seconds(self.fair):.0f} s "
            f"instead of {self.flood_seconds(self.plain):.0f} s."
        )

    @property
    def turns_sentence(self) -> str:
        """The same of the run with turns alone; empty if there was none."""
        if self.turns is None:
            return ""
        flood = the_flood().name
        return (
            f"With turns alone they started within "
            f"{format_wait(self.quiet_p95_seconds(self.turns))}; {flood} had at most "
            f"{self.flood_at_once(self.turns)} running at once, and took "
            f"{self.flood_seconds(self.turns):.0f} s."
        )

    def flood_at_once(self, run: Run) -> int:
        """The largest number of the flood's jobs at one moment."""
        return next(line.most_at_once for line in self.figures(run) if line.floods)

    def outlook(self, snooze: Snooze) -> Outlook:
        """The calculated result with a snooze for the jobs of the package's run."""
        quiet: list[float] = []
        flood: list[Replayed] = []
        for line in self.figures(self.fair):
            jobs = [job for job in self.fair.book.jobs.values() if job.user == line.user]
            replayed = replay(jobs, line.limit, snooze, self.seed)
            if line.floods:
                flood = replayed
            elif line.quiet:
                quiet += [job.wait_seconds for job in replayed]
        began_seconds = min((job.sent_seconds for job in flood), default=0.0)
        return Outlook(
            quiet_p95_seconds=percentile(quiet, 95) or 0.0,
            flood_seconds=max((job.end_seconds for job in flood), default=0.0) - began_seconds,
            flood_refusals=_mean([job.refusals for job in flood]),
        )

    @property
    def own_snooze(self) -> Snooze:
        """The snooze of the package's run."""
        return Snooze(self.fair.snooze_seconds, self.fair.snooze_jitter_seconds)

    @property
    def path_sentence(self) -> str:
        """The handling of waiting jobs in the package's run, in one sentence."""
        if not self.fair.claims:
            return self.snooze_sentence
        return (
            f"Jobs above a limit waited in Redis (fairredis): no worker saw one of "
            f"{the_flood().name}'s before it could start."
        )

    @property
    def snooze_sentence(self) -> str:
        """The snooze of the run, and the result with the ADR's, in one sentence."""
        flood = the_flood().name
        own = self.own_snooze
        refusals = _mean([job.refusals for job in _flood_jobs(self.fair)])
        adr = self.outlook(ADR_SNOOZE)
        return (
            f"This run snoozed for {own}; a job of {flood} was rejected {refusals:.1f} times on "
            f"average. Its jobs replayed with ADR-10's {ADR_SNOOZE}: rejected "
            f"{adr.flood_refusals:.1f} times, {flood} done after about "
            f"{adr.flood_seconds:.0f} s, p95 of the others about {adr.quiet_p95_seconds:.1f} s."
        )

    def as_json(self) -> dict[str, Any]:
        """The summary for programs; times in seconds."""
        return {
            "seed": self.seed,
            "findings": self.findings,
            "sentence": self.sentence,
            "turns_sentence": self.turns_sentence,
            "path": "fairredis" if self.fair.claims else "gate",
            "waiting": self.path_sentence,
            "adr_replay": asdict(self.outlook(ADR_SNOOZE)),
            # Compare it with the run itself to see how exact the replay is.
            "own_replay": asdict(self.outlook(self.own_snooze)),
            "runs": {run.mode: self._run_as_json(run) for run in self.runs},
        }

    def _run_as_json(self, run: Run) -> dict[str, Any]:
        return {
            "seconds": round(run.lasted_seconds, 3),
            "flood_seconds": round(self.flood_seconds(run), 3),
            "quiet_wait_p95_seconds": round(self.quiet_p95_seconds(run), 3),
            "lines_of_code": sum(job.lines for job in run.book.jobs.values()),
            "refusals_by_tier": run.refusals,
            "users": [_line_as_json(line) for line in self.figures(run)],
        }


def _line_as_json(line: UserFigures) -> dict[str, Any]:
    return {
        "user": line.user,
        "tier": line.tier,
        "flood": line.floods,
        "jobs": line.jobs,
        "done": line.done,
        "refusals": line.refusals,
        "wait_p50_seconds": line.wait_p50_seconds,
        "wait_p95_seconds": line.wait_p95_seconds,
        "most_at_once": line.most_at_once,
        "limit": line.limit,
    }


def _flood_jobs(run: Run) -> Sequence[Job]:
    return [job for job in run.book.jobs.values() if job.user == the_flood().name]


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0
