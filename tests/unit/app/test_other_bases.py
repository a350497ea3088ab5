"""Other people's task classes beside FairTask: each common signature gets what the caller gave."""

from __future__ import annotations

import pytest
from celery import Task
from celery.app.trace import build_tracer

from celery_fairness import FairTask

#: What a class has seen, in order: the name of the method, the arguments, the options.
seen = []


class Documented(Task):
    """The form of Celery's documentation, and of celery-once."""

    def apply_async(self, args=None, kwargs=None, **options):
        seen.append(("apply_async", args, kwargs, dict(options)))
        return super().apply_async(args, kwargs, **options)

    def signature_from_request(self, request=None, args=None, kwargs=None, **options):
        seen.append(("signature_from_request", args, kwargs, dict(options)))
        return super().signature_from_request(request, args, kwargs, **options)

    def start_strategy(self, app, consumer, **options):
        seen.append(("start_strategy", app, consumer, options))
        return super().start_strategy(app, consumer, **options)

    def apply(self, args=None, kwargs=None, **options):
        seen.append(("apply", args, kwargs, dict(options)))
        return super().apply(args, kwargs, **options)

    def __call__(self, *args, **kwargs):
        seen.append(("__call__", args, kwargs, {}))
        return super().__call__(*args, **kwargs)


class Stars(Task):
    """A class that cares for nothing."""

    def apply_async(self, *args, **options):
        seen.append(("apply_async", *(*args, None, None)[:2], dict(options)))
        return super().apply_async(*args, **options)

    def signature_from_request(self, *args, **options):
        seen.append(("signature_from_request", *(*args, None, None)[1:3], dict(options)))
        return super().signature_from_request(*args, **options)

    def start_strategy(self, *args, **options):
        seen.append(("start_strategy", *args, options))
        return super().start_strategy(*args, **options)

    def apply(self, *args, **options):
        seen.append(("apply", *(*args, None, None)[:2], dict(options)))
        return super().apply(*args, **options)

    def __call__(self, *args, **kwargs):
        seen.append(("__call__", args, kwargs, {}))
        return super().__call__(*args, **kwargs)


class Positional(Task):
    """Celery's own list of parameters, passed on by position, as in many old bases."""

    def apply_async(
        self,
        args=None,
        kwargs=None,
        task_id=None,
        producer=None,
        link=None,
        link_error=None,
        shadow=None,
        **options,
    ):
        seen.append(("apply_async", args, kwargs, dict(options)))
        return super().apply_async(
            args, kwargs, task_id, producer, link, link_error, shadow, **options
        )

    def signature_from_request(self, request=None, args=None, kwargs=None, queue=None, **extra):
        seen.append(("signature_from_request", args, kwargs, dict(extra)))
        return super().signature_from_request(request, args, kwargs, queue, **extra)


class SomeNamed(Task):
    """celery-heimdall's form: it names one more, and passes all on as keywords."""

    def apply_async(self, args=None, kwargs=None, task_id=None, **options):
        seen.append(("apply_async", args, kwargs, dict(options)))
        return super().apply_async(args=args, kwargs=kwargs, task_id=task_id, **options)


class Rest(Task):
    """The form of tenant-schemas-celery."""

    def apply_async(self, args=None, kwargs=None, *arg, **kw):
        seen.append(("apply_async", args, kwargs, dict(kw)))
        return super().apply_async(args, kwargs, *arg, **kw)

    def apply(self, args=None, kwargs=None, *arg, **kw):
        seen.append(("apply", args, kwargs, dict(kw)))
        return super().apply(args, kwargs, *arg, **kw)


class Renamed(Task):
    """Other names for the first two, which Celery itself gives by position."""

    def apply_async(self, call_args=None, call_kwargs=None, **options):
        seen.append(("apply_async", call_args, call_kwargs, dict(options)))
        return super().apply_async(call_args, call_kwargs, **options)


class Narrow(Task):
    """No options beside those that its callers use."""

    def apply_async(self, args=None, kwargs=None, headers=None, countdown=None, task_id=None):
        seen.append(("apply_async", args, kwargs, {}))
        return super().apply_async(
            args, kwargs, headers=headers, countdown=countdown, task_id=task_id
        )


BASES = [Documented, Stars, Positional, SomeNamed, Rest, Renamed, Narrow]


@pytest.fixture(autouse=True)
def nothing_seen():
    seen.clear()


PLACES = ["before", "behind", "task_cls", "both"]


@pytest.fixture
def make_task(make_shop):
    """``make_task(base, place, conf)``: a shop and its task, with ``base`` at a place."""

    def make(base, place, conf=None):
        options = {"task_cls": base} if place in ("task_cls", "both") else {}
        shop = make_shop(conf=conf, **options)
        other = type("Other", (Documented if base is Stars else Stars,), {"abstract": True})
        parents = {
            "before": (base, FairTask),
            "behind": (FairTask, base),
            "task_cls": (FairTask,),
            "both": (other, FairTask),
        }
        used = type("Used", parents[place], {"abstract": True})

        @shop.task(base=used, tenant="user", bind=True, name="shop.t")
        def work(self, user=None, then=None):
            if then == "retry":
                raise self.retry(countdown=1)
            if then == "replace":
                raise self.replace(self.s(user))
            return user

        return shop, work

    return make


