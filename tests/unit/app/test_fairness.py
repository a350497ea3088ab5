"""Fairness(app): what it wires, when it reads, what it keeps of the user's, and what it hides."""

from __future__ import annotations

import logging
import types

import pytest
from celery import Celery, Task
from celery.concurrency.solo import TaskPool as SoloPool

from celery_fairness import Fairness, FairTask, RateLimitPolicy
from celery_fairness.config.tenants import tier_key
from celery_fairness.config.tiers import DEFAULT_TIERS, Tier
from celery_fairness.errors import NotWired, SettingsError, TenantInvalid
from celery_fairness.limiter.types import Lease, SlotRequest
from celery_fairness.message.router import TierRouter
from celery_fairness.worker.settings_publisher import SettingsPublisher
from tests.support.parts import parts_of
from tests.support.waiting import eventually

SECRET = "hunter2"
URL = f"redis://user:{SECRET}@127.0.0.1:1/1"


@pytest.fixture
def bare():
    """A factory of apps that nobody wired; what a test wires is closed after it."""
    apps = []

    def make(main="shop", **options):
        options = {"broker": "memory://", "set_as_current": False, **options}
        app = Celery(main, **options)
        apps.append(app)
        return app

    yield make
    for app in apps:
        fairness = getattr(app, "_celery_fairness", None)
        if fairness is not None:
            fairness.close()


class TestSettings:
    """Settings are read when they are needed, and no sooner."""

    def test_they_can_be_set_after_wiring(self, bare):
        app = bare()
        fairness = Fairness(app, {})
        app.conf.fairness = {"snooze_seconds": 7}
        assert fairness.settings.snooze_seconds == 7

    def test_they_can_come_from_an_object_with_a_prefix(self, bare):
        app = bare()
        fairness = Fairness(app, {})
        module = types.SimpleNamespace(CELERY_FAIRNESS={"snooze_seconds": 7})
        app.config_from_object(module, namespace="CELERY")
        assert fairness.settings.snooze_seconds == 7

    def test_without_any_they_are_the_defaults(self, bare):
        assert Fairness(bare(), {}).settings.snooze_seconds == 30

    def test_variables_win(self, bare):
        app = bare()
        app.conf.fairness = {"snooze_seconds": 7}
        environ = {"FAIRNESS_SNOOZE_DURATION": "8", "FAIRNESS_FREE_LIMIT": "4"}
        settings = Fairness(app, environ).settings
        assert (settings.snooze_seconds, settings.tiers["free"].concurrency) == (8, 4)

    def test_the_process_environment_is_read_by_default(self, bare, monkeypatch):
        fairness = Fairness(bare())
        monkeypatch.setenv("FAIRNESS_SNOOZE_DURATION", "9")
        assert fairness.settings.snooze_seconds == 9

    @pytest.mark.parametrize("values", [3, "free", ["tiers"]])
    def test_what_is_no_mapping_is_an_error_that_says_so(self, bare, values):
        app = bare()
        app.conf.fairness = values
        with pytest.raises(SettingsError, match=r"^fairness: expected a mapping of settings, got:"):
            _ = Fairness(app, {}).settings

    def test_an_unusable_setting_is_an_error_where_the_first_task_is_sent(self, bare):
        app = bare()
        app.conf.fairness = {"snooze_second": 7}
        Fairness(app, {})

        @app.task(base=FairTask, shared=False)
        def work():
            pass

        with pytest.raises(SettingsError, match="did you mean 'snooze_seconds'"):
            work.delay()

    def test_a_broker_that_is_no_redis_needs_an_address(self, bare):
        app = bare(broker="amqp://shop:secret@broker//")
        fairness = Fairness(app, {})
        with pytest.raises(SettingsError) as caught:
            _ = parts_of(fairness).address
        assert str(caught.value) == (
            "FAIRNESS_REDIS_URL: expected the address of a Redis for the limiter, because the "
            "broker (amqp://shop:**@broker:5672//) is not Redis, got: nothing; "
            "for example FAIRNESS_REDIS_URL=redis://localhost:6379/1"
        )


