"""FairTask: adds to whatever class the app's tasks have, and takes nothing away."""

from __future__ import annotations

import pytest
from celery import Celery, Task, _state, chord, group, shared_task
from celery.app.trace import build_tracer

from celery_fairness import Fairness, FairTask, RateLimitExceeded
from celery_fairness.errors import (
    LimiterUnavailable,
    NotWired,
    TaskDeclarationError,
    TenantInvalid,
    TenantMissing,
)
from celery_fairness.worker.attempt import Attempt, current_attempt
from tests.support.received import received


class WithExtras(Task):
    """A user's task class, as Django's is: it has a method more."""

    def apply_async_on_commit(self, *args, **kwargs):
        return self.apply_async(*args, **kwargs)


class Counting(Task):
    """A user's task class with a __call__ of its own."""

    calls = 0

    def __call__(self, *args, **kwargs):
        type(self).calls += 1
        return super().__call__(*args, **kwargs)


class TestClasses:
    """What a task's class is made of."""

    def test_the_apps_own_task_class_is_kept(self, make_shop):
        shop = make_shop(task_cls=WithExtras)

        @shop.task(base=FairTask, tenant="user", name="shop.t")
        def work(user=None):
            return user

        assert isinstance(work, FairTask)
        assert isinstance(work, WithExtras)
        work.apply_async_on_commit(("42",))
        assert shop.one().fairness["tenant"] == "42"

    @pytest.mark.parametrize("task_cls", [FairTask, "celery_fairness.app.task:FairTask"])
    def test_it_can_be_the_apps_task_class(self, make_shop, task_cls):
        shop = make_shop(task_cls=task_cls)

        @shop.task(tenant="user", name="shop.t")
        def work(user=None):
            return user

        assert isinstance(work, FairTask)
        work.delay("42")
        assert shop.one().fairness["tenant"] == "42"
        # One FairTask in the line is enough.
        assert [c.__name__ for c in work.__class__.__mro__].count("FairTask") == 1

    def test_a_users_base_class_below_it_is_kept(self, shop):
        class Base(FairTask):
            abstract = True
            max_retries = 7
            service = "analysis"

            def who(self):
                return f"{self.name} of {self.service}"

        @shop.task(base=Base, tenant="user", name="shop.t")
        def work(user=None):
            pass

        assert work.who() == "shop.t of analysis"
        assert work.max_retries == 7
        work.delay("42")
        assert shop.one().queue == "analysis_default"

    def test_a_users_base_class_beside_it_is_kept(self, shop):
        class Both(FairTask, WithExtras):
            abstract = True

        @shop.task(base=Both, tenant="user", name="shop.t")
        def work(user=None):
            pass

        work.apply_async_on_commit(("42",))
        assert shop.one().fairness["tenant"] == "42"

    def test_a_class_based_task_works(self, shop):
        class Work(FairTask):
            name = "shop.work"
            tenant = "user"
            service = "analysis"

            def run(self, user=None):
                return f"for {user}"

        work = shop.app.register_task(Work())
        work.delay(user=42)
        sent = shop.one()
        assert (sent.fairness["tenant"], sent.queue) == ("42", "analysis_default")
        assert work("7") == "for 7"

    def test_a_class_based_task_can_have_a_callable_tenant(self, shop):
        class Work(FairTask):
            name = "shop.work"

            def tenant(args, kwargs):
                return kwargs.get("order", {}).get("customer")

            def run(self, order=None):
                pass

        shop.app.register_task(Work()).delay(order={"customer": 42})
        assert shop.one().fairness["tenant"] == "42"

    @pytest.mark.parametrize("bind", [True, False])
    def test_self_is_not_counted_among_the_arguments(self, shop, bind):
        def bound(self, first, user):
            pass

        def unbound(first, user):
            pass

        body = bound if bind else unbound
        work = shop.task(base=FairTask, tenant="user", name="shop.t", bind=bind)(body)
        work.delay("first", "42")
        assert shop.one().fairness["tenant"] == "42"

    def test_a_lambda_in_the_decorator_is_called_with_args_and_kwargs(self, shop):
        @shop.task(base=FairTask, tenant=lambda args, kwargs: args[0]["id"], name="shop.t")
        def work(user):
            pass

        work.delay({"id": 42})
        assert shop.one().fairness["tenant"] == "42"

    def test_delay_is_what_it_was(self):
        assert "delay" not in vars(FairTask)


