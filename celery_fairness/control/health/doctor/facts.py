"""The facts that the checks of ``doctor`` look at. They are read once, and nothing is written.

Invariant: the number of calls does not grow with the tenants or tasks.

Weakness: the facts about an app are those of this process. A worker may have other settings.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from kombu.utils.url import maybe_sanitize_url
from redis.exceptions import ResponseError

from celery_fairness.config.queue_policy import queue_key
from celery_fairness.config.settings import Enforcement, Settings
from celery_fairness.config.tenants import key_hash, read_tier_key
from celery_fairness.control.health.views import Minute, Observed, Status
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.libraries import LibraryStatus, libraries
from celery_fairness.control.installation.reader import server_now
from celery_fairness.control.task.search import dead, letter
from celery_fairness.control.task.views import DeadLetter
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.redis import Limiter
from celery_fairness.store.connection import mapping_of
from celery_fairness.util.timestamps import at_ms

if TYPE_CHECKING:
    from celery_fairness.control.health.stats_api import StatsApi

Answer = TypeVar("Answer")

#: Questions for the server's time. The answer that came soonest gives the latency and the clock.
LOOKS = 5
#: Minutes of statistics that the checks look at.
LAST_MINUTES = 15
#: Dead letters whose causes are looked at.
LETTERS = 100
#: Tenants for which the resolver is called, and how long all these calls may take, in seconds.
TENANTS_TRIED, TRIAL_SECONDS = 5, 2.0
#: Settings of the server that the checks look at.
CONFIG = ("save", "min-replicas-to-write")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The Redis server.

    Attributes:
        info: The answer of ``INFO``, or None if the user may not run it.
        config: Some of its settings, or None if they were not read or the user may not read them.
        ahead_seconds: How far its clock is ahead of the clock of this host.
        ping_seconds: The shortest time of a message to the server and back.
    """

    info: Mapping[str, str] | None
    config: Mapping[str, str] | None
    ahead_seconds: float
    ping_seconds: float


