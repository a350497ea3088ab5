"""No password of the limiter's Redis is seen by anybody who looks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.parts import parts_of
from tests.support.redis_server import RedisServer

PASSWORD = "correct-horse-battery"


@pytest.fixture
def guarded() -> Iterator[str]:
    """The URL, with its password, of a Redis that asks for one."""
    server = RedisServer().start()
    with server.client() as client:
        client.config_set("requirepass", PASSWORD)
    yield server.url.replace("redis://", f"redis://:{PASSWORD}@")
    server.stop()


@pytest.mark.parametrize("source", ["setting", "variable"])
def test_no_password_is_shown(make_shop: Callable[..., Shop], guarded: str, source: str) -> None:
    if source == "setting":
        shop = make_shop(fairness={"redis_url": guarded})
    else:
        shop = make_shop(variables={"FAIRNESS_REDIS_URL": guarded})
    worker = shop.worker(pool="threads", concurrency=2)
    assert shop.send("work", user="42").get(timeout=RESULT_SECONDS) == "done"
    report = shop.command("report")
    assert report.returncode == 0, report.stderr
    conf = shop.ask(worker, "conf")
    assert "fairness" in json.dumps(conf)
    assert "fairness" in report.stdout
    shown = (report.stdout, report.stderr, json.dumps(conf), worker.log_text())
    parts = (
        repr(shop.fairness),
        repr(shop.fairness.settings),
        str(shop.fairness.settings.model_dump()),
        repr(parts_of(shop.fairness).address),
        shop.app.bugreport(),
        shop.app.conf.humanize(with_defaults=False, censored=False),
    )
    for text in shown + parts:
        assert PASSWORD not in text


def test_no_password_is_in_an_error(make_shop: Callable[..., Shop]) -> None:
    url = f"redis://:{PASSWORD}@127.0.0.1:1/0"
    shop = make_shop(fairness={"redis_url": url})
    with pytest.raises(ConnectionError) as caught:
        shop.fairness.stats.rejections()
    assert PASSWORD not in str(caught.value)
    assert "redis://127.0.0.1:1/0" in str(caught.value)