class TestSecrets:
    """The password of the limiter's Redis is printed nowhere."""

    @pytest.fixture(params=["conf", "update", "object", "read only", "late"])
    def app(self, bare, request):
        app = bare()
        values = {"redis_url": URL, "snooze_seconds": 7}
        if request.param == "conf":
            app.conf.fairness = values
        elif request.param == "update":
            app.conf.update(fairness=values)
        elif request.param == "object":
            module = types.SimpleNamespace(CELERY_FAIRNESS=values)
            app.config_from_object(module, namespace="CELERY")
        elif request.param == "read only":
            app.conf.fairness = types.MappingProxyType(values)
        self.fairness = Fairness(app, {})
        if request.param == "late":
            assert app.conf.timezone is None
            app.conf.fairness = values
        return app

    @pytest.mark.parametrize(
        "shown",
        [
            lambda app: app.conf.humanize(),
            lambda app: app.conf.humanize(with_defaults=True),
            lambda app: repr(app.conf.table(with_defaults=True)),
            lambda app: repr(app.conf.fairness),
            lambda app: str(app.conf["fairness"]),
            lambda app: app.bugreport(),
        ],
    )
    def test_no_report_shows_it(self, app, shown):
        app.finalize()
        text = shown(app)
        assert SECRET not in text
        assert self.fairness.settings.redis_url.get_secret_value() == URL

    @pytest.mark.parametrize("shown", [repr, str, lambda f: repr(vars(f))])
    def test_no_repr_shows_it(self, app, shown):
        app.finalize()
        fairness = self.fairness
        _ = (parts_of(fairness).address, parts_of(fairness).limiter, parts_of(fairness).router)
        assert SECRET not in shown(fairness)
        for part in (
            fairness.settings,
            parts_of(fairness).address,
            parts_of(fairness).limiter.connection,
        ):
            assert SECRET not in f"{part!r} {part}"

    def test_the_address_still_has_it(self, app):
        assert parts_of(self.fairness).address.urls == (URL,)
        assert str(parts_of(self.fairness).address) == "redis://127.0.0.1:1/1"

    def test_the_command_that_reports_does_not_show_it(self, app, capsys):
        from celery.bin.celery import report
        from click import Context

        assert hasattr(report.callback, "__wrapped__"), "not the command behind its error handling"
        context = Context(report)
        context.obj = types.SimpleNamespace(app=app, echo=lambda text: print(text))
        app.finalize()
        with context:
            report.callback()
        assert SECRET not in capsys.readouterr().out

    def test_a_worker_that_starts_logs_the_address_without_it(self, app, caplog):
        caplog.set_level(logging.DEBUG)
        parts = parts_of(self.fairness)
        parts.lease_renewer = types.SimpleNamespace(start=lambda: None, stop=lambda _: None)
        parts.on_worker_init()
        parts.on_worker_start(types.SimpleNamespace(pool=SoloPool(), hostname="w", consumer=None))
        # Its threads would log their errors in other tests.
        parts.on_worker_stopped()
        assert "the limiter's Redis is redis://127.0.0.1:1/1" in caplog.text
        # Nobody is there, which is said too.
        assert "the limiter's Redis at redis://127.0.0.1:1/1 does not answer" in caplog.text
        assert SECRET not in caplog.text


def test_the_keys_that_all_tasks_declare_together_may_be_more_than_those_of_one_task(make_shop):
    """A worker reads them at its start, and each scrape of the metrics."""
    shop = make_shop()

    def body():
        pass

    for number in range(20):
        limits = [RateLimitPolicy(f"api-{number:02}", concurrency=1)]
        shop.task(base=FairTask, name=f"shop.t{number}", limits=limits)(body)
    words = parts_of(shop.fairness).installation.declared_words()
    assert [word.partition("|")[0] for word in words] == [f"api-{n:02}" for n in range(20)]


