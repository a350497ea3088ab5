"""Celery's Redis result backend in one slot of a Redis Cluster.

    result_backend = "cluster://host:port;host:port"     # clusters:// with TLS

Celery finds it by the name of the scheme. All results are in one slot, because a chord reads the
results of its header together. The hash tag of
``result_backend_transport_options["global_keyprefix"]`` chooses the slot. The default is
``{result}:``: in clusters of 2 to 12 equal nodes it is not on the node of the namespace
``fairness``. With the tag of the broker, results load the broker's node.
"""

from __future__ import annotations

from ssl import CERT_REQUIRED
from typing import TYPE_CHECKING, Any

from celery.backends import redis
from celery.exceptions import ImproperlyConfigured

from celery_fairness.errors import SettingsError
from celery_fairness.store.address import CLUSTERS, address_from_url
from celery_fairness.store.cluster import SlotPrimary, hash_tag, leading_to, slot_of

if TYPE_CHECKING:
    # The types of Celery name few members of it.
    _Backend = Any
else:
    _Backend = redis.RedisBackend

#: The prefix of all keys unless the app has another.
PREFIX = "{result}:"
_OPTION = "result_backend_transport_options['global_keyprefix']"


class ClusterBackend(_Backend):  # type: ignore[misc]  # it has no types
    """Results in the slot of the prefix.

    Raises:
        ImproperlyConfigured: The URL names a database, or the prefix has no hash tag.
    """

    def _params_from_url(self, url: str, defaults: Any) -> Any:
        try:
            self._address = address_from_url(url, setting="result_backend")
        except SettingsError as error:
            raise ImproperlyConfigured(str(error)) from None
        scheme, _, rest = url.partition(";")[0].partition("://")
        if CLUSTERS[scheme] == "rediss":
            # Celery has no default, and its error names the scheme of one Redis.
            defaults = {"ssl_cert_reqs": CERT_REQUIRED, **defaults}
        return super()._params_from_url(f"{CLUSTERS[scheme]}://{rest}", defaults)

    def _add_global_keyprefix(self) -> None:
        given = self._transport_options.get("global_keyprefix")
        if given and not hash_tag(given):
            raise ImproperlyConfigured(
                f"{_OPTION}: expected a hash tag, such as '{PREFIX}', because all results are in "
                f"one slot of the cluster, got: {given!r}"
            )
        if given:
            super()._add_global_keyprefix()
        else:
            for name in ("task_keyprefix", "group_keyprefix", "chord_keyprefix"):
                setattr(self, name, f"{PREFIX}{getattr(self, name)}")

    def _get_pool(self, **params: Any) -> Any:
        prefix = self.task_keyprefix
        slot = slot_of(prefix.decode() if isinstance(prefix, bytes) else prefix)
        pool = super()._get_pool(**params)
        primary = SlotPrimary(self._address.nodes(), slot)
        pool.connection_class = leading_to(primary, pool.connection_class)
        return pool

    def as_uri(self, include_password: bool = False) -> str:
        """Return the addresses, without their passwords unless they are wanted."""
        return str(self.url) if include_password else str(self._address)
