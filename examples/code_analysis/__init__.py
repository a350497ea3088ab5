"""A small code-analysis platform whose users share one set of workers.

Run it with `python -m examples.code_analysis`. A service `analysis` parses packages, a service
`specview` writes pages about them, users have tiers, and beat analyses again in the background.

Weakness: everything runs on one machine, workers and the users' jobs compete for the same cores, so
its times say how the two runs compare, not how fast your workers are.
"""