class TestWiring:
    """One Fairness for each app, and none without one."""

    def test_of_finds_the_apps_own(self, bare):
        one, two = bare("one"), bare("two")
        first, second = Fairness(one, {}), Fairness(two, {})
        assert (Fairness.of(one), Fairness.of(two)) == (first, second)

    def test_of_an_app_without_one_says_what_to_add(self, bare):
        with pytest.raises(NotWired, match="the Celery app 'shop' has no Fairness: add"):
            Fairness.of(bare())

    def test_of_nothing_is_the_current_apps(self, bare, monkeypatch):
        from celery import _state

        app = bare()
        fairness = Fairness(app, {})
        monkeypatch.setattr(_state._tls, "current_app", app, raising=False)
        assert Fairness.of() is fairness

    def test_a_second_takes_the_place_of_the_first(self, make_shop):
        shop = make_shop({"tier_resolver": lambda tenant: "pro"})
        second = Fairness(shop.app, {})
        try:
            assert Fairness.of(shop.app) is second
            routers = [r for r in shop.app.conf.task_routes if isinstance(r, TierRouter)]
            assert len(routers) == 1
            parts = parts_of(second)
            parts.limiter, parts.tier_cache = shop.limiter, parts_of(shop.fairness).tier_cache

            @shop.task(base=FairTask, tenant="user", service="analysis", name="shop.t")
            def work(user=None):
                pass

            shop.app.finalize()
            shop.app.send_task("shop.t", ("42",))
            assert shop.one().queue == "analysis_priority"
        finally:
            second.close()

    def test_a_closed_one_stamps_nothing(self, make_shop):
        shop = make_shop()

        @shop.task(base=FairTask, tenant="user", name="shop.t")
        def work(user=None):
            pass

        shop.app.finalize()
        shop.fairness.close()
        with pytest.raises(NotWired):
            Fairness.of(shop.app)
        shop.app.send_task("shop.t", ("42",))
        assert shop.one().fairness is None

    def test_an_app_that_was_configured_before_is_wired_too(self, bare):
        app = bare()
        assert app.conf.timezone is None
        app.finalize()
        Fairness(app, {})
        assert isinstance(app.conf.task_routes[0], TierRouter)

    def test_two_apps_do_not_stamp_each_others_messages(self, make_shop):
        one = make_shop({"tier_resolver": lambda t: "pro"}, main="one")
        two = make_shop({"tier_resolver": lambda t: "enterprise"}, main="two")

        def body(user=None):
            pass

        tasks = [
            shop.task(base=FairTask, tenant="user", name="same.name")(body) for shop in (one, two)
        ]
        for shop in (one, two):
            shop.app.finalize()
        for task, shop, tier in zip(tasks, (one, two), ("pro", "enterprise"), strict=True):
            for _ in range(2):
                task.delay("42")
                assert shop.one().fairness["tier"] == tier
                shop.app.send_task("same.name", ("42",))
                assert shop.one().fairness["tier"] == tier

    def test_the_repr_names_the_app(self, bare):
        assert repr(Fairness(bare(), {})) == "<Fairness of 'shop'>"


def users_router(name, args, kwargs, options, task=None, **kw):
    return {"queue": "by_function"} if name == "other.t" else None


ROUTES = [
    (None, "celery"),
    ({"other.t": {"queue": "by_dict"}}, "by_dict"),
    ({"other.*": "by_pattern"}, "by_pattern"),
    ([{"nothing.*": {"queue": "x"}}, {"other.t": {"queue": "by_list"}}], "by_list"),
    (({"other.t": {"queue": "by_tuple"}},), "by_tuple"),
    (([("other.t", {"queue": "by_pairs"})],), "by_pairs"),
    (users_router, "by_function"),
    ([users_router], "by_function"),
    ("tests.unit.app.test_fairness.users_router", "by_function"),
    ("tests.unit.app.test_fairness:users_router", "by_function"),
]