@pytest.fixture
def own_registry(monkeypatch):
    """Shared tasks are kept by Celery for every later app; this test's are forgotten."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
    monkeypatch.setattr(_state._tls, "current_app", None, raising=False)


def test_a_shared_task_is_of_every_app(own_registry, make_shop):
    @shared_task(base=FairTask, tenant="user", service="analysis", name="shared.t")
    def work(user=None):
        return user

    for main in ("one", "two"):
        shop = make_shop(main=main)
        shop.app.set_current()
        work.delay("42")
        sent = shop.one()
        assert (sent.fairness["tenant"], sent.queue) == ("42", "analysis_default")
        assert isinstance(shop.app.tasks["shared.t"], FairTask)


class TestDeclarations:
    """A task that cannot be charged is an error when it is registered."""

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"tenant": "usr"},
                (
                    "task shop.t: option 'tenant': expected one of the task's parameters "
                    "(first, user), got: 'usr'"
                ),
            ),
            (
                {"tenant": 3},
                (
                    "task shop.t: option 'tenant': expected a parameter's name, a dotted path or a "
                    "callable (args, kwargs), got: 3"
                ),
            ),
            (
                {"service": "a b"},
                (
                    "task shop.t: option 'service': expected 1 to 100 letters, digits, '_' or '-' "
                    "(queue names are made from it), got: 'a b'"
                ),
            ),
        ],
    )
    @pytest.mark.parametrize("bind", [True, False])
    def test_a_typing_error_is_named_with_the_task(self, shop, options, message, bind):
        def bound(self, first, user=None):
            pass

        def unbound(first, user=None):
            pass

        body = bound if bind else unbound
        shop.task(base=FairTask, name="shop.t", bind=bind, **options)(body)
        with pytest.raises(TaskDeclarationError) as caught:
            shop.app.finalize()
        assert str(caught.value) == message


@pytest.fixture
def work(shop):
    @shop.task(
        base=FairTask, tenant="user", service="analysis", bind=True, name="shop.work", max_retries=5
    )
    def body(self, user=None, fail=False):
        if fail:
            raise self.retry(countdown=1, exc=ValueError("again"))
        return (self.request.id, self.request.is_eager, self.request.called_directly)

    return body


class TestWithoutALimit:
    """Eager tasks and direct calls are never limited, and look as without FairTask."""

    @pytest.fixture(autouse=True)
    def nothing_is_asked(self, shop):
        shop.limiter.publish_tenant("42", "free", {"concurrency": 0})
        yield
        assert shop.limiter.counts() == {}
        assert shop.limiter.leases_of("tenant:42").held == 0

    def test_a_direct_call_runs(self, work):
        assert work("42") == (None, False, True)

    def test_an_eager_task_runs_and_finds_its_id(self, work):
        assert work.apply(("42",), task_id="t1").get() == ("t1", True, False)

    def test_an_eager_app_runs_and_finds_its_id(self, make_shop):
        shop = make_shop(conf={"task_always_eager": True, "task_store_eager_result": False})

        @shop.task(base=FairTask, tenant="user", bind=True, name="shop.t")
        def body(self, user=None):
            return self.request.id

        for call in (body.delay, body.s().delay):
            result = call("42")
            assert result.get() == result.id

    @pytest.mark.parametrize(
        "use",
        [
            lambda task: task(),
            lambda task: task(deep=True),
            lambda task: task.apply(task_id="t1").get(),
            lambda task: task.apply(kwargs={"deep": True}, task_id="t1").get(),
            lambda task: repr(task.apply(kwargs={"fail": True}).result),
            lambda task: task.apply(kwargs={"fail": True}).state,
        ],
    )
    def test_it_looks_as_without_fair_task(self, shop, use):
        def body(self, deep=False, fail=False):
            if fail:
                raise self.retry(countdown=0, exc=ValueError("again"), max_retries=2)
            inner = self() if deep else None
            request = self.request
            return (request.id, request.is_eager, request.called_directly, request.retries, inner)

        plain = shop.task(bind=True, name="shop.plain")(body)
        fair = shop.task(bind=True, base=FairTask, name="shop.fair")(body)
        assert use(fair) == use(plain)


class TestOtherCalls:
    """A __call__ that the app's own classes define runs once for each call."""

    @pytest.fixture(autouse=True)
    def counted(self):
        Counting.calls = 0

    def calls(self, task):
        return task.__class__.calls

    def test_of_the_apps_class(self, make_shop):
        shop = make_shop(task_cls=Counting)

        @shop.task(base=FairTask, bind=True, name="shop.t")
        def body(self):
            return self.request.called_directly

        assert body() is True
        body.apply().get()
        assert self.calls(body) == 2

    def test_of_a_users_base_class_below(self, shop):
        class Below(FairTask):
            abstract = True
            calls = 0

            def __call__(self, *args, **kwargs):
                type(self).calls += 1
                return super().__call__(*args, **kwargs)

        @shop.task(base=Below, bind=True, name="shop.t")
        def body(self):
            return self.request.id

        body()
        assert body.apply(task_id="t1").get() == "t1"
        assert self.calls(body) == 2

    def test_of_a_users_base_class_beside(self, shop):
        class Beside(FairTask, Counting):
            abstract = True

        @shop.task(base=Beside, name="shop.t")
        def body():
            return 1

        assert (body(), body.apply().get()) == (1, 1)
        assert self.calls(body) == 2


