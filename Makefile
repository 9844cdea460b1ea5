# Two commands do all the set-up: `make demo` and `make test`. Each makes .venv if there is none.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3.14 python3; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
# One stamp per set of extras: a target installs only what it needs.
STAMP = $(VENV)/.installed-

.PHONY: demo test lint bench bench-gpu docs notebooks clean

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with venv is needed (on Debian: python3-venv);" \
		"set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade pip

$(STAMP)%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[$*]'
	@touch $@

demo: $(STAMP)demo
	$(BIN)/python examples/digits.py --out out

test: $(STAMP)test
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

lint: $(STAMP)test $(STAMP)lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/pyright --pythonpath $(BIN)/python
	cd docs && PATH="$(abspath $(BIN)):$$PATH" $(abspath $(BIN))/pyright --ignoreexternal --verifytypes statetransform

bench: $(STAMP)bench
	$(BIN)/python -m benchmarks --report docs/measured.md --pages docs/memory.md docs/examples/waveform_inversion.md docs/examples/digits.md

# Says so and succeeds where there is no GPU. JAX for the GPU has to be installed in the environment: see docs/installation.md.
bench-gpu: $(STAMP)bench
	$(BIN)/python -m benchmarks.gpu

docs: $(STAMP)docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

# The notebooks of pages, with their outputs, after a page has changed.
notebooks: $(STAMP)test $(STAMP)nvidia $(STAMP)adapters
	$(BIN)/python docs/_extensions/notebooks.py

clean:
	rm -rf $(VENV) docs/_build out
