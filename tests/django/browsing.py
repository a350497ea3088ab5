"""What a person does in the browser."""

from __future__ import annotations

from playwright.sync_api import Page


def log_in(page: Page, address: str, site_environment: dict[str, str]) -> None:
    """Open a page of the admin as the administrator."""
    page.goto(address)
    page.fill("#id_username", "boss")
    page.fill("#id_password", site_environment["DJANGO_SUPERUSER_PASSWORD"])
    page.click("input[type=submit]")
