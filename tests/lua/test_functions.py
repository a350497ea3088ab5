"""The scripts on a real server: what they cost, what they leave, and what they survive."""

from __future__ import annotations

import pytest

from celery_fairness.config.settings import Enforcement
from celery_fairness.config.tenants import INVALID, NONE, tier_key
from celery_fairness.config.tiers import DEFAULT_TIERS, Tier
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.types import Admitted, Lease, Reason, Rejected, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler.types import Renewal
from celery_fairness.store.keys import Names

NAMES = Names("fairness")
#: Keys that live for ever: one of each, whatever happens (docs/internals/redis-keys.md).
FOR_EVER = {
    *(NAMES.clock, NAMES.tiers, NAMES.counters, NAMES.events),
}

#: Commands of the dearest call, its own FCALL included.
MOST_COMMANDS = 18


def ask(lease="l1", tenant="42", tier="free", copy=None, next_serial=""):
    return SlotRequest(Lease(lease, tier_key(tenant)), tenant, tier, copy, next_serial)


def fill_leases(client, keys, count, ends_at):
    """Let as many leases of these keys begin, which all end at one time."""
    pipe = client.pipeline(transaction=False)
    for start in range(0, count, 1000):
        names = [f"other{n}" for n in range(start, min(start + 1000, count))]
        for key in keys.split(","):
            pipe.zadd(NAMES.of("leases", key), dict.fromkeys(names, 1))
        pipe.zadd(f"{NAMES.prefix}ends", dict.fromkeys(names, ends_at))
        pipe.hset(
            f"{NAMES.prefix}running", mapping=dict.fromkeys(names, f"0.0 - held@1 {keys}    ")
        )
    pipe.execute()


def crowd(client, count):
    """As many leases of one tenant, as many tenants and as many waiting copies."""
    seconds, _ = client.time()
    ends_at = (seconds + 3600) * 1000
    fill_leases(client, tier_key("crowded"), count, ends_at)
    pipe = client.pipeline(transaction=False)
    for n in range(count):
        pipe.zadd(NAMES.of("leases", tier_key(f"t{n}")), {"l": 1})
        pipe.hset(NAMES.tenant(f"t{n}"), mapping={"tier": "pro", "concurrency": "7"})
        pipe.hset(NAMES.of("copy", f"m{n}"), mapping={"current": "", "next": "s1"})
        if n % 1000 == 999:
            pipe.execute()
    pipe.execute()


def test_no_call_takes_more_commands_because_more_is_waiting(make_limiter, client, commands):
    # Time that passes is noted now and then.
    limiter = make_limiter(
        frozen=True, tiers={"free": {"concurrency": 100_000}, "pro": {"concurrency": 1}}
    )
    limiter.publish_tiers(DEFAULT_TIERS.values(), "settings")
    calls = {
        "admitted": lambda: limiter.acquire(ask("new", "crowded", "enterprise")),
        "rejected": lambda: limiter.acquire(ask("more", "crowded", "free")),
        "a copy": lambda: limiter.acquire(ask("more", "crowded", "free", Copy("m1"), "s2")),
        "elsewhere": lambda: limiter.acquire(ask("new", "t1", "free")),
        "renewed": lambda: limiter.renew([Lease("other1", tier_key("crowded"))]),
        "released": lambda: limiter.release([Lease("new", tier_key("t1"))]),
        "superseded": lambda: limiter.supersede(Copy("m1"), "s3"),
        "inspected": lambda: limiter.leases_of(tier_key("crowded")),
    }

    def cost():
        answers = {}
        for name, call in calls.items():
            call()  # the scripts are known from now on
            with commands() as answers[name]:
                call()
        return answers

    # An inspection reads a page of a hundred leases.
    crowd(client, 100)
    few = cost()
    crowd(client, 10_000)
    assert cost() == few
    # No task waits for an inspection.
    del few["inspected"]
    assert max(sum(ran.values()) for ran in few.values()) <= MOST_COMMANDS, few


def test_an_answer_about_ten_thousand_leases_is_short(make_limiter, client):
    limiter = make_limiter()
    crowd(client, 10_000)
    state = limiter.leases_of(tier_key("crowded"))
    assert (state.held, len(state.first)) == (10_000, 100)