@dataclass(frozen=True, slots=True)
class StoredFacts:
    """The data that the installation stores about itself.

    Attributes:
        now: Time of the server.
        began: When this memory of the installation began, or None if nothing has used it.
        task_seconds: Mean time of the last tasks, by name.
        tenant_published: Whether the tier of a tenant was ever published.
        tiers_source: The source of the published tiers: ``settings``, ``database``, or "" if
            there are none.
        invalid_at: When the last task without a valid tenant came, or None if there was none.
    """

    now: datetime
    began: datetime | None
    task_seconds: Mapping[str, float]
    tenant_published: bool
    tiers_source: str
    invalid_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """The workers and their work, and what the checks of these need.

    Attributes:
        installation: The installation, from the view of this app.
        stored: What the installation stores about itself.
        status: The status.
        libraries: The function libraries on the server, or None if the user may not list them.
        minutes: Statistics of the last minutes.
        rejecting_keys: Keys of limits that have rejected a task.
        other_keys_rejected: Whether more keys have rejected tasks than are counted by name.
        nameless: Waiting tasks without a value for the arguments of their queue's partitions, by
            queue.
        observed: The tasks that workers started above a limit, or None if no worker observes.
        trial: Why the resolver has no answer in this process, by tenant. "" if it has one. None if
            it took too long.
        letters: The first hundred dead letters.
    """

    installation: Installation
    stored: StoredFacts
    status: Status
    libraries: tuple[LibraryStatus, ...] | None
    minutes: tuple[Minute, ...]
    rejecting_keys: frozenset[str]
    other_keys_rejected: bool
    nameless: Mapping[str, int]
    observed: Observed | None
    trial: Mapping[str, str] | None
    letters: tuple[DeadLetter, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the checks look at. A part that could not be read is None.

    Attributes:
        at: Time of the look.
        installation: The installation, from the view of the app of this process.
        server: The server. None if it does not answer, or if a test has passed a limiter.
        stored: What the installation stores about itself, or None likewise.
        fleet: The workers and their work. None if nobody looked, or if the library is unusable.
        unusable: Why the server cannot run the function library. "" if it can.
    """

    at: datetime
    installation: Installation
    server: ServerFacts | None = None
    stored: StoredFacts | None = None
    fleet: FleetFacts | None = None
    unusable: str = ""

    @property
    def claims(self) -> bool:
        """Whether the broker claims fairly."""
        return self.installation.claims

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.installation.settings

    @property
    def app(self) -> Any:
        """The Celery app."""
        return self.installation.app


def backend_name(app: Any) -> str:
    """Return the identity of the app's result backend: a hash without its secrets.

    "" is no backend.

    Weakness: if workers use two names for one backend, it counts as two backends.
    """
    url = app.conf.result_backend
    return key_hash(maybe_sanitize_url(url)) if isinstance(url, str) and url else ""


def server_facts(limiter: Limiter, *, with_config: bool) -> ServerFacts:
    """Return the facts about the server.

    Args:
        limiter: The limiter on that server.
        with_config: Whether to read settings of the server. If the user may not, the server notes
            the try in its ACL log, so workers do not read them.

    Raises:
        LimiterUnavailable: It does not answer.
    """
    connection, prefix = limiter.there, limiter.prefix

    def ask(*parts: str) -> Any:
        return connection.read_there(prefix, *parts)

    info = _allowed(lambda: ask("INFO"))
    # The connection leads to that server now, so one command takes one round trip. A host with much
    # other work delays single answers by seconds.
    ping_seconds, ahead_seconds = min(_look_at_clock(connection.read) for _ in range(LOOKS))
    config = _allowed(lambda: ask("CONFIG", "GET", *CONFIG)) if with_config else None
    return ServerFacts(
        info=None if info is None else _fields_of_info(info),
        config=None if config is None else mapping_of(config),
        ahead_seconds=ahead_seconds,
        ping_seconds=ping_seconds,
    )


def _look_at_clock(ask: Callable[[str], Any]) -> tuple[float, float]:
    """Return how long the answer took, and how far the server's clock is ahead."""
    began, here = time.perf_counter(), time.time()
    seconds, micros = ask("TIME")
    took = time.perf_counter() - began
    return took, int(seconds) + int(micros) / 1_000_000 - (here + took / 2)


def stored_facts(installation: Installation) -> StoredFacts:
    """Return what the installation stores about itself. It finds the node of a cluster.

    Raises:
        LimiterUnavailable: Redis does not answer.
    """
    reader = installation.reader
    fields = ("began", "tenant_published", "invalid_at")
    began, published, invalid = reader.read("HMGET", reader.keys.clock, *fields)
    run_times = (each.read("HGET", each.keys.clock, "run_times") for each in reader.parts)
    means = (each.rpartition("~")[::2] for text in run_times for each in (text or "").split())
    return StoredFacts(
        now=at_ms(server_now(reader)),
        began=None if began is None else at_ms(int(began)),
        task_seconds={name: int(mean) / 1000 for name, mean in means},
        tenant_published=bool(published),
        invalid_at=None if invalid is None else at_ms(int(invalid)),
        tiers_source=installation.limiter.published_tiers()[0],
    )


def fleet_facts(installation: Installation, stats: StatsApi, stored: StoredFacts) -> FleetFacts:
    """Return the workers and their work.

    Raises:
        LimiterUnavailable: Redis does not answer, or cannot run the function library.
    """
    rejected = {each.key for each in stats.rejections().keys}
    known = _allowed(lambda: libraries(installation.limiter))
    status = stats.status()
    observes = any(each.enforcement == Enforcement.OBSERVE.value for each in status.workers)
    return FleetFacts(
        installation=installation,
        stored=stored,
        status=status,
        libraries=None if known is None else tuple(known),
        minutes=stats.minutes(LAST_MINUTES),
        rejecting_keys=frozenset(rejected - {"_other"}),
        other_keys_rejected="_other" in rejected,
        nameless=_nameless(installation),
        observed=stats.observed() if observes else None,
        trial=_trial(installation, status),
        letters=_letters(installation, status),
    )


def _letters(installation: Installation, status: Status) -> tuple[DeadLetter, ...]:
    if not any(each.dead for each in status.queues):
        return ()
    return tuple(map(letter, dead(installation.reader, "", 1, LETTERS)[0]))


def _trial(installation: Installation, status: Status) -> Mapping[str, str] | None:
    """Call the resolver for some tenants: those that wait, then those for which it failed."""
    if installation.settings.tier_resolver is None:
        return {}
    by_service = installation.settings.tier_scope == "service"
    keys = [(share.key, by_service) for queue in status.queues for share in queue.tenants]
    keys += [(each.key, False) for each in status.unresolved]
    names = (read_tier_key(*each) for each in keys)
    tenants = dict.fromkeys(each[0] for each in names if each)
    # Redis has a hash in place of some names, and the resolver needs the name.
    tried = [each for each in tenants if not each.startswith(("h_", "_"))][:TENANTS_TRIED]
    found: dict[str, str] = {}

    def call() -> None:
        for tenant in tried:
            found[tenant] = installation.tier_cache.try_resolver(tenant)

    # It is the user's code, and may wait for a database that hangs.
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(TRIAL_SECONDS)
    return None if thread.is_alive() else found


def _nameless(installation: Installation) -> dict[str, int]:
    reader, queues = installation.reader, installation.settings.queues
    names = [name for name, policy in queues.items() if policy.by_args]
    if not names:
        return {}
    keys = [f"{queue_key(name)}:" for name in names]
    counts = reader.sums(lambda its: [("HGET", its.waiting_at, key) for key in keys])
    found = zip(names, counts, strict=True)
    return {name: int(count) for name, count in found if int(count or 0) > 0}


def _allowed(ask: Callable[[], Answer]) -> Answer | None:
    """Return the answer, or None if the server rejects the command."""
    try:
        return ask()
    except LimiterUnavailable as error:
        if isinstance(error.__cause__, ResponseError):
            return None
        raise


def _fields_of_info(answer: Any) -> dict[str, str]:
    # The client of a cluster returns a mapping.
    if isinstance(answer, Mapping):
        return {str(name): str(value) for name, value in answer.items()}
    rows = (line.partition(":") for line in str(answer).splitlines())
    return {name: value for name, colon, value in rows if colon}
