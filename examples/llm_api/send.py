"""Three customers send prompts: fred floods, petra has the plan pro, and nora sends a few.

An argument, such as 0.1, is the part of them that is sent.
"""

import random
import sys

from shop import complete

PART = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
COUNTS = {"fred": 400, "petra": 150, "nora": 40}

for customer, count in COUNTS.items():
    for number in range(int(count * PART)):
        complete.delay(f"prompt {number}", random.randint(200, 600), customer)