def test_a_start_and_a_renewal_end_a_bounded_number_of_leases_that_nobody_renewed(
    make_limiter, client
):
    limiter = make_limiter()
    fill_leases(client, "tenant:42,api", 200, 5)
    asked, left = ask(tier="pro"), []
    for _ in range(2):
        # A lease counts until a call ends it.
        assert limiter.acquire(asked).reason is Reason.AT_CONCURRENCY_LIMIT
        left.append([client.zcard(NAMES.of("leases", key)) for key in ("tenant:42", "api")])
    limiter.renew([])
    left.append([client.hlen(f"{NAMES.prefix}running"), client.zcard(f"{NAMES.prefix}ends")])
    assert left == [[136, 136], [72, 72], [8, 8]]
    assert isinstance(limiter.acquire(asked), Admitted)
    assert client.hkeys(f"{NAMES.prefix}running") == ["l1"]


def test_one_lease_that_nobody_renewed_is_ended(make_limiter, client, clock):
    limiter = make_limiter(frozen=True)
    assert isinstance(limiter.acquire(ask("l1")), Admitted)
    for _ in range(4):
        # The logical clock takes no longer step than a third of a lease.
        clock.advance(6)
        limiter.acquire(ask(tenant="43"))
    assert isinstance(limiter.acquire(ask("l2")), Admitted)
    assert client.zrange(NAMES.of("leases", tier_key("42")), 0, -1) == ["l2"]


def test_a_superseded_copy_is_told_how_many_slots_its_tenant_has_and_holds(make_limiter):
    limiter = make_limiter(tiers={"free": {"concurrency": 1}})
    assert isinstance(limiter.acquire(ask("l1")), Admitted)
    assert isinstance(limiter.acquire(ask("l2", copy=Copy("m1"), next_serial="s2")), Rejected)
    limiter.publish_tenant("42", "free", {"concurrency": 3})
    assert isinstance(limiter.acquire(ask("l3", copy=Copy("m1", "s2"))), Admitted)
    answer = limiter.acquire(ask("l4", copy=Copy("m1")))
    assert isinstance(answer, Rejected)
    assert (answer.reason, answer.held, answer.limit) == (Reason.SUPERSEDED, 2, 3)


def everything(limiter):
    """One of every verb, and every way of being answered."""
    limiter.publish_tiers([Tier("free", 1), Tier("paused", 0)], "database")
    limiter.publish_tenant("42", "free")
    limiter.publish_tenant("7", "free", {"concurrency": 3})
    limiter.publish_tenant("8", "paused")
    limiter.publish_tenant("gone", "free")
    limiter.publish_tenant("gone", None)
    limiter.acquire(ask())
    limiter.acquire(ask("l2", copy=Copy("m1"), next_serial="s1"))
    limiter.acquire(ask("l3", "8", copy=Copy("m2"), next_serial="s1"))
    limiter.supersede(Copy("m1"), "s2")
    limiter.supersede(Copy("unknown"), "s2")
    limiter.acquire(ask("l4", copy=Copy("m1", "s9")))
    limiter.acquire(ask("l5", copy=Copy("m1", "s2")), Enforcement.OBSERVE)
    limiter.acquire(ask("l6", copy=Copy("m3")), Enforcement.OFF)
    limiter.renew([Lease("l1", "tenant:42"), Lease("never", "tenant:9")])
    limiter.leases_of("tenant:42")
    limiter.count("opened")
    limiter.counts()
    limiter.config_version()
    limiter.published_tiers()
    limiter.published_tenant("42")


def test_no_key_is_kept_for_ever_but_the_documented_ones(make_limiter, client):
    everything(make_limiter())
    lives = {key: client.pttl(key) for key in client.scan_iter("*")}
    # A tenant with a number of its own stays until it is forgotten.
    assert {key for key, ms in lives.items() if ms == -1} == {
        *FOR_EVER,
        NAMES.tenant("7"),
        NAMES.kept_events,
        # They are gone with the last lease.
        *(f"{NAMES.prefix}ends", f"{NAMES.prefix}running", NAMES.of("leases", "tenant:42")),
    }
    twenty_minutes, resolved = 1_200_000, 121_000
    expected = {
        NAMES.of("copy", "m1"): twenty_minutes,
        NAMES.of("copy", "m2"): twenty_minutes,
        NAMES.tenant("42"): resolved,
        NAMES.tenant("8"): resolved,
    }
    # Two, if the hour ends while the calls run.
    expected |= dict.fromkeys(client.scan_iter("*stats:*"), 25 * 3_600_000)
    assert len(expected) in (5, 6)
    rest = {key: ms for key, ms in lives.items() if ms != -1}
    assert set(rest) == set(expected)
    for key, longest in expected.items():
        assert longest - 5000 < rest[key] <= longest, key


