# Every target makes its own virtual environment on first use; Python 3.11 and make are all it takes.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PROTO  := proto/feddbp/v1/federation.proto
SITE   := docs/_build
MERMAID_VERSION := $(shell sed -nE 's/^mermaid_version = "(.*)"/\1/p' docs/conf.py)

.PHONY: help demo test lint format chromium prometheus proto docs results chaos ray-test fuzz soak bench gpu-check pythons compose-test lock sbom wheel clean
.DEFAULT_GOAL := help

help:           ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# First what is locked, by hash and with the build backend; then the rest, which is torch, and this project without
# the isolated environment into which pip would fetch another backend. The hashes are for one platform only.
$(STAMP): pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -m venv $(VENV)
	@if [ "$$($(PYTHON) -c 'import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_platform())')" = "3 11 linux-x86_64" ]; \
	then echo "installing by hash, 2.4 GB: a few minutes"; $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock; \
	else echo "requirements.lock is for another platform: installing by version"; \
	  $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt hatchling; fi
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## a whole federation on this machine: one server, eight clients, ten rounds
	$(BIN)/feddbp demo $(ARGS)

# The tests in tests/browser need it, and are skipped without; only root can install it.
chromium:       ## install Chromium for the tests of pages, where it is missing
	@command -v chromium chromium-browser google-chrome > /dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; } || \
	  echo "chromium is missing and was not installed: the tests in tests/browser will be skipped"

# tests/integration/test_prometheus.py needs it.
prometheus:     ## install Prometheus for the test of metrics, where it is missing
	@command -v prometheus > /dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y --no-install-recommends prometheus; } || \
	  echo "prometheus is missing and was not installed: its test will be skipped"

test: $(STAMP)  ## all tests but those marked full; prints the 20 slowest
	$(BIN)/python -m pytest -n auto --dist loadfile --durations=20 $(PYTEST_ARGS)

lint: $(STAMP)  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(STAMP) ## regenerate the modules beside the protocol definition
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=proto --grpc_python_out=proto \
	  --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
	  --mypy_out=proto --mypy_grpc_out=proto $(PROTO)

docs: $(STAMP) $(SITE)/mermaid/mermaid.min.js ## this documentation as a site in docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d $(SITE)/doctrees docs $(SITE)/html
	$(BIN)/python docs/check_links.py $(SITE)/html

results: $(STAMP) ## the tables of docs/results.md and of the README, and their figure, from the kept cells
	PYTHONPATH=docs $(BIN)/python -m results_page

# Draws the diagrams. Without it, where npm is missing or offline, pages with a diagram load it when they are viewed.
$(SITE)/mermaid/mermaid.min.js: docs/conf.py
	@mkdir -p $(@D)
	@npm pack --silent --fetch-retries=0 --fetch-timeout=20000 --pack-destination $(@D) mermaid@$(MERMAID_VERSION) > /dev/null && \
	  tar -xzmf $(@D)/mermaid-$(MERMAID_VERSION).tgz -C $(@D) --strip-components=2 package/dist/mermaid.min.js || \
	  echo "docs: npm could not fetch mermaid $(MERMAID_VERSION); diagrams will need a network when viewed"
	@rm -f $(@D)/*.tgz

chaos: $(STAMP) ## kill either side at every point, cut the network in every way
	$(BIN)/python -m pytest tests/chaos -m "full or not full" -n auto

ray-test: $(STAMP) ## experiments on a Ray of two nodes on this machine, one of which is killed
	$(BIN)/python -m pytest tests/ray -m "full or not full"

fuzz: $(STAMP)  ## a hundred thousand malformed calls against a live server, as many answers against a client
	$(BIN)/python -m pytest tests/fuzz -m "full or not full" -s

soak: $(STAMP)  ## two hundred light clients, three hundred rounds
	$(BIN)/python -m benchmarks.soak

bench: $(STAMP) ## measured ratios against the bars we hold ourselves to
	$(BIN)/python -m benchmarks

gpu-check: $(STAMP) ## a few minutes on this machine's GPU, or on its CPU: what to report about it
	$(BIN)/feddbp gpu-check

pythons: $(STAMP) ## install and start the server with Python 3.12 and 3.13, where they are on this machine
	$(BIN)/python deploy/pythons.py 3.12 3.13

compose-test: $(STAMP) ## federations in containers, killed, paused and cut off in the middle of their run
	$(BIN)/python -m deploy.trials

lock: $(STAMP)  ## requirements.lock from constraints.txt: the hash of every version
	$(BIN)/python deploy/lock.py constraints.txt requirements.lock

sbom: $(STAMP)  ## dist/sbom.json: what is installed, as CycloneDX
	@mkdir -p dist
	$(BIN)/python deploy/sbom.py dist/sbom.json

wheel: $(STAMP) ## the wheel and the source archive, into dist/
	$(BIN)/python -m build --no-isolation --outdir dist .

clean:          ## remove the virtual environment, the built documentation, caches and dist/
	rm -rf $(VENV) $(SITE) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
