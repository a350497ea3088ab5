"""Django settings of the demo site.

Invariant: no secret is in this file, and debugging is off unless DJANGO_DEBUG is 1.

Weakness: it is for one machine. DJANGO_ALLOWED_HOSTS must name other hosts.

========================= ==================================================================
DATABASE_URL              PostgreSQL or another SQLite file; SQLite in the site's folder
DJANGO_SECRET_KEY         one made once for this checkout
DJANGO_DEBUG              1 shows errors in the browser; 0
DJANGO_ALLOWED_HOSTS      names with commas between; localhost and 127.0.0.1
CELERY_BROKER_URL         fairredis://localhost:6379/0 (``manage.py site`` starts its own)
CELERY_RESULT_BACKEND     for the chord of the demo; none
DEMO_SITE_DIR             where the site writes; django_app/.site (``manage.py site`` makes and
                          removes its own)
========================= ==================================================================
"""

from __future__ import annotations

import os

from demo_site.database_url import database_from
from demo_site.site_folder import secret_key, site_folder

SECRET_KEY = secret_key()
DEBUG = os.environ.get("DJANGO_DEBUG", "0").lower() in ("1", "true", "yes", "on")
ALLOWED_HOSTS = os.environ.get("DJANGO_ALLOWED_HOSTS", "localhost,127.0.0.1").split(",")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_celery_fairness",
    "demo_site",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
ROOT_URLCONF = "demo_site.urls"
WSGI_APPLICATION = "demo_site.wsgi.application"
DATABASES = {
    "default": database_from(os.environ.get("DATABASE_URL", ""), site_folder() / "site.sqlite3")
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
# Other demos on localhost would share a cookie of Django's usual name.
SESSION_COOKIE_NAME = "fairness_demo_session"
CSRF_COOKIE_NAME = "fairness_demo_csrf"

CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL", "fairredis://localhost:6379/0")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_RESULT_BACKEND = os.environ.get("CELERY_RESULT_BACKEND") or None
CELERY_RESULT_EXPIRES = 300
CELERY_WORKER_HIJACK_ROOT_LOGGER = True
CELERY_FAIRNESS = {
    "tier_resolver": "django_celery_fairness.resolver:tier_of",
    "queues": {"reports_priority": {"global_limit": 2}},
    # A dead letter after two deaths: a person who watches the page does not wait for five.
    "max_deliveries": 2,
    # For a broker without fair claims in CELERY_BROKER_URL. By default a task above its limit goes
    # back for 30 to 40 s, and no page shows it.
    "tier_on_limit": "wait",
}
