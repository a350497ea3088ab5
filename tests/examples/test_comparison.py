"""What is said about two runs is computed from them."""

from __future__ import annotations

import json
from dataclasses import replace

from examples.code_analysis.comparison import Comparison
from examples.code_analysis.replay import Snooze
from tests.examples.made_runs import a_good_comparison, made_job, made_run


def test_the_sentence_holds_the_numbers_of_both_runs() -> None:
    # Plain: fred's ten jobs of 4 s start a second apart, so 4 at once, the last ends at 13.
    # With the package: one at once, ends at 19; the others waited 0.5 s and 0.25 s, before 10 s.
    assert a_good_comparison().sentence == (
        "While fred (free) had 10 jobs to do, 95 % of everybody else's jobs started within 500 ms "
        "instead of 10.0 s; fred had at most 1 running at once instead of 4, and took 19 s "
        "instead of 13 s."
    )


def test_the_run_with_turns_alone_has_a_sentence_of_its_own() -> None:
    comparison = a_good_comparison()
    assert comparison.turns_sentence == (
        "With turns alone they started within 2.0 s; fred had at most 3 running at once, and "
        "took 13 s."
    )
    assert replace(comparison, turns=None).turns_sentence == ""


def test_what_longer_snoozes_would_give() -> None:
    comparison = a_good_comparison()
    # Four of paul's jobs at once, three may run: the fourth is rejected once.
    jobs = [made_job("paul", 5.0, 6.0, 8.0) for _ in range(4)]
    comparison.fair.book.jobs.update({job.id: job for job in jobs})

    outlook = comparison.outlook(Snooze(30.0, 0.0))

    assert outlook.quiet_p95_seconds == 30.0
    # Fred's ten jobs of 1 s ask together every 30 s, and one gets the slot each time.
    assert outlook.flood_seconds == 9 * 30.0 + 1.0
    assert outlook.flood_refusals == sum(range(10)) / 10
    sentence = comparison.snooze_sentence
    assert "This run snoozed for 1 s + 1 s; a job of fred was rejected 4.5 times" in sentence
    assert "replayed with ADR-10's 30 s + 10 s" in sentence


def test_runs_in_which_nothing_happened_can_be_told() -> None:
    nothing = Comparison(made_run("plain", []), made_run("fair", []), seed=1)

    assert nothing.sentence
    assert nothing.snooze_sentence
    assert nothing.findings == []


def test_the_summary_for_programs_is_json() -> None:
    summary = json.loads(json.dumps(a_good_comparison().as_json()))

    assert summary["findings"] == []
    assert summary["seed"] == 7
    fred = next(user for user in summary["runs"]["fair"]["users"] if user["user"] == "fred")
    assert (fred["jobs"], fred["most_at_once"], fred["limit"], fred["flood"]) == (10, 1, 1, True)
    assert summary["runs"]["plain"]["quiet_wait_p95_seconds"] == 10.0
    assert summary["runs"]["turns"]["quiet_wait_p95_seconds"] == 2.0
    assert all(user["limit"] is None for user in summary["runs"]["turns"]["users"])