@pytest.mark.parametrize(("routes", "queue"), ROUTES)
class TestRoutes:
    """The user's own routes stay, in every form that Celery takes."""

    def send(self, shop):
        @shop.task(name="other.t")
        def other():
            pass

        @shop.task(base=FairTask, tenant="user", service="analysis", name="shop.t")
        def ours(user=None):
            pass

        other.delay()
        theirs = shop.one().queue
        ours.delay("42")
        return theirs, shop.one().queue

    def test_set_before_wiring(self, make_shop, routes, queue):
        shop = make_shop(conf={"task_routes": routes})
        assert self.send(shop) == (queue, "analysis_default")

    def test_set_after_wiring(self, make_shop, bare, clock, routes, queue):
        shop = make_shop()
        second = bare("second")
        fairness = Fairness(second, {})
        second.conf.task_routes = routes
        parts_of(fairness).limiter, parts_of(fairness).tier_cache = (
            shop.limiter,
            parts_of(shop.fairness).tier_cache,
        )
        assert self.send(type(shop)(second, fairness, shop.limiter, clock)) == (
            queue,
            "analysis_default",
        )

    def test_wired_twice(self, make_shop, routes, queue):
        shop = make_shop(conf={"task_routes": routes})
        second = Fairness(shop.app, {})
        parts = parts_of(second)
        parts.limiter, parts.tier_cache = shop.limiter, parts_of(shop.fairness).tier_cache
        try:
            assert self.send(shop) == (queue, "analysis_default")
        finally:
            second.close()


class TestSteering:
    """Looking at a key, publishing tiers, and giving a tenant another tier."""

    @pytest.fixture
    def shop(self, make_shop, make_redis_limiter):
        shop = make_shop(limiter=make_redis_limiter())
        # As every worker does when it starts.
        shop.limiter.publish_tiers(shop.fairness.settings.tiers.values(), "settings")
        return shop

    def test_a_tenants_tier_is_in_force_at_the_next_question(self, shop):
        shop.fairness.tenants.set_tier("42", "enterprise")
        assert shop.fairness.limits.inspect("tenant:42").limit == 5

    def test_a_process_that_publishes_a_tier_has_no_older_one_in_its_cache(self, shop):
        tenants, tier_cache = shop.fairness.tenants, parts_of(shop.fairness).tier_cache

        def known() -> tuple[str, str]:
            # The answers for a producer in this process, and for an operator.
            tier_cache.look()
            return tier_cache.tier_of("42"), tenants.inspect("42").tier

        assert known() == ("free", "free")
        tenants.set_tier("42", "enterprise")
        assert known() == ("enterprise", "enterprise")
        tenants.clear_tier("42")
        assert known() == ("free", "free")
        tenants.set_tier("42", "pro")
        assert known() == ("pro", "pro")
        tenants.publish_tiers([Tier("free", 1)])
        assert known() == ("free", "free")

    def test_a_tenant_can_be_forgotten(self, shop):
        shop.fairness.tenants.set_tier("42", "enterprise", concurrency=9)
        shop.fairness.tenants.clear_tier("42")
        assert shop.limiter.published_tenant("42") is None
        assert shop.fairness.limits.inspect("tenant:42").limit == 1

    @pytest.mark.parametrize(("concurrency", "limit"), [(0, 0), (17, 17), (None, None)])
    def test_a_number_of_its_own_is_in_the_place_of_the_tiers(self, shop, concurrency, limit):
        shop.fairness.tenants.set_tier("42", "pro", concurrency=concurrency)
        assert shop.fairness.limits.inspect("tenant:42").limit == limit

    @pytest.mark.parametrize(
        ("args", "kwargs", "error", "message"),
        [
            (
                ("42", "gold"),
                {},
                ValueError,
                "tier: expected one of enterprise, free, pro, pro_plus, got: 'gold'",
            ),
            ((None, "pro"), {}, ValueError, "tenant: expected a tenant, got: None"),
            (("", "pro"), {}, ValueError, "tenant: expected a tenant, got: ''"),
            ((4.2, "pro"), {}, TenantInvalid, "tenant: expected str, int or UUID, got: float"),
            (("42", "pro"), {"concurrency": -1}, ValueError, "concurrency: expected a whole"),
            (("42", "pro"), {"concurrency": True}, ValueError, "concurrency: expected a whole"),
            (("42", "pro"), {"concurrency": "5"}, ValueError, "concurrency: expected a whole"),
        ],
    )
    def test_what_cannot_be_meant_is_rejected_and_nothing_is_published(
        self, shop, args, kwargs, error, message
    ):
        with pytest.raises(error) as caught:
            shop.fairness.tenants.set_tier(*args, **kwargs)
        assert str(caught.value).startswith(message)
        assert shop.limiter.published_tenant("42") is None
        assert shop.limiter.config_version() == 1

    def test_a_published_table_is_in_force(self, shop):
        shop.fairness.tenants.publish_tiers([Tier("free", 9)])
        assert shop.fairness.limits.inspect("tenant:42").limit == 9
        assert shop.limiter.published_tiers() == ("database", {"free": Tier("free", 9)})

    @pytest.mark.parametrize("tenant", ["42", "Größe", "{a}", "h_42", "a\nb", "_none "])
    def test_a_key_is_given_with_its_tenant_in_plain(self, shop, tenant):
        shop.fairness.tenants.set_tier(tenant, "enterprise")
        lease = Lease("l1", tier_key(tenant))
        shop.limiter.acquire(SlotRequest(lease, tenant, "free"))
        state = shop.fairness.limits.inspect(f"tenant:{tenant}")
        assert (state.limit, state.held) == (5, 1)

    @pytest.mark.parametrize(
        ("key", "form"),
        [
            ("tenant:", "tenant:{tenant}"),
            *(
                (key, "the key of a limit such as 'api.stripe.com' or 'tenant:42'")
                for key in ("", "a b", "ten,ant:42")
            ),
        ],
    )
    def test_a_key_of_another_form_is_an_error_that_shows_the_form(self, shop, key, form):
        with pytest.raises(ValueError) as caught:
            shop.fairness.limits.inspect(key)
        assert str(caught.value) == f"key: expected {form}, got: {key!r}"

    def test_rejections_are_told_apart_from_other_counts(self, shop):
        shop.limiter.count("rejected:free", 3)
        shop.limiter.count("rejected:pro", 1)
        shop.limiter.count("opened", 2)
        assert shop.fairness.stats.rejections().tiers == {"free": 3, "pro": 1}
        assert shop.fairness.stats.counters() == {"opened": 2}

    @pytest.mark.parametrize("key", ["tenant:42:analysis", "tenant:a:b:analysis"])
    def test_a_key_of_one_service_is_of_its_tenant(self, make_shop, make_redis_limiter, key):
        by_service = {"tier_scope": "service"}
        shop = make_shop(by_service, limiter=make_redis_limiter(**by_service))
        shop.limiter.publish_tiers(shop.fairness.settings.tiers.values(), "settings")
        tenant = key.removeprefix("tenant:").removesuffix(":analysis")
        shop.fairness.tenants.set_tier(tenant, "enterprise")
        assert shop.fairness.limits.inspect(key).limit == 5