class TestSending:
    """What delay and apply_async put into the message."""

    def test_the_tenant_is_charged(self, shop, work):
        work.delay("42")
        sent = shop.one()
        assert sent.fairness == {
            "v": 1,
            "tenant": "42",
            "tier": "free",
            "service": "analysis",
            "scheduled": False,
            "cost": 1,
        }
        assert sent.headers["fairness_copy"]["serial"] == ""

    def test_other_headers_stay(self, shop, work):
        headers = {"trace": "abc"}
        work.apply_async(("42",), headers=headers)
        sent = shop.one()
        assert (sent.headers["trace"], sent.fairness["tenant"]) == ("abc", "42")
        assert headers == {"trace": "abc"}

    def test_every_message_is_another(self, shop, work):
        work.delay("42")
        work.delay("42")
        first, second = (m.headers["fairness_copy"]["message"] for m in shop.published())
        assert first != second

    def test_a_wrong_tenant_is_the_callers_error_and_nothing_is_sent(self, shop, work):
        with pytest.raises(TenantInvalid) as caught:
            work.delay(user=4.2)
        assert str(caught.value) == (
            "task shop.work: tenant from 'user': expected str, int or UUID, got: float"
        )
        assert shop.published() == []

    def test_in_an_eager_app_too(self, make_shop):
        shop = make_shop(conf={"task_always_eager": True})

        @shop.task(base=FairTask, tenant="user", name="shop.t")
        def body(user=None):
            pass

        with pytest.raises(TenantInvalid, match="expected str, int or UUID, got: float"):
            body.delay(user=4.2)

    def test_a_missing_tenant_is_the_callers_error_where_the_settings_say_so(self, make_shop):
        shop = make_shop({"no_tenant": "error"})

        @shop.task(base=FairTask, tenant="user", name="shop.t")
        def body(user=None):
            pass

        for user in (None, ""):
            with pytest.raises(TenantMissing, match=r"task shop\.t was sent without a tenant"):
                body.delay(user)
        assert shop.published() == []
        body.delay("42")
        body.apply_async(headers={"celery_beat_task": True})
        assert len(shop.published()) == 2

    @pytest.mark.parametrize("send", ["delay", "apply_async"])
    def test_an_app_without_fairness_is_an_error_that_says_what_to_add(self, send):
        app = Celery("bare", broker="memory://", set_as_current=False)

        @app.task(base=FairTask, tenant="user", shared=False)
        def body(user=None):
            return user

        with pytest.raises(NotWired) as caught:
            getattr(body, send)(("42",) if send == "apply_async" else "42")
        assert str(caught.value) == (
            "the Celery app 'bare' has no Fairness: "
            "add 'fairness = Fairness(app)' where the app is made"
        )
        # What needs no broker works without it.
        assert body("42") == body.apply(("42",)).get() == "42"

    def test_send_task_by_name_is_charged_to_the_declared_tenant(self, shop, work):
        shop.app.finalize()
        shop.app.send_task("shop.work", ("42",))
        sent = shop.one()
        assert (sent.fairness["tenant"], sent.queue) == ("42", "analysis_default")

    def test_send_task_with_a_wrong_tenant_is_charged_to_nobody_else(self, shop, work, caplog):
        shop.app.send_task("shop.work", (4.2,))
        assert shop.one().fairness["invalid"] == "expected str, int or UUID, got: float"

    def test_a_plain_task_has_no_header(self, shop):
        @shop.task(name="shop.plain")
        def plain():
            pass

        plain.delay()
        assert shop.one().fairness is None

    def test_a_map_that_sends_many_charges_each(self, shop, work):
        group(work.s(str(n)) for n in range(3)).apply_async()
        assert sorted(m.fairness["tenant"] for m in shop.published()) == ["0", "1", "2"]


