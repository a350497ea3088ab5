"""celery-batches: a batch has what limits allow; at a gate ``doctor`` names its task."""

from __future__ import annotations

from celery_batches import Batches
from conftest import RESULT_SECONDS, working

from celery_fairness import Fairness, FairTask
from tests.support.waiting import eventually


class FairBatches(FairTask, Batches):
    abstract = True


def test_a_batch_has_at_most_the_limit_of_each_tenant(make_app, path) -> None:
    app = make_app(worker_prefetch_multiplier=5)
    sizes: list[list[str]] = []
    options = {"flush_every": 4, "flush_interval": 0.5, "acks_late": True}

    def tenant(args, kwargs):
        return kwargs["user"]

    @app.task(base=FairBatches, tenant=tenant, name="foreign.many", **options)
    def many(requests):
        sizes.append(sorted(each.kwargs["user"] for each in requests))

    sent = [many.apply_async(kwargs={"user": user}) for user in ("1", "1", "2", "2")]
    app.finalize()
    found = [each.check for each in Fairness.of(app).stats.doctor().symptoms]
    assert ("strategies" in found) is (path == "gate")

    def all_ran():
        assert sum(map(len, sizes)) == len(sent)

    with working(app):
        eventually(all_ran, RESULT_SECONDS)
    if path == "fairredis":
        assert sizes == [["1", "2"], ["1", "2"]]
    else:
        assert sizes == [["1", "1", "2", "2"]]
