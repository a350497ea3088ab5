"""``make chaos``: processes are killed and Redis fails, and a ledger says what came of it."""
