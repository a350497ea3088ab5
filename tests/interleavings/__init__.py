"""All interleavings of a protocol in which tasks of a gate wait as tasks of the scheduler.

A gate rejects a task whose message another broker holds, and the scheduler stores the task. When
its limits are open, a promoter claims it and publishes it to its broker again. Then the message
comes to a gate once more. For a while a task has messages, leases and a record at the same time.

`protocol` has the scheduler's functions, `actors` has everything that may happen next, and `search`
has what must be true. `rules` has the rules as switches: without any one of them the search finds a
violation. It needs no server, and it shares no code with the package.

::

    none ──park──> waits ──claim──> claimed ──sent──> none, the lease stays
                     ^                 │
                     └──lease ends─────┘     a copy at a gate, or an outcome, ends each state
"""
