"""Settings for one machine. The last block is what celery_fairness needs."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
# Anybody can read this key. In production set the variable.
SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "only for trials")
DEBUG = "DJANGO_SECRET_KEY" not in os.environ
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "shop.urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"}}
STATIC_URL = "static/"
TIME_ZONE = "UTC"
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_celery_fairness",
    "orders",
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

CELERY_BROKER_URL = "fairredis://localhost:6379/0"
CELERY_TASK_IGNORE_RESULT = True
CELERY_FAIRNESS = {
    # The tier of a customer comes from the admin. The migration writes these numbers there, once.
    "tier_resolver": "django_celery_fairness.resolver:tier_of",
    "tiers": {"free": {"concurrency": 1}, "pro": {"concurrency": 3}},
    "default_tier": "free",
}
