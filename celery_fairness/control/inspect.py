"""The state of a key in the form of the Open Job Spec.

The function ``inspect`` of the library returns all facts of one moment. Only the names of tasks
behind a gate come from events, which are read after it.
"""

from __future__ import annotations

from collections.abc import Callable

from celery_fairness.config.limit_spec import Limit
from celery_fairness.control.holders import with_jobs
from celery_fairness.control.keys import Keys, is_tenants
from celery_fairness.control.list_limits import known_keys
from celery_fairness.control.ojs_views import Inspection, InspectionPage, Pagination
from celery_fairness.control.scan import Reader
from celery_fairness.control.stats import Stats
from celery_fairness.errors import NotFound
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.limiter.redis import RedisLimiter

#: Leases on a page.
ROWS = 100
_NOT_KNOWN = (
    "is not known: nothing holds it, nothing of it waits, it is forgotten, or no task had it yet; "
    "a tenant's key is tenant:{tenant}"
)


class Inspector:
    """Inspects keys of one installation.

    Args:
        looker: The statistics of the installation.
        limiter: Its limiter. A fake limiter has fewer facts.
        declared: Returns the limit that this app declares for a key.
    """

    def __init__(
        self, looker: Stats, limiter: Limiter, declared: Callable[[str], Limit | None]
    ) -> None:
        self._looker = looker
        self._declared = declared
        self._reader: Reader | None = None
        if isinstance(limiter, RedisLimiter):
            self._reader = Reader(limiter.connection, Keys(limiter.prefix))

    def inspect(self, key: str, page: int = 1, *, known: bool = True) -> Inspection:
        """Return the state of a key; see ``LimitsApi.inspect``.

        Args:
            key: The key, in its form in Redis.
            page: The number of the page of leases.
            known: Whether an unknown key is an error.

        Raises:
            NotFound: Nothing is known of the key.
        """
        declared = self._declared(key)
        found = self._looker.inspect(key, declared, (page - 1) * ROWS)
        if known and not (found.known or is_tenants(found.key)):
            raise NotFound("key", key, _NOT_KNOWN)
        if self._reader is not None and not self._looker.claims:
            leases = with_jobs(self._reader, found.leases)
            return found.model_copy(update={"leases": leases})
        return found

    def page(self, page: int, per_page: int) -> InspectionPage:
        """Return a page of the known keys; see ``LimitsApi.list``."""
        if self._reader is None:
            raise ValueError("limiter: expected one in Redis, whose keys can be listed")
        keys = known_keys(self._reader)
        some = keys[(page - 1) * per_page : page * per_page]
        return InspectionPage(
            items=tuple(self._looker.of_known(key, self._declared(key)) for key in some),
            pagination=Pagination(total=len(keys), page=page, per_page=per_page),
        )