CALLS = [
    lambda task: task.delay("42"),
    lambda task: task.apply_async(("42",)),
    lambda task: task.apply_async(("42",), None, task_id="t1"),
    lambda task: task.s("42").set(countdown=9).apply_async(),
]
NAMED_CALLS = [
    lambda task: task.apply_async(kwargs={"user": "42"}),
    lambda task: task.apply_async(args=("42",), countdown=9),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("base", BASES)
def test_each_call_is_sent_and_charged(make_task, base, place):
    shop, work = make_task(base, place)
    # Plain Celery cannot call a base by names that it does not have.
    calls = CALLS if base is Renamed else [*CALLS, *NAMED_CALLS]
    for call in calls:
        seen.clear()
        call(work)
        assert shop.one().fairness["tenant"] == "42"
        assert [name for name, *_ in seen].count("apply_async") == (2 if place == "both" else 1)


@pytest.mark.parametrize("place", ["behind", "task_cls"])
@pytest.mark.parametrize("base", [each for each in BASES if each is not Narrow])
def test_parameters_by_position_arrive_by_name(make_task, base, place):
    shop, work = make_task(base, place)
    work.apply_async(("42",), {}, "t1", None, work.si("43"), None, "shown")
    sent = shop.one()
    assert (sent.headers["id"], sent.headers["shadow"]) == ("t1", "shown")
    assert sent.embedded["callbacks"][0]["args"] == ["43"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("base", [Documented, Stars, Positional, Rest])
def test_eager_and_direct_calls_run_and_pass_each_class_once(make_task, base, place):
    _, work = make_task(base, place, {"task_always_eager": True})
    assert work.delay("42").get() == work.apply(("42",)).get() == work("42") == "42"
    names = [name for name, *_ in seen]
    for name in ("apply", "__call__"):
        classes = [cls for cls in work.__class__.__mro__ if name in vars(cls) and cls in BASES]
        assert names.count(name) == len(classes) * (2 if name == "apply" else 3)


def run(shop, task, **kwargs):
    """Run a task as a worker would, without one."""
    task = task._get_current_object()
    header = {"fairness": {"v": 1, "tenant": "42"}}
    request = {"id": "t1", "task": task.name, "headers": header, **header}
    request["delivery_info"] = {"routing_key": "q", "exchange": ""}
    return build_tracer(task.name, task, app=shop.app)("t1", ("42",), kwargs, request)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("base", [each for each in BASES if each is not Narrow])
def test_a_retry_and_a_replacement_are_sent(make_task, base, place):
    shop, work = make_task(base, place)
    for then in ("retry", "replace"):
        run(shop, work, then=then)
        sent = shop.one()
        assert (sent.headers["id"], sent.fairness["tenant"]) == ("t1", "42")
        assert sent.headers["retries"] == (1 if then == "retry" else 0)


def test_the_next_class_gets_what_the_caller_gave_and_the_header(shop):
    class Behind(FairTask, Stars):
        abstract = True

    @shop.task(base=Behind, name="shop.t", bind=True)
    def work(self, user=None, then=None):
        raise self.retry(countdown=1)

    work.delay("42")
    work.apply_async(kwargs={"user": "42"}, countdown=9)
    work.apply_async(("42",), {}, "t1", None)
    assert [(args, kwargs, sorted(options)) for _, args, kwargs, options in seen] == [
        (("42",), {}, ["headers"]),
        (None, None, ["countdown", "headers", "kwargs"]),
        (("42",), {}, ["headers", "producer", "task_id"]),
    ]
    seen.clear()
    run(shop, work)
    assert seen[1][:3] == ("signature_from_request", None, None)
    assert sorted(seen[1][3]) == ["countdown", "eta", "retries"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("base", [Documented, Stars])
def test_a_worker_prepares_the_task_through_each_class(make_task, base, place):
    shop, work = make_task(base, place)
    work.__class__.Strategy = staticmethod(lambda *args: args)
    consumer = object()
    assert work.start_strategy(shop.app, consumer) == (work, shop.app, consumer)
    assert seen == [("start_strategy", shop.app, consumer, {})] * (2 if place == "both" else 1)


@pytest.mark.parametrize("wrong", [("42",) * 8, (("42",), {}, "t1")])
def test_a_wrong_call_is_celerys_own_error(shop, wrong):
    @shop.task(base=FairTask, name="shop.t")
    def work(user=None):
        pass

    with pytest.raises(TypeError, match=r"too many positional|multiple values"):
        work.apply_async(*wrong, task_id="t2")
    assert shop.published() == []


def test_a_router_of_the_user_gets_the_options_alone(make_shop):
    """The queue of a call's limits is routed as the message is, without the parameters."""
    routed = []

    def route(name, args, kwargs, options, task=None, **rest):
        routed.append(set(options))

    shop = make_shop(conf={"task_routes": (route,)})
    limits = [{"key": "k:{queue}", "concurrency": 1}]

    @shop.task(base=FairTask, tenant="user", name="shop.t", limits=limits)
    def work(user=None):
        pass

    work.apply_async(args=("42",), kwargs={}, task_id="t1", link=None, countdown=1)
    assert len(routed) == 2
    assert not {"args", "kwargs", "task_id", "link"} & (routed[0] | routed[1])
