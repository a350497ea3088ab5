"""The settings of a channel: the transport option ``fairness``.

``Fairness(app)`` puts it into ``broker_transport_options``. Without Celery, pass a mapping like
``app.conf.fairness`` to ``kombu.Connection``. Every key is optional.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from celery_fairness.config.settings import Enforcement, Settings, build_settings
from celery_fairness.config.tiers import tier_numbers
from celery_fairness.errors import SettingsError
from celery_fairness.scheduler.types import Bounds, Rules
from celery_fairness.store.cluster import hash_tag
from celery_fairness.util.durations import milliseconds

#: The name of the transport option.
OPTION = "fairness"


class SettingsOption:
    """The settings of an app as a transport option.

    ``read`` returns them. It is called at the first use by a channel.
    """

    def __init__(self, read: Callable[[], Settings]) -> None:
        self.read = read

    def __repr__(self) -> str:
        # kombu compares connections by it, so apps with other settings get their own connection.
        try:
            values = repr(self.read())
        except SettingsError:
            values = ""
        digest = hashlib.sha256(values.encode(errors="replace")).hexdigest()
        return f"<settings of celery_fairness, {digest[:16]}>"

    def __json__(self) -> dict[str, Any]:
        # kombu calls it for the answer of a remote-control command.
        return self.read().model_dump(mode="json", exclude={"redis_url", "tier_resolver"})

    def __reduce__(self) -> Any:
        # A copy of the app's configuration holds the values of that moment.
        return _unpickled, (self.read(),)


def _unpickled(settings: Settings) -> SettingsOption:
    return SettingsOption(lambda: settings)


def settings_of(transport_options: Mapping[str, Any] | None) -> Settings:
    """Return the settings from a connection's transport options.

    Raises:
        SettingsError: The option is not a mapping of settings, or a setting is invalid.
    """
    given = (transport_options or {}).get(OPTION) or {}
    return given.read() if isinstance(given, SettingsOption) else build_settings(given)


class KeyPrefixes(NamedTuple):
    """The beginnings of the keys on the broker.

    Attributes:
        kombu: Of kombu's keys: bindings, lists of stock queues, fanout.
        ours: Before the namespace of ours.
    """

    kombu: str
    ours: str


def key_prefixes(settings: Settings, given: str, is_cluster: bool) -> KeyPrefixes:
    """Return the prefixes for the transport option ``global_keyprefix``, "" for none.

    All keys are in one hash slot of a cluster. So kombu's keys have the hash tag of ours there, and
    another character behind it, because a queue may have the name of one of our keys.

    Raises:
        SettingsError: The prefix has no hash tag, and the broker is a cluster.
    """
    if is_cluster and not given:
        return KeyPrefixes(f"{{{settings.namespace}}}.", "")
    if is_cluster and not hash_tag(given):
        raise SettingsError(
            "broker_transport_options['global_keyprefix']: expected a hash tag, such as '{jobs}:', "
            f"because all keys are in one slot of the cluster, got: {given!r}"
        )
    return KeyPrefixes(given, given)


def rules_of(settings: Settings) -> Rules:
    """Return the rules that each claim carries."""
    default = tier_numbers(settings.tiers[settings.default_tier], "tenant")
    return Rules(
        milliseconds(settings.lease_seconds),
        settings.enforcement.value,
        settings.default_tier,
        default.pop("concurrency", None),
        settings.max_deliveries,
        settings.fairness_by,
        milliseconds(settings.snooze_seconds),
        settings.priority_scope,
        None if settings.priority_aging is None else milliseconds(settings.priority_aging),
        default_numbers=default,
    )


def bounds_of(settings: Settings, queue: str, tier: str) -> Bounds | None:
    """Return the maximum of waiting tasks for a new task; None for no maximum.

    Each of several partitions has an equal part of the maximum of a queue, at least one task.
    """
    if settings.enforcement is not Enforcement.ON:
        return None
    of_tier = settings.tiers.get(tier) or settings.tiers[settings.default_tier]
    policy = settings.queues.get(queue)
    of_queue = None if policy is None else policy.max_waiting
    if of_queue is not None:
        of_queue = max(1, of_queue // settings.partitions)
    return Bounds(settings.default_tier, of_tier.max_waiting, of_queue)
