# Everything here sets itself up: nothing but Python 3.11 and make is expected. `make` shows the list.

.DEFAULT_GOAL := help
.PHONY: help setup demo site docs test repeat versions check lint format types imports bench chaos moves foreign packages mutants dist lock clean

# Each process of the tests would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON_IN_VENV := .venv/bin/python
# Passed on to the command: make test ARGS="-k tiers -x"
ARGS ?=
# The tests that make test and make repeat run.
TESTS ?= tests

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv with all dependencies (the others do this by themselves)
	@scripts/setup

demo: setup ## Show fairness on real input: plain Celery, turns alone, limits and turns, in three minutes
	@$(PYTHON_IN_VENV) -m examples.code_analysis $(ARGS)

site: setup ## Serve the Django admin with demo tasks running (ARGS="--path gate": on stock Redis)
	@$(PYTHON_IN_VENV) django_app/manage.py site $(ARGS)

# A warning is an error: a link to a page or a heading that is not there is one.
docs: setup ## Build the pages as a site, build/site/index.html
	@$(PYTHON_IN_VENV) -m sphinx -W --keep-going -q -d build/doctrees docs build/site
	@echo "docs: open build/site/index.html"

# Six processes, each with servers of its own: most tests wait for their workers, so two cores are
# enough for all.
test: setup ## Run the tests (ARGS="-n 0 -x -k tiers": in one process, to the first failure)
	@$(PYTHON_IN_VENV) -m pytest $(TESTS) -n 6 --durations 10 $(ARGS)

repeat: setup ## Run the tests 20 times and count what failed by chance (ARGS=--help)
	@$(PYTHON_IN_VENV) scripts/repeat --tests "$(TESTS)" $(ARGS)

versions: setup ## Run the quick tests with each row of scripts/versions.toml (ARGS=5.6: with one)
	@$(PYTHON_IN_VENV) scripts/versions $(ARGS)

check: lint format types imports ## Lint, format, types, import rules

lint: setup
	.venv/bin/ruff check

format: setup
	.venv/bin/ruff format --check

types: setup
	.venv/bin/mypy

imports: setup
	.venv/bin/lint-imports --no-logo

bench: setup ## Measure against plain Celery in one run
	@$(PYTHON_IN_VENV) -m tests.benchmarks $(ARGS)

chaos: setup ## Kill and freeze workers, break Redis, and count what it did (ARGS=--quick: 2 minutes)
	@$(PYTHON_IN_VENV) -m tests.chaos $(ARGS)

moves: setup ## Move a queue of 10,000 tasks each way under load: ten minutes
	@MOVED_TASKS=10000 $(PYTHON_IN_VENV) -m pytest tests/behaviour/test_from_stock_redis.py \
		-k moves_while -n 2 --timeout 1200 $(ARGS)

foreign: setup packages ## Run Celery's own integration suite on each path (ARGS=--quick: three minutes)
	@$(PYTHON_IN_VENV) -m tests.foreign $(ARGS)

packages: setup ## Run the tests of other people's packages beside this one: a minute
	@$(PYTHON_IN_VENV) -m tests.foreign.packages

mutants: setup ## Make small mistakes in the Lua modules, and print those that no test sees
	@$(PYTHON_IN_VENV) -m tests.mutants $(ARGS)

dist: setup ## Build dist/, check it, and run the quick start of the README from the wheel
	@$(PYTHON_IN_VENV) -m tests.package

lock: ## Choose the newest allowed versions anew (constraints.txt; needs uv)
	@scripts/lock

clean: ## Remove what builds, tests and the demo left (.venv, .versions and .pythons stay)
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache \
		.hypothesis demo-report.html
	find celery_fairness django_app examples tests -name __pycache__ -type d -prune -exec rm -rf {} +
