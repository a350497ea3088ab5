"""``make mutants``: small mistakes are made in the Lua scripts, and the tests must see each."""