def test_every_key_of_an_installation_has_one_prefix_and_one_hash_tag(make_limiter, client):
    everything(make_limiter(namespace="shop-eu.1"))
    keys = list(client.scan_iter("*"))
    assert keys
    assert all(key.startswith("{shop-eu.1}:") for key in keys)


def test_two_installations_on_one_redis_do_not_meet(make_limiter):
    one, two = make_limiter(namespace="one"), make_limiter(namespace="two")
    assert isinstance(one.acquire(ask()), Admitted)
    assert isinstance(two.acquire(ask()), Admitted)
    one.publish_tiers([Tier("free", 9)], "database")
    assert two.published_tiers() == ("", {})


def test_a_set_of_leases_is_gone_when_the_last_lease_is(make_limiter, client):
    limiter = make_limiter()
    for n in range(3):
        limiter.acquire(ask(f"l{n}", tier="pro"))
    limiter.release([Lease("l0", "tenant:42"), Lease("l1", "tenant:42")])
    assert client.exists(NAMES.of("leases", "tenant:42")) == 1
    limiter.release([Lease("l2", "tenant:42")])
    assert client.exists(NAMES.of("leases", "tenant:42")) == 0


def test_a_tenant_that_was_never_rejected_leaves_nothing_after_a_lease(make_limiter, client):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask(copy=Copy("m1")))
    limiter.release([Lease("l1", "tenant:42")])
    assert set(client.scan_iter("*")) == {NAMES.clock}


@pytest.fixture
def full_server(client):
    """Make the server reject every command that could need memory, until the test ends."""
    kept = client.config_get("maxmemory*")

    def fill():
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)

    yield fill
    client.config_set("maxmemory", kept["maxmemory"])
    client.config_set("maxmemory-policy", kept["maxmemory-policy"])


def test_a_server_without_memory_still_renews_and_releases(
    make_limiter, client, clock, full_server
):
    limiter = make_limiter(frozen=True)
    lease = Lease("l1", "tenant:42")
    limiter.acquire(ask())
    full_server()
    for _ in range(6):
        clock.advance(5)
        assert limiter.renew([lease]).gone == ()
    assert limiter.leases_of("tenant:42").held == 1
    assert limiter.release([lease]) == 1
    assert client.exists(NAMES.of("leases", "tenant:42")) == 0


def test_a_server_without_memory_still_keeps_limits_and_says_what_it_cannot_do(
    make_limiter, full_server
):
    limiter = make_limiter()
    limiter.renew([])
    full_server()
    assert isinstance(limiter.acquire(ask()), Admitted)
    assert isinstance(limiter.acquire(ask("l2", copy=Copy("m1"))), Rejected)
    with pytest.raises(LimiterUnavailable, match="maxmemory"):
        limiter.count("opened")


def test_a_script_that_the_server_forgot_answers_the_same(make_limiter, client):
    limiter = make_limiter()
    limiter.acquire(ask())
    for _ in range(2):
        client.function_flush()
        answer = limiter.acquire(ask("l2"))
        assert isinstance(answer, Rejected)
        client.function_flush()
        assert limiter.renew([Lease("l1", "tenant:42")]).gone == ()
    client.function_flush()
    assert limiter.release([Lease("l1", "tenant:42")]) == 1


BIG = 2**31 + 7


def test_numbers_above_two_to_the_31_are_whole(make_limiter, client, clock):
    limiter = make_limiter(frozen=True, tiers={"free": {"concurrency": 1_000_000}})
    client.hset(NAMES.clock, "version", BIG)
    client.hset(NAMES.counters, "rejected:free", BIG)
    clock.now_ms = 2**42 + 1
    answer = limiter.acquire(ask())
    assert (answer.config_version, answer.limit) == (BIG, 1_000_000)
    limiter.publish_tenant("42", "free", {"concurrency": 0})
    answer = limiter.acquire(ask("l2"))
    assert (answer.config_version, answer.reason) == (BIG + 1, Reason.PAUSED)
    assert limiter.counts()["rejected:free"] == BIG + 1
    state = limiter.leases_of("tenant:42")
    assert [lease.expires_in_seconds for lease in state.first] == [15.0]
    assert limiter.renew([Lease("l1", "tenant:42")], 2**42 + 1).gone == ()
    clock.advance(3600.0)
    assert limiter.renew([]).epoch == 2**42 + 1
    # Nothing is written as 1.7e+12.
    assert client.hget(NAMES.clock, "seen") == str(2**42 + 1 + 3_600_000)


