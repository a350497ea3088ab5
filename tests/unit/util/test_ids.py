"""Ids are unique: between processes, and whatever a body does to the generator of ``random``."""

from __future__ import annotations

import os
import random

import pytest

from celery_fairness.limiter.types import Lease
from celery_fairness.util.ids import new_id, new_lease_id


@pytest.mark.parametrize("size_bytes", [1, 4, 12])
def test_an_id_has_its_length_in_hexadecimal_digits(size_bytes):
    for _ in range(300):
        made = new_id(size_bytes)
        assert len(made) == 2 * size_bytes
        assert int(made, 16) >= 0


def test_no_id_comes_twice():
    assert len({new_id(12) for _ in range(10_000)}) == 10_000


def test_a_body_that_seeds_the_generator_of_random_repeats_nothing():
    random.seed(7)
    first = new_id(12)
    random.seed(7)
    assert new_id(12) != first


def test_a_forked_child_makes_other_ids_than_its_parent():
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, new_id(12).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 24).decode() != new_id(12)
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("worker", ["ab12", ""])
def test_a_lease_of_a_gate_names_its_worker(worker):
    first, second = new_lease_id(worker), new_lease_id(worker)
    assert first != second
    assert Lease(first, "api").worker == worker
    assert first.isascii()
    assert not set(first) & set(" ,|")