class TestWorker:
    """What a starting worker does."""

    def test_it_publishes_its_tiers_unless_the_databases_are_there(self, make_shop, caplog):
        shop = make_shop({"tiers": {"free": {"concurrency": 4}}})
        parts_of(shop.fairness)._publish_settings()
        assert shop.limiter.published_tiers()[0] == "settings"
        assert caplog.messages == []
        shop.fairness.tenants.publish_tiers(
            [Tier("free", 2), *list(shop.fairness.settings.tiers.values())[1:]]
        )
        parts_of(shop.fairness)._publish_settings()
        (message,) = caplog.messages
        assert caplog.records[0].levelname == "WARNING"
        assert message == (
            "tier free: this worker's settings have concurrency 4, weight 1, default queue, Redis "
            "had concurrency 2, weight 1, default queue from the database; the database holds"
        )
        assert shop.limiter.published_tiers()[1]["free"].concurrency == 2

    def test_a_tier_that_was_edited_in_the_admin_is_no_warning_beside_the_defaults(
        self, make_shop, caplog
    ):
        caplog.set_level("INFO")
        shop = make_shop({})
        edited = [Tier("free", 2), Tier("gold", 9), *list(DEFAULT_TIERS.values())[1:]]
        shop.fairness.tenants.publish_tiers(edited)
        parts_of(shop.fairness)._publish_settings()
        tiers = [each for each in caplog.records if each.message.startswith("tier ")]
        assert [(each.levelname, each.message[:11]) for each in tiers] == [
            ("INFO", "tier free: "),
            ("INFO", "tier gold: "),
        ]

    def test_unknown_variables_are_warned_about(self, make_shop, caplog):
        shop = make_shop({"redis_url": URL}, environ={"FAIRNESS_FREE_LIMITS": "3"})
        parts_of(shop.fairness).lease_renewer = parts_of(shop.fairness).promoter = (
            types.SimpleNamespace(start=lambda: None)
        )
        parts_of(shop.fairness).on_worker_start(
            types.SimpleNamespace(pool=SoloPool(), hostname="w", consumer=None)
        )
        assert (
            "variable FAIRNESS_FREE_LIMITS is not known: it has no effect; "
            "write FAIRNESS_FREE_LIMIT"
        ) in caplog.messages

    @pytest.mark.parametrize(
        ("settings", "environ", "problem"),
        [
            ({"snooze_second": 7}, {}, "fairness.snooze_second: expected a known setting"),
            ({"redis_url": f"http://:{SECRET}@h"}, {}, "fairness.redis_url: expected redis://"),
            ({}, {"FAIRNESS_FREE_LIMIT": "-1"}, "FAIRNESS_FREE_LIMIT: expected a whole number"),
            ({}, {}, "FAIRNESS_REDIS_URL: expected the address of a Redis for the limiter"),
            (
                {"redis_url": "redis://h", "tier_resolver": "billing.tier:of"},
                {},
                (
                    "fairness.tier_resolver: expected 'module:name' that can be imported, "
                    "got: 'billing.tier:of' (ModuleNotFoundError: No module named 'billing')"
                ),
            ),
        ],
    )
    def test_a_setting_that_cannot_be_meant_ends_it_with_one_line(
        self, bare, capsys, settings, environ, problem
    ):
        app = bare()
        app.conf.fairness = settings
        fairness = Fairness(app, environ)
        with pytest.raises(SystemExit) as caught:
            parts_of(fairness).on_worker_init()
        assert caught.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"celery_fairness: {problem}")
        assert SECRET not in line

    def test_a_resolver_whose_module_fails_ends_it_too(self, bare, capsys, tmp_path, monkeypatch):
        (tmp_path / "failing_resolver.py").write_text("raise RuntimeError('no price list')")
        monkeypatch.syspath_prepend(tmp_path)
        app = bare()
        app.conf.fairness = {"redis_url": "redis://h", "tier_resolver": "failing_resolver:of"}
        with pytest.raises(SystemExit):
            parts_of(Fairness(app, {})).on_worker_init()
        assert "'failing_resolver:of' (RuntimeError: no price list)" in capsys.readouterr().err

    def test_one_that_starts_without_redis_publishes_when_redis_is_back(self, make_shop, caplog):
        shop = make_shop({"redis_url": URL})
        parts = parts_of(shop.fairness)
        parts.settings_publisher = SettingsPublisher(parts.notices, again_seconds=0.01)
        parts.lease_renewer = parts.promoter = types.SimpleNamespace(start=lambda: None)
        shop.limiter.away = True
        parts.on_worker_start(types.SimpleNamespace(pool=SoloPool(), hostname="w", consumer=None))
        assert "of the settings could not be published, it is tried again" in caplog.text
        shop.limiter.away = False
        eventually(lambda: shop.limiter.published_tiers()[0] == "settings")

    def test_a_users_task_class_without_ours_is_not_touched(self, make_shop):
        shop = make_shop()

        class Mine(Task):
            abstract = True

        @shop.task(base=Mine, name="shop.mine")
        def mine():
            pass

        assert not isinstance(mine, FairTask)
        mine.delay()
        assert shop.one().fairness is None


@pytest.mark.parametrize("sends", [False, True])
def test_events_are_passed_on_while_the_worker_sends_any(sends):
    app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    consumer = types.SimpleNamespace(event_dispatcher=None)
    fairness = Fairness(app, {})
    forwarder = parts_of(fairness)._make_forwarder(
        types.SimpleNamespace(hostname="w", consumer=consumer)
    )
    assert not forwarder._sends_events()
    consumer.event_dispatcher = types.SimpleNamespace(enabled=sends)
    assert forwarder._sends_events() is sends
    fairness.close()


def test_workers_that_are_forks_of_one_process_have_names_of_their_own(bare):
    fairness = Fairness(bare(broker="redis://127.0.0.1:1/0"), {})
    names = {parts_of(fairness).worker}
    for _ in range(2):
        parts_of(fairness).on_worker_init()
        names.add(parts_of(fairness).worker)
    assert len(names) == 3