def run(shop, task, args=(), headers=None, **request):
    """Run a task as a worker would, without one."""
    task.__trace__ = build_tracer(task.name, task, app=shop.app)
    place, kwargs = {"routing_key": "analysis_default", "exchange": ""}, request.pop("kwargs", {})
    sent = {"id": "t1", "task": task.name, "retries": 0, **(headers or {})}
    request = {
        **sent,
        "delivery_info": place,
        "headers": headers or {},
        "properties": received(sent, [args, kwargs, {}], place=place),
        **request,
    }
    try:
        return task.__trace__("t1", args, kwargs, request)
    finally:
        task.__trace__ = None


class TestRetries:
    """A retry is of the same tenant, follows its tier, and is never lost."""

    def retried(self, shop, task, args, headers):
        run(shop, task, args, headers, kwargs={"fail": True})
        return shop.one()

    def test_a_retry_keeps_its_tenant(self, shop, work):
        header = {"v": 1, "tenant": "42", "tier": "free"}
        sent = self.retried(shop, work, ("42",), {"fairness": header})
        assert sent.fairness["tenant"] == "42"
        assert (sent.headers["retries"], sent.headers["id"]) == (1, "t1")

    def test_a_retry_follows_an_upgraded_tenant(self, shop, work):
        shop.fairness.tenants.set_tier("42", "pro")
        header = {"v": 1, "tenant": "42", "tier": "free"}
        sent = self.retried(shop, work, ("42",), {"fairness": header})
        assert (sent.queue, sent.fairness["tier"]) == ("analysis_priority", "pro")

    @pytest.mark.parametrize("header", [{"v": 1, "invalid": "no tenant"}, "nonsense", {"v": 9}])
    def test_a_retry_is_not_lost_to_a_header_that_was_wrong(self, shop, work, header, caplog):
        sent = self.retried(shop, work, (4.2,), {"fairness": header})
        assert sent.headers["retries"] == 1

    def test_a_retry_is_not_lost_to_a_tenant_that_was_wrong(self, shop, work, caplog):
        sent = self.retried(shop, work, (4.2,), {})
        assert sent.headers["retries"] == 1
        assert "invalid" in sent.fairness

    def test_a_retry_is_not_lost_to_a_tenant_that_is_missing(self, make_shop):
        shop = make_shop({"no_tenant": "error"})

        @shop.task(base=FairTask, tenant="user", bind=True, name="shop.t")
        def body(self, user=None, fail=False):
            raise self.retry(countdown=1)

        assert self.retried(shop, body, (), {}).headers["retries"] == 1

    @pytest.mark.parametrize(
        ("sent", "shown"), [("(***)", "(***)"), ("('42',)", "('43',)"), ("['42']", "('43',)")]
    )
    def test_a_retry_with_other_arguments_shows_no_secret(self, shop, sent, shown):
        @shop.task(base=FairTask, tenant="user", bind=True, name="shop.t")
        def body(self, user=None, fail=False):
            raise self.retry(args=("43",), countdown=1)

        message = self.retried(shop, body, ["42"], {"argsrepr": sent, "kwargsrepr": "{***}"})
        assert (message.args, message.headers["argsrepr"]) == (["43"], shown)
        assert message.headers["kwargsrepr"] == "{***}"

    def test_a_retry_with_other_arguments_shows_them_if_the_old_ones_held_tuples(self, shop):
        @shop.task(base=FairTask, tenant="user", bind=True, name="shop.t")
        def body(self, user=None, pairs=(), fail=False):
            raise self.retry(args=("42", [3]), countdown=1)

        sent = {"argsrepr": "('42', ((1, 2), (3,)))"}
        message = self.retried(shop, body, ["42", [[1, 2], [3]]], sent)
        assert message.headers["argsrepr"] == "('42', [3])"

    def test_a_retry_compares_no_arguments(self, shop):
        class Odd(str):
            __slots__ = ()
            __hash__ = str.__hash__

            def __eq__(self, other):
                raise ValueError("The truth value of an array is ambiguous")

        @shop.task(base=FairTask, tenant="user", bind=True, name="shop.t")
        def body(self, user=None, odd=None, fail=False):
            raise self.retry(args=["42", Odd("b")], countdown=1)

        message = self.retried(shop, body, ["42", Odd("a")], {"argsrepr": "(***)"})
        assert (message.args, message.headers["argsrepr"]) == (["42", "b"], "(***)")

    def test_a_task_that_met_a_429_is_not_lost_to_a_tenant_that_is_missing(self, make_shop):
        shop = make_shop({"no_tenant": "error"})

        @shop.task(base=FairTask, tenant="user", name="shop.t")
        def body(user=None, fail=False):
            raise RateLimitExceeded(retry_after=1)

        assert self.retried(shop, body, (), {}).headers["id"] == "t1"


