"""Ids are unique: between processes, and whatever a body does to the generator of ``random``."""

from __future__ import annotations

import os
import random

import pytest

from celery_fairness.limiter.types import Lease
from celery_fairness.util.ids import holder_of, is_lease_of, new_id, new_lease_id


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


def test_a_lease_of_a_gate_tells_its_worker_and_its_task():
    named = new_lease_id("t1", "ab12")
    assert Lease(named, "api").worker == "ab12"
    assert is_lease_of(named, "t1")
    assert not is_lease_of(named, "t2")
    assert Lease(new_lease_id("t1"), "api").worker == ""


@pytest.mark.parametrize(
    ("task_id", "named"),
    [
        ("4fd6adab-96d7-4b3f-9e8c-0d4b5a1f2c11", True),
        ("t1", True),
        ("a" * 64, True),
        ("a" * 65, False),
        ("a.b", False),
        ("me@home", False),
        ("t 1", False),
        ("\ud800", False),
        ("", False),
        # As a digest looks.
        ("0123456789ab", False),
    ],
)
def test_a_lease_names_its_task_where_that_has_a_usual_id(task_id, named):
    lease = new_lease_id(task_id, "ab12")
    assert holder_of(lease) == ("ab12", task_id if named else "")
    assert is_lease_of(lease, task_id) or not task_id
    assert len(lease) < 110
    assert lease.isascii()
    assert not set(lease) & set(" ,|")
