"""``make mutants``: small mistakes are made in the Lua modules, and the tests must see each."""
