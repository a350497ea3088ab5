"""What people say to the scheduler: tiers, tenants, pauses, cool-downs and overrides."""

from __future__ import annotations

from collections.abc import Sequence

from celery_fairness.config.tiers import Tier
from celery_fairness.scheduler.overrides import Override
from celery_fairness.scheduler.types import Overridden, Rules
from tests.model.moving import Moving
from tests.model.window import NEVER


class Steering(Moving):
    """An installation that can be told what keys and tenants may."""

    def publish_tiers(self, tiers: Sequence[Tier]) -> int:
        """Replace the tier table, as the database's; return the version of the news."""
        before = self.news.version
        version = self.news.publish_tiers(tiers)
        if version != before:
            self.happenings.tell("fairness.tiers_published", source="database")
        return version

    def publish_tenant(self, tenant: str, tier: str, concurrency: str = "") -> int:
        """Note a tenant's tier and number; return the version of the news."""
        before, key = self.news.version, f"tenant:{tenant}"
        version = self.news.publish_tenant(tenant, tier, concurrency)
        if version == before:
            return version
        if tier:
            said = {"tier": tier, "concurrency": concurrency}
            self.happenings.tell("fairness.tier_set", key=key, **said)
        else:
            self.happenings.tell("fairness.tier_cleared", key=key)
        return version

    def stop(
        self, how: str, key: str, wait_ms: int, rules: Rules, reason: str = "", by: str = ""
    ) -> tuple[int, int | None, int, int | None, str]:
        """Change a key's stops; ``wait_ms`` is for how long, 0: a pause until it is resumed.

        What changes something is told.

        Returns:
            How long it still cools down, and is paused, in ms; None until it is resumed. Then the
            time, when the pause began (None without one), and the person.
        """
        now, stops = self.now_ms(), self.stops
        logical = self.begin(rules.lease_ms)
        before = stops.paused_ms(key, now)
        if how == "pause":
            stops.pause(key, now + wait_ms if wait_ms else None, now, by)
        elif how == "resume":
            stops.resume(key)
        elif how == "clear":
            if stops.clear(key):
                self.happenings.tell("fairness.cool_down_cleared", key=key)
        elif stops.cool(key, logical + wait_ms):
            until = now + wait_ms
            self.happenings.tell("rate_limit.dynamic_adjusted", key=key, until=until, reason=reason)
        if how != "cool":
            self._says_of(key, logical, rules)
        paused_ms = stops.paused_ms(key, now)
        left_ms = None if paused_ms == NEVER else int(paused_ms)
        if paused_ms != before and paused_ms:
            ends = "" if left_ms is None else now + left_ms
            self.happenings.tell("fairness.paused", key=key, until=ends, by=by)
        elif paused_ms != before:
            self.happenings.tell("fairness.resumed", key=key, by=by)
        since, person = stops.paused_by.get(key, (None, ""))
        return max(0, stops.cooled.get(key, 0) - logical), left_ms, now, since, person

    def watch_tasks(self, wait_ms: int) -> int:
        """Tell what becomes of each task for so long; return until when that is told."""
        return self.watch.go_on(self.now_ms(), wait_ms)

    def override(self, key: str, override: Override | None, rules: Rules) -> Overridden:
        """Set or replace a key's numbers; None clears what was set."""
        now = self.now_ms()
        logical = self.begin(rules.lease_ms)
        if override is not None and override.ends_ms is not None and override.ends_ms <= now:
            return Overridden.PAST
        if override is not None:
            self.happenings.tell("fairness.override_set", key=key, numbers=override.text)
        elif key in self.overrides.rows:
            self.happenings.tell("fairness.override_ended", key=key)
        self.overrides.put(key, override)
        self._says_of(key, logical, rules)
        return Overridden.DONE

    def _end_steering(self, logical: int, rules: Rules) -> int:
        """End pauses and overrides whose time has come; return how many of a kind at most."""
        now, most = self.now_ms(), self.budget.due
        ended, resumed = self.overrides.ended(now, most), self.stops.resumed(now, most)
        for key in ended:
            self.happenings.tell("fairness.override_ended", key=key)
            self._says_of(key, logical, rules)
        for key in resumed:
            self.happenings.tell("fairness.resumed", key=key, by="")
            self._says_of(key, logical, rules)
        return max(len(ended), len(resumed))

    def _steering_ends_ms(self) -> list[int]:
        """Return how long until each of them ends."""
        ends = [row.ends_ms for row in self.overrides.rows.values() if row.ends_ms is not None]
        return [end - self.now_ms() for end in (*ends, *self.stops.paused_until.values())]

    def _says_of(self, key: str, logical: int, rules: Rules) -> None:
        """Somebody changed what a key may, or that has ended: what waits there may be open."""
        if key.startswith("tenant:"):
            self.news.version += 1
        self.pump(key, logical, rules)
        self.bring_forward(key)
