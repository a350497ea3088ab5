"""A simulation of installations that are larger than any machine here.

Workers, producers and servers are events on one clock. The decisions of a worker are those of the
product, because each worker has a real ``RingMerge``. A server is one core with a queue, and each
call costs what a real server takes for it (``costs.py``). A run with the same seed repeats its
figures.

The rings are start-time fair queueing in its plain form, and a test compares them with the function
library. They have no limits, ranks, delays or failures.
"""
