"""celery-redbeat: its entries are in the Redis of ``broker_url`` or of its own setting."""

from __future__ import annotations

import datetime

import pytest
from celery.schedules import schedule
from conftest import RESULT_SECONDS, working
from redbeat import RedBeatSchedulerEntry
from redbeat.schedulers import RedBeatConfig, get_redis

from celery_fairness import FairTask


@pytest.mark.parametrize("own", [True, False], ids=["redbeat_redis_url", "broker_transport"])
def test_an_entry_is_stored_and_sent(make_app, fairness_server, path, own) -> None:
    redis = fairness_server.url.removesuffix("/0")
    if own:
        conf = {"redbeat_redis_url": f"{redis}/3"}
    else:
        conf = {"broker_url": f"{redis}/0"}
        if path == "fairredis":
            conf["broker_transport"] = "celery_fairness.transport:Transport"
    app = make_app(**conf)
    app.redbeat_conf = RedBeatConfig(app)

    @app.task(base=FairTask, tenant="user", bind=True, name="foreign.beaten")
    def work(self, user=None):
        return self.request.fairness["tenant"]

    every = schedule(run_every=datetime.timedelta(hours=1), app=app)
    entry = RedBeatSchedulerEntry(
        "hourly", "foreign.beaten", every, kwargs={"user": "42"}, app=app
    ).save()
    stored = RedBeatSchedulerEntry.from_key(entry.key, app=app)
    with working(app):
        sent = work.apply_async(stored.args, stored.kwargs, **stored.options)
        assert sent.get(timeout=RESULT_SECONDS) == "42"
    assert get_redis(app).exists(entry.key)