@pytest.fixture
def results_may_wait(monkeypatch):
    """A worker that is made here lets no later result of this process be waited for."""
    monkeypatch.setattr(_state, "_task_join_will_block", False)


class TestInAWorker:
    """The tracer of a FairTask is behind the gate, and its body ends the attempt."""

    def test_the_slot_is_free_before_the_task_ends(self, shop):
        held = []

        def look():
            held.append(shop.limiter.leases_of("tenant:42").held)

        class Looking(FairTask):
            abstract = True

            def on_success(self, *_):
                look()

        @shop.task(base=Looking, tenant="user", name="shop.t")
        def body(user=None):
            look()

        run(shop, body, ("42",), {"fairness": {"v": 1, "tenant": "42"}})
        look()
        # A chain's next step is published between the body and the end of its task.
        assert held == [1, 0, 0]

    def test_a_body_that_calls_its_task_directly_keeps_its_slot(self, shop):
        held = []

        @shop.task(base=FairTask, tenant="user", bind=True, name="shop.t")
        def body(self, user=None, deep=True):
            if deep:
                self(user, deep=False)
                held.append(shop.limiter.leases_of("tenant:42").held)

        run(shop, body, ("42",), {"fairness": {"v": 1, "tenant": "42"}})
        assert held == [1]

    def test_a_child_is_charged_to_the_tenant_that_sends_it(self, shop):
        @shop.task(base=FairTask, name="shop.child")
        def child():
            pass

        @shop.task(base=FairTask, tenant="user", name="shop.parent")
        def parent(user=None):
            child.delay()

        run(shop, parent, ("42",), {"fairness": {"v": 1, "tenant": "42"}})
        assert shop.one().fairness["tenant"] == "42"

    @pytest.mark.parametrize("options", [{}, {"autoretry_for": (LimiterUnavailable,)}])
    def test_a_limiter_that_is_away_fails_inside_the_body_with_closed(self, shop, options):
        ran = []

        @shop.task(base=FairTask, tenant="user", name="shop.t", max_retries=3, **options)
        def body(user=None):
            ran.append(user)

        error = LimiterUnavailable("redis://h", "refused")
        token = current_attempt.set(Attempt(body._get_current_object(), None, shop.limiter, error))
        try:
            task = body._get_current_object()
            answer = build_tracer(task.name, task, app=shop.app)("t1", ("42",), {}, {"id": "t1"})
        finally:
            current_attempt.reset(token)
        assert ran == []
        assert answer.info.state == ("RETRY" if options else "FAILURE")
        assert len(shop.published()) == (1 if options else 0)
        # Afterwards the body is itself again.
        assert body("7") is None
        assert ran == ["7"]

    def test_a_worker_of_an_app_without_fairness_does_not_start_the_task(self):
        app = Celery("bare", broker="memory://", set_as_current=False)

        @app.task(base=FairTask, shared=False)
        def body():
            pass

        with pytest.raises(NotWired, match="add 'fairness = Fairness"):
            body.start_strategy(app, None)

    def test_a_worker_in_a_thread_of_an_app_without_fairness_is_not_made(self, results_may_wait):
        """Celery's fixture ``celery_worker`` would wait for its start without an end."""
        app = Celery("bare", broker="memory://", set_as_current=False)

        @app.task(base=FairTask, shared=False)
        def body():
            pass

        app.finalize()
        with pytest.raises(NotWired, match="add 'fairness = Fairness"):
            app.WorkController(pool="solo")
        Fairness(app, {}).close()
        with pytest.raises(NotWired, match="add 'fairness = Fairness"):
            app.WorkController(pool="solo")

    def test_a_worker_without_a_fair_task_needs_no_fairness(self, results_may_wait):
        app = Celery("bare", broker="memory://", set_as_current=False)
        assert app.WorkController(pool="solo").app is app

    def test_an_eager_app_needs_no_fairness(self):
        app = Celery("bare", broker="memory://", set_as_current=False)
        app.conf.task_always_eager = True
        limits = [{"key": "k:{tenant}", "concurrency": 1}]

        @app.task(base=FairTask, tenant="user", limits=limits, bind=True, shared=False)
        def body(self, user=None, again=0):
            if again:
                raise self.retry(args=(user, again - 1), countdown=0)
            return user

        assert body.delay("42").get() == body.delay("42", 2).get() == "42"
        assert body.apply_async(("42",), limits=limits).get() == "42"
        assert group(body.si("1"), body.si("2")).apply_async().get() == ["1", "2"]
        assert chord([body.s("1")], body.si("3")).apply_async().get() == "3"
