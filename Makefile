# Everything happens in .venv; nothing is installed outside of it. `make run` and `make test` set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYTHONDONTWRITEBYTECODE :=  # the tests start hundreds of processes, and each would compile everything again

.PHONY: run test test-full setup check bench campaign demo postgres lock clean

run: $(VENV)/.runtime
	@$(BIN)/athena serve

demo: $(VENV)/.runtime
	@$(BIN)/python examples/tour.py

setup: $(VENV)/.dev
	@echo "Setup done: make test runs the tests, make run starts the server"

# Four workers for two cores: tests also wait, for other processes and for timeouts.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 4 --dist worksteal

test-full: $(VENV)/.dev
	ATHENA_TEST_FULL=1 $(BIN)/python -m pytest -n 2 --dist worksteal --timeout 3600

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/code_metrics.py --check

bench: $(VENV)/.dev
	$(BIN)/python -m bench

# make campaign MINUTES=60 ONLY="kills power"
campaign: $(VENV)/.dev
	$(BIN)/python -m campaign --write --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

postgres: $(VENV)/.dev
	@$(BIN)/python scripts/postgres.py

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

# uv installs in seconds; pip takes half a minute and is always there.
install = @if command -v uv >/dev/null 2>&1; \
	then uv pip install -q --python $(BIN)/python --require-hashes -r $(1) \
	  && uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .; \
	else $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r $(1) \
	  && $(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .; fi

$(VENV)/.runtime: requirements.lock pyproject.toml | $(VENV)/bin/python
	@test -e $(VENV)/.dev || echo "Setting up .venv (half a minute, once)"
	$(call install,requirements.lock)
	@touch $@

$(VENV)/.dev: requirements-dev.lock pyproject.toml | $(VENV)/bin/python
	@echo "Setting up .venv with the test tools (a minute, once)"
	$(call install,requirements-dev.lock)
	@touch $@ $(VENV)/.runtime

# Renew both locks; needs uv. No index address may end up in them.
lock:
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --extra postgres --group build -o requirements.lock pyproject.toml
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --extra postgres --group build --group dev -c requirements.lock -o requirements-dev.lock pyproject.toml

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
