"""What Redis stores of a tier resolver that fails: a counter, and the last tenants."""

from __future__ import annotations

from celery_fairness.limiter.types import Unresolved
from celery_fairness.store.keys import Names

NAMES = Names("fairness")
DAY_MS = 86_400_000


def rows(client):
    return (client.hget(NAMES.clock, "unresolved") or "").split()


def test_failures_are_added_and_the_last_error_counts(make_limiter, client, clock):
    limiter = make_limiter(frozen=True)
    assert limiter.report_unresolved(3, {"42": Unresolved(2, "OSError")}) == 0
    limiter.report_unresolved(1, {"7": Unresolved(1, "OSError")})
    before = clock.now_ms
    clock.advance(5)
    limiter.publish_tenant("42", "pro")
    version = limiter.report_unresolved(1, {"42": Unresolved(1, "KeyError")})
    assert version == limiter.config_version() == 1
    assert rows(client) == [f"tenant:42~{before + 5000}~3~KeyError", f"tenant:7~{before}~1~OSError"]
    assert limiter.counts()["unresolved"] == 5


def test_a_resolver_that_fails_for_all_names_the_hundred_of_the_last_failures(
    make_limiter, client, clock
):
    limiter = make_limiter(frozen=True)
    for start in range(0, 300, 20):
        clock.advance(1)
        names = [f"t{number}" for number in range(start, start + 20)]
        limiter.report_unresolved(500, dict.fromkeys(names, Unresolved(1, "OSError")))
    kept = {f"tenant:t{number}" for number in range(200, 300)}
    assert {row.partition("~")[0] for row in rows(client)} == kept
    assert limiter.counts()["unresolved"] == 15 * 500


def test_a_row_is_forgotten_after_a_day(make_limiter, client, clock):
    limiter = make_limiter(frozen=True)
    limiter.report_unresolved(1, {"old": Unresolved(1, "OSError")})
    clock.advance(DAY_MS / 1000 + 1)
    limiter.report_unresolved(1, {"new": Unresolved(1, "OSError")})
    assert [row.partition("~")[0] for row in rows(client)] == ["tenant:new"]


def test_a_tenant_of_any_text_has_one_row(make_limiter, client):
    limiter = make_limiter()
    names = ["a b", "\x1b[2J\n", "ü" * 90, "h_1", "x~1~2~y"]
    limiter.report_unresolved(5, dict.fromkeys(names, Unresolved(1, "OSError")))
    limiter.report_unresolved(5, dict.fromkeys(names, Unresolved(1, "OSError")))
    assert {tuple(row.split("~")[::2]) for row in rows(client)} == {
        (NAMES.tenant(name).removeprefix(NAMES.prefix), "2") for name in names
    }


def test_a_late_report_has_the_time_of_the_failure(make_limiter, client, clock):
    limiter = make_limiter(frozen=True)
    hour, now = 3_600_000, clock.now_ms
    limiter.report_unresolved(1, {"7": Unresolved(1, "OSError", 60_000)})
    late = {name: Unresolved(1, "KeyError", hour) for name in ("7", "42")}
    limiter.report_unresolved(3, {**late, "old": Unresolved(1, "KeyError", DAY_MS + 1)})
    assert rows(client) == [
        f"tenant:7~{now - 60_000}~2~OSError",
        f"tenant:42~{now - hour}~1~KeyError",
    ]
    assert limiter.counts()["unresolved"] == 4
