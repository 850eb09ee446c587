# A fresh machine needs python3 and make; everything else is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PEERS := .venv-peers/.installed

.DEFAULT_GOAL := help
.PHONY: help venv study test compat lint docs bench bench-peers mutants clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## Create .venv with bbvi (editable) and the dev and docs tools

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev,docs]'
	-$(BIN)/python -m pip install --quiet --editable '.[cluster]' # where it does not install its tests are skipped
	touch $@

study: $(STAMP) ## Run the paper's empirical study and write its report; options by ARGS, as in ARGS=--quick
	$(BIN)/bbvi study $(ARGS)

test: $(STAMP) ## Run the tests and doctests, without the slow ones
	$(BIN)/python -m pytest -n 2 --dist worksteal

compat: ## Run the tests marked compat on every Python found, dependencies newest and oldest; PYTHONS="..." or ONLY=newest
	$(PYTHON) tools/compat.py --pythons "$(PYTHONS)" --only "$(ONLY)"

lint: $(STAMP) ## Check lint, format, types and import order
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy src
	$(BIN)/lint-imports

docs: $(STAMP) ## Execute the quickstart, how-tos and gallery, and build the documentation into site/
	$(BIN)/python docs/execute.py docs/quickstart.py docs/howto/*.py docs/gallery/*.py
	$(BIN)/mkdocs build --strict

bench: $(STAMP) ## Run the benchmarks
	$(BIN)/python benchmarks/bench.py

bench-peers: $(STAMP) $(PEERS) ## Compare with NumPyro, Pyro and PyMC, installed into .venv-peers; about 40 minutes
	$(BIN)/python benchmarks/peers.py

# torch without CUDA where pip can find such a build, else the usual one
$(PEERS): benchmarks/peers/requirements.txt
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet 'torch==2.13.0+cpu' || .venv-peers/bin/python -m pip install --quiet torch
	.venv-peers/bin/python -m pip install --quiet --requirement benchmarks/peers/requirements.txt
	touch $@

mutants: $(STAMP) ## Break the code on purpose and see that the tests notice
	$(BIN)/python tests/mutants.py

clean: ## Remove what the other targets made, except the .venv folders
	rm -rf site docs/generated docs/quickstart.md docs/howto/generated docs/howto/*.md docs/gallery/generated docs/gallery/*.md build dist
	rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +
