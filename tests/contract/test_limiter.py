"""What the limiter does, in Redis and on a frozen clock."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import pytest

from celery_fairness.config.settings import Enforcement
from celery_fairness.config.tenants import tier_key
from celery_fairness.config.tiers import DEFAULT_TIERS, Tier
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Admitted, Lease, Reason, Rejected, SlotRequest
from celery_fairness.message.headers import Copy
from tests.contract.conftest import FrozenClock

_ids = itertools.count(1)


def ask(
    tenant: str = "42", tier: str = "free", copy: Copy | None = None, lease: str = ""
) -> SlotRequest:
    return SlotRequest(Lease(lease or f"lease{next(_ids)}", tier_key(tenant)), tenant, tier, copy)


def admitted(answer: Admitted | Rejected) -> Admitted:
    assert isinstance(answer, Admitted), answer
    return answer


def rejected(answer: Admitted | Rejected) -> Rejected:
    assert isinstance(answer, Rejected), answer
    return answer


def held(limiter: Limiter, tenant: str = "42") -> int:
    return limiter.leases_of(tier_key(tenant)).held


def test_under_the_limit_is_admitted_and_over_it_rejected(limiter: Limiter) -> None:
    first = admitted(limiter.acquire(ask()))
    assert (first.held, first.limit, first.tier) == (1, 1, "free")
    answer = rejected(limiter.acquire(ask()))
    assert answer.reason is Reason.AT_CONCURRENCY_LIMIT
    assert (answer.held, answer.limit, answer.tier) == (1, 1, "free")
    assert answer.retry_after_seconds is None


@pytest.mark.parametrize(
    ("tier", "slots"), [("free", 1), ("pro", 3), ("pro_plus", 3), ("enterprise", 5)]
)
def test_each_tier_has_its_slots(limiter: Limiter, tier: str, slots: int) -> None:
    answers = [limiter.acquire(ask(tier=tier)) for _ in range(slots + 2)]
    assert [isinstance(a, Admitted) for a in answers] == [True] * slots + [False] * 2


def test_tenants_are_independent_and_tiers_mix(limiter: Limiter) -> None:
    for tenant, tier, slots in (("a", "free", 1), ("b", "pro", 3), ("c", "enterprise", 5)):
        answers = [limiter.acquire(ask(tenant, tier)) for _ in range(7)]
        assert sum(isinstance(a, Admitted) for a in answers) == slots


@pytest.mark.parametrize("tier", ["gold", "", "__proto__"])
def test_an_unknown_tier_is_free(limiter: Limiter, tier: str) -> None:
    assert admitted(limiter.acquire(ask(tier=tier))).tier == "free"
    assert rejected(limiter.acquire(ask(tier=tier))).tier == "free"
    assert set(limiter.counts()) == {"rejected:free"}


def test_a_release_frees_the_slot_and_twice_is_harmless(limiter: Limiter) -> None:
    one, two = ask(tier="pro"), ask(tier="pro")
    limiter.acquire(one)
    limiter.acquire(two)
    assert limiter.release([one.lease]) == 1
    assert limiter.release([one.lease]) == 0
    assert held(limiter) == 1
    assert limiter.release([one.lease, two.lease, two.lease]) == 1
    assert held(limiter) == 0


def test_a_release_that_nobody_waits_for_frees_the_slot(limiter: Limiter) -> None:
    for _ in range(3):
        request = ask()
        admitted(limiter.acquire(request))
        limiter.release_soon(request.lease)
        limiter.release_soon(request.lease)
    assert held(limiter) == 0


def test_a_release_by_another_lease_id_changes_nothing(limiter: Limiter) -> None:
    limiter.acquire(ask())
    assert limiter.release([ask().lease]) == 0
    rejected(limiter.acquire(ask()))


@pytest.mark.parametrize("tier", ["free", "pro"])
def test_the_same_lease_again_is_admitted_without_a_second_slot(
    limiter: Limiter, tier: str
) -> None:
    request = ask(tier=tier)
    limiter.acquire(request)
    assert admitted(limiter.acquire(request)).held == 1
    assert held(limiter) == 1


def test_a_lease_ends_when_nobody_renews_it(limiter: Limiter, clock: FrozenClock) -> None:
    limiter.acquire(ask())
    for _ in range(3):
        rejected(limiter.acquire(ask()))
        clock.advance(5)
        limiter.renew([])
    admitted(limiter.acquire(ask()))
    assert held(limiter) == 1


def test_a_renewed_lease_stays(limiter: Limiter, clock: FrozenClock) -> None:
    request = ask()
    limiter.acquire(request)
    for _ in range(20):
        clock.advance(5)
        assert limiter.renew([request.lease]).gone == ()
    rejected(limiter.acquire(ask()))


def test_a_renewal_says_which_leases_are_gone(limiter: Limiter) -> None:
    here, released, never = ask("a", "pro"), ask("a", "pro"), ask("b")
    limiter.acquire(here)
    limiter.acquire(released)
    limiter.release([released.lease])
    answer = limiter.renew([released.lease, here.lease, never.lease])
    assert answer.gone == (released.lease, never.lease)
    assert held(limiter, "a") == 1
    assert held(limiter, "b") == 0


def test_more_leases_than_one_batch_are_renewed_and_released(limiter: Limiter) -> None:
    requests = [ask(f"t{n}") for n in range(600)]
    for request in requests[:-1]:
        admitted(limiter.acquire(request))
    leases = [request.lease for request in requests]
    assert limiter.renew(leases).gone == (leases[-1],)
    assert limiter.release(leases) == 599


@pytest.mark.parametrize("jump_seconds", [20.0, 3600.0, -3600.0])
def test_an_outage_or_a_jump_of_the_clock_ends_no_lease(
    limiter: Limiter, clock: FrozenClock, jump_seconds: float
) -> None:
    request = ask()
    limiter.acquire(request)
    clock.advance(jump_seconds)
    rejected(limiter.acquire(ask()))
    assert limiter.renew([request.lease]).gone == ()
    clock.advance(5)
    rejected(limiter.acquire(ask()))


def test_after_a_clock_set_back_a_dead_lease_still_ends(
    limiter: Limiter, clock: FrozenClock
) -> None:
    limiter.acquire(ask())
    clock.advance(-3600)
    for _ in range(4):
        limiter.renew([])
        clock.advance(5)
    admitted(limiter.acquire(ask()))


def test_a_lease_of_a_lost_memory_is_entered_again(
    limiter: Limiter, make_limiter: Callable[..., Limiter], clock: FrozenClock
) -> None:
    request = ask()
    epoch = limiter.renew([]).epoch
    clock.advance(1)
    other = make_limiter(namespace="after_the_loss")
    assert other.renew([]).epoch != epoch
    entered = other.renew([request.lease], epoch)
    assert (entered.gone, entered.entered) == ((), (request.lease,))
    again = other.renew([request.lease], epoch)
    assert (again.gone, again.entered) == ((), ()), "it is there"
    rejected(other.acquire(ask()))


def test_a_limit_of_zero_pauses(make_limiter: Callable[..., Limiter]) -> None:
    limiter = make_limiter(tiers={"free": {"concurrency": 0}})
    answer = rejected(limiter.acquire(ask()))
    assert (answer.reason, answer.retry_after_seconds) == (Reason.PAUSED, None)


def test_no_limit_admits_everything(make_limiter: Callable[..., Limiter]) -> None:
    limiter = make_limiter(tiers={"free": {"concurrency": None}})
    answers = [admitted(limiter.acquire(ask())) for _ in range(50)]
    assert (answers[-1].held, answers[-1].limit) == (50, None)


def test_observe_counts_and_rejects_nothing(limiter: Limiter) -> None:
    answers = [admitted(limiter.acquire(ask(), Enforcement.OBSERVE)) for _ in range(3)]
    assert [a.over_limit for a in answers] == [False, True, True]
    assert limiter.counts() == {"rejected:free": 2}
    assert held(limiter) == 3


def test_off_rejects_and_counts_nothing_but_holds_leases(limiter: Limiter) -> None:
    answers = [admitted(limiter.acquire(ask(), Enforcement.OFF)) for _ in range(3)]
    assert [a.over_limit for a in answers] == [False] * 3
    assert limiter.counts() == {}
    assert rejected(limiter.acquire(ask())).held == 3


def test_rejections_are_counted_by_tier(limiter: Limiter) -> None:
    for _ in range(3):
        limiter.acquire(ask("a", "free"))
    for _ in range(4):
        limiter.acquire(ask("b", "pro"))
    assert limiter.counts() == {"rejected:free": 2, "rejected:pro": 1}


def test_a_published_table_wins_over_the_settings(limiter: Limiter) -> None:
    assert limiter.published_tiers() == ("", {})
    table = [Tier("free", 2), Tier("pro", None, 2.5, "priority")]
    before = limiter.config_version()
    assert limiter.publish_tiers(table, "database")
    assert limiter.config_version() == before + 1
    assert limiter.published_tiers() == ("database", {t.name: t for t in table})
    answers = [limiter.acquire(ask()) for _ in range(3)]
    assert [isinstance(a, Admitted) for a in answers] == [True, True, False]
    assert admitted(limiter.acquire(ask("b", "pro"))).limit is None
    assert admitted(limiter.acquire(ask("c", "enterprise"))).tier == "free"


def test_the_same_table_again_is_no_news(limiter: Limiter) -> None:
    limiter.publish_tiers(DEFAULT_TIERS.values(), "settings")
    version = limiter.config_version()
    assert limiter.publish_tiers(DEFAULT_TIERS.values(), "settings")
    assert limiter.config_version() == version


def test_settings_do_not_replace_the_database_table(limiter: Limiter) -> None:
    limiter.publish_tiers([Tier("free", 7)], "database")
    assert not limiter.publish_tiers(DEFAULT_TIERS.values(), "settings", force=False)
    assert limiter.published_tiers() == ("database", {"free": Tier("free", 7)})


def test_a_published_tenant_has_its_tier_and_its_number(limiter: Limiter) -> None:
    limiter.publish_tiers(DEFAULT_TIERS.values(), "settings")
    limiter.publish_tenant("42", "pro")
    assert limiter.published_tenant("42") == "pro"
    assert admitted(limiter.acquire(ask())).limit == 3
    limiter.publish_tenant("42", "pro", {"concurrency": 7})
    assert limiter.look(tier_key("42"), "42", "free")["entitled"] == "C7"
    limiter.publish_tenant("42", "pro", {"concurrency": None})
    assert limiter.look(tier_key("42"), "42", "free")["entitled"] == ""
    limiter.publish_tenant("42", None)
    assert limiter.published_tenant("42") is None
    assert limiter.look(tier_key("42"), "42", "free")["entitled"] == "C1"


def test_a_published_tenant_of_an_unpublished_tier_is_of_the_default_tier(
    limiter: Limiter,
) -> None:
    limiter.publish_tenant("42", "gold")
    found = limiter.look(tier_key("42"), "42", "pro")
    assert (found["tier"], found["entitled"]) == ("free", "C1")


def test_the_same_tenant_again_is_no_news(limiter: Limiter) -> None:
    limiter.publish_tenant("42", "pro", {"concurrency": 7})
    version = limiter.config_version()
    limiter.publish_tenant("42", "pro", {"concurrency": 7})
    limiter.publish_tenant("43", None)
    assert limiter.config_version() == version


def test_every_publication_is_news(limiter: Limiter) -> None:
    versions = [limiter.config_version()]
    limiter.publish_tenant("42", "pro")
    versions.append(limiter.config_version())
    limiter.publish_tenant("42", None)
    versions.append(limiter.config_version())
    assert versions == sorted(set(versions))
    assert admitted(limiter.acquire(ask())).config_version == versions[-1]


def test_a_lowered_limit_kills_nothing_and_grants_nothing_until_under(limiter: Limiter) -> None:
    limiter.publish_tiers([Tier("free", 5)], "database")
    requests = [ask() for _ in range(5)]
    for request in requests:
        admitted(limiter.acquire(request))
    limiter.publish_tiers([Tier("free", 2)], "database")
    starts = []
    for request in requests:
        limiter.release([request.lease])
        starts.append(isinstance(limiter.acquire(ask()), Admitted))
    assert starts == [False, False, False, True, True]


def test_inspection_shows_the_leases_and_changes_nothing(
    limiter: Limiter, clock: FrozenClock
) -> None:
    first, second = ask("a", "pro"), ask("a", "pro")
    limiter.acquire(first)
    clock.advance(3)
    limiter.acquire(second)
    for _ in range(2):
        found = limiter.look(tier_key("a"), "a", "pro")
        assert (found["tier"], found["entitled"], found["held"]) == ("pro", "C3", 2)
        shown = [
            (lease.id, lease.expires_in_seconds) for lease in limiter.leases_of(tier_key("a")).first
        ]
        assert shown == [(first.lease.id, 12.0), (second.lease.id, 15.0)]
    assert limiter.leases_of("tenant:nobody").held == 0


def test_counters_add_up(limiter: Limiter) -> None:
    limiter.count("opened")
    limiter.count("opened", 4)
    assert limiter.counts() == {"opened": 5}


class TestCopies:
    """Of all copies of a rejected message that a broker may hold, one runs."""

    @pytest.fixture(autouse=True)
    def _one_slot(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.blocker = ask()
        limiter.acquire(self.blocker)

    def free(self) -> None:
        self.limiter.release([self.blocker.lease])

    def reject(self, serial: str, next_serial: str) -> Rejected:
        request = dataclasses.replace(ask(copy=Copy("m1", serial)), next_serial=next_serial)
        return rejected(self.limiter.acquire(request))

    def run(self, serial: str) -> Admitted | Rejected:
        """Let the copy start, and end at once."""
        request = ask(copy=Copy("m1", serial))
        answer = self.limiter.acquire(request)
        self.limiter.release([request.lease])
        return answer

    def is_dropped(self, serial: str) -> bool:
        answer = self.run(serial)
        return isinstance(answer, Rejected) and answer.reason is Reason.SUPERSEDED

    def test_a_message_that_was_never_rejected_runs_as_often_as_it_is_delivered(self) -> None:
        self.free()
        admitted(self.run(""))
        admitted(self.run(""))

    def test_the_next_copy_runs_and_then_the_old_one_is_dropped(self) -> None:
        self.reject("", "s1")
        self.free()
        admitted(self.run("s1"))
        assert self.is_dropped("")
        assert self.limiter.counts()["superseded"] == 1

    def test_the_old_copy_delivered_again_runs_and_then_the_next_is_dropped(self) -> None:
        self.reject("", "s1")
        self.free()
        admitted(self.run(""))
        assert self.is_dropped("s1")

    def test_a_rejection_of_the_next_copy_drops_the_old_one(self) -> None:
        self.reject("", "s1")
        assert self.reject("s1", "s2").reason is Reason.AT_CONCURRENCY_LIMIT
        assert self.is_dropped("")
        self.free()
        admitted(self.run("s2"))

    def test_two_rejections_of_one_copy_leave_one_successor(self) -> None:
        self.reject("", "s1")
        self.reject("", "s2")
        self.free()
        assert self.is_dropped("s1")
        admitted(self.run("s2"))

    def test_a_publish_that_may_have_arrived_is_superseded_by_the_next_try(self) -> None:
        self.reject("", "s1")
        assert self.limiter.supersede(Copy("m1"), "s2")
        self.free()
        assert self.is_dropped("s1")
        admitted(self.run("s2"))

    def test_a_publish_that_did_arrive_needs_no_next_try(self) -> None:
        self.reject("", "s1")
        self.reject("s1", "s2")
        assert not self.limiter.supersede(Copy("m1"), "s3")
        self.free()
        assert self.is_dropped("s3")
        admitted(self.run("s2"))

    def test_a_copy_that_started_is_not_superseded(self) -> None:
        self.reject("", "s1")
        self.free()
        admitted(self.run("s1"))
        assert not self.limiter.supersede(Copy("m1"), "s2")
        assert self.is_dropped("s2")

    def test_the_copy_that_started_may_be_delivered_again(self) -> None:
        self.reject("", "s1")
        self.free()
        admitted(self.run("s1"))
        admitted(self.run("s1"))

    def test_a_started_copy_that_is_redelivered_and_rejected_goes_on_as_the_next(self) -> None:
        self.reject("", "s1")
        self.free()
        admitted(self.run("s1"))
        other = ask()
        admitted(self.limiter.acquire(other))
        assert self.reject("s1", "s2").reason is Reason.AT_CONCURRENCY_LIMIT
        self.limiter.release([other.lease])
        admitted(self.run("s2"))

    def test_a_message_the_limiter_knows_nothing_of_is_published_again(self) -> None:
        assert self.limiter.supersede(Copy("m9"), "s1")
        self.free()
        admitted(self.limiter.acquire(ask(copy=Copy("m9", "s1"))))

    def test_other_messages_are_not_touched(self) -> None:
        self.reject("", "s1")
        self.free()
        admitted(self.run("s1"))
        admitted(self.limiter.acquire(ask(copy=Copy("m2"))))
