"""The page: well formed, sufficient to itself, and telling what was found."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from examples.code_analysis.chart import mean_running, scale_to
from examples.code_analysis.comparison import Comparison
from examples.code_analysis.picture import draw
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


LABELS = ["plain Celery", "turns alone", "limits and turns"]


@pytest.mark.parametrize("turns", [True, False], ids=["fairredis", "gate"])
def test_the_runs_are_drawn_side_by_side(turns: bool) -> None:
    comparison = a_good_comparison()
    labels, dots = LABELS, [12, 12, 13]
    if not turns:
        comparison = replace(comparison, turns=None)
        labels, dots = [LABELS[0], LABELS[2]], [12, 13]
    root = parsed(render(comparison))
    figures = root.findall(".//figure")

    assert [figure.findtext("figcaption") for figure in figures] == labels * 2
    assert [len(each.findall(".//circle")) for each in figures[: len(dots)]] == dots
    rows = root.findall(".//tbody/tr")
    assert len(rows) == 11
    assert {sum(int(cell.get("colspan", "1")) for cell in row) for row in rows} == {
        3 + 3 * len(dots) + 1
    }


def test_the_picture_has_the_first_row_of_the_page() -> None:
    comparison = a_good_comparison()
    picture = draw(comparison)
    assert not re.search(r"@import|url\(|href", picture)
    root = ElementTree.fromstring(picture)
    name = "{http://www.w3.org/2000/svg}"
    charts = root.findall(f"{name}g")
    assert [chart.findtext(f"{name}text") for chart in charts] == LABELS
    assert [len(chart.findall(f"{name}circle")) for chart in charts] == [12, 12, 13]


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
