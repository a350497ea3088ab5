"""Waiting tasks whose expiry has come end without a start."""

from __future__ import annotations


def claim_all(shop):
    """Claim until nothing may start. Return what has started."""
    started = []
    while True:
        numbers, sleep_ms = shop.claim(want=2)
        started += numbers
        if sleep_ms:
            return started


def test_none_starts_however_many_expire_at_once(shop):
    shop.put("a", expires=1_000, times=60)
    shop.put("b", expires=1_000)
    shop.put("b")
    shop.at(1_000)
    assert claim_all(shop) == [62]
    assert shop.exists() == [62]
    assert [what for what, _ in shop.events()].count("fairness.expired") == 61


def test_one_that_expires_at_its_turn_charges_nobody(shop):
    shop.put("a", expires=1_000, times=40)
    shop.put("a")
    shop.put("b", times=2)
    shop.at(1_000)
    # Each has one turn, although 40 tasks of a have left before.
    assert sorted(claim_all(shop)[:2]) == [41, 42]