def test_a_memory_that_another_server_wrote_is_a_new_epoch(make_limiter, client):
    limiter = make_limiter(frozen=True)
    kept, lost = Lease("l1", "tenant:42"), Lease("l2", "tenant:43")
    limiter.acquire(ask("l1"))
    epoch = limiter.renew([kept]).epoch
    assert client.hget(NAMES.clock, "server") == client.info("replication")["master_replid"]
    client.hset(NAMES.clock, "server", "another")
    answer = limiter.renew([kept, lost], epoch)
    # The server's time stands still.
    assert (answer.epoch, answer.gone, answer.entered) == (epoch + 1, (), (lost,))
    assert limiter.renew([kept, lost], answer.epoch) == Renewal((), epoch + 1)


def test_a_memory_lost_between_two_batches_is_seen_by_the_next_renewal(make_limiter, monkeypatch):
    limiter = make_limiter()
    monkeypatch.setattr("celery_fairness.limiter.redis.BATCH", 1)
    answers = iter([[7, 1], [8, 1]])
    monkeypatch.setattr(limiter.connection, "run", lambda *_: next(answers))
    first, second = Lease("l1", "tenant:42"), Lease("l2", "tenant:43")
    assert limiter.renew([first, second], 7) == Renewal((first,), 7, (second,))


def test_the_longest_lease_is_whole(make_limiter, clock):
    limiter = make_limiter(frozen=True, lease_seconds=3600)
    limiter.acquire(ask())
    (lease,) = limiter.leases_of("tenant:42").first
    assert lease.expires_in_seconds == 3600.0


def test_the_servers_clock_counts_and_not_ours(make_limiter, client):
    limiter = make_limiter()
    limiter.acquire(ask())
    seconds, _ = client.time()
    seen = int(client.hget(NAMES.clock, "seen"))
    assert abs(seen - seconds * 1000) < 5000
    (lease,) = limiter.leases_of("tenant:42").first
    assert 1.0 < lease.expires_in_seconds <= 15.0


HOSTILE = [
    "{42}",
    "}{",
    "a\nb",
    "a\r\n$5",
    "a\x00b",
    "🦔",
    "٣",
    "x" * 200,
    "*",
    "[a-z]*",
    "tenant:42",
    "42:analysis",
    "_none",
    "_invalid",
    "h_" + "0" * 32,
    " ",
    "'; return 1 --",
    "{fairness}:clock",
]


def test_hostile_tenants_are_tenants_like_others(make_limiter, client):
    limiter = make_limiter()
    for tenant in HOSTILE:
        limiter.publish_tenant(tenant, "free")
        assert isinstance(limiter.acquire(ask(tenant, tenant)), Admitted)
        assert isinstance(limiter.acquire(ask(f"{tenant}2", tenant)), Rejected)
        state = limiter.leases_of(tier_key(tenant))
        assert [lease.id for lease in state.first] == [tenant]
        assert limiter.published_tenant(tenant) == "free"
    for reserved in (NONE, INVALID):
        assert isinstance(limiter.acquire(ask(f"r{reserved}", reserved)), Admitted)
    keys = list(client.scan_iter("*"))
    assert len([key for key in keys if ":leases:" in key]) == len(HOSTILE) + 2
    assert all(key.startswith("{fairness}:") and key.isascii() for key in keys)


def test_hostile_texts_elsewhere_are_only_text(make_limiter):
    limiter = make_limiter()
    for text in HOSTILE:
        # From a header: a tier that nobody knows, and a serial.
        answer = limiter.acquire(ask(f"l{text}", f"t{text}", text, Copy("m1", text)))
        assert isinstance(answer, Admitted) or answer.reason is Reason.SUPERSEDED
        assert answer.tier == "free"


def test_what_was_written_by_hand_into_a_tier_is_an_error_and_no_free_pass(make_limiter, client):
    limiter = make_limiter()
    client.hset(NAMES.tiers, "free", "no json")
    with pytest.raises(LimiterUnavailable):
        limiter.acquire(ask())


def test_the_lease_of_a_dead_worker_counts_as_expired_and_one_that_ends_does_not(
    make_limiter, clock
):
    limiter = make_limiter(frozen=True)
    for lease in ("w1@a", "w1@b"):
        limiter.acquire(ask(lease, tenant=lease[-1]))
    limiter.release([Lease("w1@b", tier_key("b"))])
    for _ in range(4):
        clock.advance(5)
        limiter.renew([])
    assert limiter.counts() == {"expired": 1}
