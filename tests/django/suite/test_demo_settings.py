from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from demo_site.database_url import database_from
from django.core.exceptions import ImproperlyConfigured

PROJECT = Path(__file__).resolve().parents[3] / "django_app"


def test_a_database_url_is_read_with_its_parts():
    read = database_from("postgresql://me:p%40ss@db.example:6543/shop?sslmode=require", Path("x"))
    assert read["ENGINE"] == "django.db.backends.postgresql"
    parts = (read["USER"], read["PASSWORD"], read["HOST"], read["PORT"], read["NAME"])
    assert parts == ("me", "p@ss", "db.example", "6543", "shop")
    assert read["OPTIONS"] == {"sslmode": "require"}
    socket = database_from("postgres:///shop?host=/run/postgresql", Path("x"))
    assert (socket["HOST"], socket["PORT"], socket["NAME"]) == ("/run/postgresql", "", "shop")
    assert database_from("sqlite:////tmp/a.sqlite3", Path("x"))["NAME"] == "/tmp/a.sqlite3"
    assert database_from("", Path("/tmp/default"))["NAME"] == "/tmp/default"


@pytest.mark.parametrize("url", ["mysql://me:hunter2@db/shop", "postgresql://me:hunter2@db/", "x"])
def test_a_database_url_that_cannot_be_meant_is_an_error_without_its_password(url):
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL: expected postgresql://") as error:
        database_from(url, Path("x"))
    assert "hunter2" not in str(error.value)


def settings_of(folder: Path, names: str, **variables: str) -> list[str]:
    """Settings as a fresh process reads them."""
    code = f"from demo_site import settings as s; print({names}, sep='\\n')"
    environment = {**os.environ, "DEMO_SITE_DIR": str(folder), **variables}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_secret_key_is_made_once_for_its_owner_alone(tmp_path):
    folder = tmp_path / "site"
    first, debug = settings_of(folder, "s.SECRET_KEY, s.DEBUG")
    assert len(first) >= 50
    assert debug == "False"
    assert settings_of(folder, "s.SECRET_KEY") == [first]
    assert settings_of(tmp_path / "other", "s.SECRET_KEY") != [first]
    assert (folder / "secret_key").stat().st_mode & 0o777 == 0o600
    given = settings_of(folder, "s.SECRET_KEY, s.DEBUG", DJANGO_SECRET_KEY="x", DJANGO_DEBUG="1")
    assert given == ["x", "True"]


def test_processes_that_start_together_agree_on_the_secret_key(tmp_path):
    code = "from demo_site.settings import SECRET_KEY; print(SECRET_KEY)"
    environment = {**os.environ, "DEMO_SITE_DIR": str(tmp_path / "site")}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=PROJECT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    assert len({process.communicate()[0] for process in started}) == 1
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["secret_key"]
