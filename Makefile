# A fresh machine needs python3 and make; everything else is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help venv study test lint docs bench mutants clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "%-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## Create .venv with bbvi (editable) and the dev and docs tools

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev,docs]'
	touch $@

study: $(STAMP) ## Run the paper's Gamma-Normal time series study
	$(BIN)/python examples/gamma_normal_ts.py

test: $(STAMP) ## Run the tests and doctests, without the slow ones
	$(BIN)/python -m pytest -n 2

lint: $(STAMP) ## Check lint, format, types and import order
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy src
	$(BIN)/lint-imports

docs: $(STAMP) ## Execute the quickstart and build the documentation into site/
	$(BIN)/python docs/execute.py docs/quickstart.py
	$(BIN)/mkdocs build --strict

bench: $(STAMP) ## Run the benchmarks
	$(BIN)/python benchmarks/bench.py

mutants: $(STAMP) ## Break the code on purpose and see that the tests notice
	$(BIN)/python tests/mutants.py

clean: ## Remove what the other targets made, except .venv
	rm -rf site docs/generated docs/quickstart.md build dist
	rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +
