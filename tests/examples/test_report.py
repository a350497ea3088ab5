"""The page: well formed, sufficient to itself, and telling what was found."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from examples.code_analysis.chart import mean_running, scale_to
from examples.code_analysis.comparison import Comparison
from examples.code_analysis.report import render
from tests.examples.made_runs import a_good_comparison, made_job, made_run

NOTHING = Comparison(made_run("plain", []), made_run("fair", []), seed=1)


def parsed(page: str) -> ElementTree.Element:
    head, _, rest = page.partition("\n")
    assert head == "<!DOCTYPE html>"
    return ElementTree.fromstring(rest)  # we wrote it as XML


@pytest.mark.parametrize("comparison", [a_good_comparison(), NOTHING], ids=["good", "nothing"])
def test_it_is_well_formed_and_needs_nothing_else(comparison: Comparison) -> None:
    page = render(comparison)
    root = parsed(page)

    tags = {element.tag for element in root.iter()}
    assert tags.isdisjoint({"script", "link", "img", "iframe", "object", "image", "use"})
    attributes = {name for element in root.iter() for name in element.attrib}
    assert attributes.isdisjoint({"src", "href", "srcset", "data", "onload", "onclick"})
    assert not re.search(r"https?:|//|@import|url\(", page)
    assert "prefers-color-scheme: dark" in page


def test_both_runs_are_drawn_side_by_side() -> None:
    root = parsed(render(a_good_comparison()))
    figures = root.findall(".//figure")

    assert [figure.findtext("figcaption") for figure in figures] == [
        "plain Celery",
        "celery_fairness",
    ] * 2
    assert len(figures[0].findall(".//circle")) == 12
    assert len(figures[1].findall(".//circle")) == 13
    assert len(root.findall(".//tbody/tr")) == 11


def test_it_says_what_was_found() -> None:
    comparison = a_good_comparison()
    assert "no job was lost" in render(comparison)

    job = made_job("<fay & co>", 0.0)
    comparison.fair.book.jobs[job.id] = job
    page = render(comparison)

    assert "no job was lost" not in page
    assert "&lt;fay &amp; co&gt;" in page
    assert "1 job lost (never started)" in page
    parsed(page)


def test_the_mean_of_each_interval() -> None:
    # Half of the first quarter second, all of the second, none of the third.
    assert mean_running([(0.125, 0.5)], bins=3) == [0.5, 1.0, 0.0]
    assert mean_running([(-1.0, 0.25), (0.0, 99.0)], bins=2) == [2.0, 1.0]


@pytest.mark.parametrize("largest", [0.0, 0.3, 1.0, 9.7, 35.0, 75.0, 600.0])
def test_a_scale_has_a_few_round_ticks_and_room_for_all(largest: float) -> None:
    scale = scale_to([largest])

    assert scale.largest >= largest
    assert 3 <= len(scale.ticks) <= 8
    assert scale.ticks[0] == 0
    assert scale.x(scale.largest) > scale.x(scale.ticks[-1]) >= scale.x(0)
