"""Read the calls of the API: what each customer got, how much of the budget was used, a picture."""

import json
import math
import os
from collections import defaultdict
from itertools import accumulate
from pathlib import Path
from typing import Any

from api import BUDGET, WINDOW_SECONDS

COLOURS = {"fred": "#c0504d", "petra": "#4f81bd", "nora": "#9bbb59"}
WIDTH, HEIGHT, LEFT, TOP = 720, 260, 60, 40


def main() -> None:
    """Print a table, and write ``tokens.svg``."""
    lines = Path(os.environ.get("API_CALLS", "calls.jsonl")).read_text("utf-8").splitlines()
    calls = sorted((json.loads(line) for line in lines), key=lambda call: call["at"])
    good = [call for call in calls if call["code"] == 200]
    begin, end = good[0]["at"], good[-1]["at"]
    seconds = end - begin
    by_customer: dict[str, int] = defaultdict(int)
    for call in good:
        by_customer[call["customer"]] += call["used"]
    used = sum(by_customer.values())
    windows = math.ceil(seconds / WINDOW_SECONDS)
    print(f"{'customer':10} {'calls':>6} {'tokens':>8}  last call after")
    for customer, tokens in sorted(by_customer.items()):
        own = [call["at"] for call in good if call["customer"] == customer]
        print(f"{customer:10} {len(own):6} {tokens:8}  {own[-1] - begin:5.1f} s")
    rejected = len(calls) - len(good)
    print(f"\n{rejected} of {len(calls)} calls were answered with 429")
    part = used / (windows * BUDGET)
    print(f"{used:,} tokens in {seconds:.0f} s: {part:.0%} of {windows} windows")
    Path("tokens.svg").write_text(picture(good, begin, seconds), "utf-8")


def picture(calls: list[dict[str, Any]], begin: float, seconds: float) -> str:
    """Return the tokens of each second by customer, as stacked bars."""
    bars: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for call in calls:
        bars[int(call["at"] - begin)][call["customer"]] += call["used"]
    most = max(sum(bar.values()) for bar in bars.values())
    step = WIDTH / (int(seconds) + 1)
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12"',
        f' viewBox="0 0 {WIDTH + 80} {HEIGHT + 80}">',
        f'<text x="{LEFT}" y="18">Tokens of the API in each second, by customer</text>',
    ]
    for second, bar in bars.items():
        ends = accumulate(bar.get(name, 0) for name in COLOURS)
        for name, top in zip(COLOURS, ends, strict=True):
            tall, y = bar.get(name, 0) / most * HEIGHT, TOP + HEIGHT * (1 - top / most)
            parts.append(
                f'<rect x="{LEFT + second * step:.1f}" y="{y:.1f}" width="{step * 0.9:.1f}" '
                f'height="{tall:.1f}" fill="{COLOURS[name]}"/>'
            )
    mean = BUDGET / WINDOW_SECONDS
    y = TOP + HEIGHT * (1 - mean / most)
    parts += [
        f'<path d="M {LEFT} {y:.1f} h {WIDTH}" stroke="black" stroke-dasharray="4"/>',
        f'<text x="4" y="{y:.1f}">{mean:,.0f}</text>',
        f'<text x="{LEFT}" y="{TOP + HEIGHT + 18}">0 s</text>',
        f'<text x="{LEFT + WIDTH - 30}" y="{TOP + HEIGHT + 18}">{seconds:.0f} s</text>',
    ]
    for place, (name, colour) in enumerate(COLOURS.items()):
        x = LEFT + 120 * place
        parts.append(
            f'<rect x="{x}" y="{TOP + HEIGHT + 28}" width="12" height="12" fill="{colour}"/>'
            f'<text x="{x + 18}" y="{TOP + HEIGHT + 39}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    main()
