# make run     the assistant at http://127.0.0.1:8765, installing what it needs first
# make test    everything that must hold before a change goes in
# make models  fetch the models of the configuration
#
# Variables, here with their defaults; `make run CONFIG=configs/gpu.toml` changes one.

PYTHON = python3
CONFIG = configs/cpu.toml
# Installed first and by itself, so that no other package's looser wish brings another build.
TORCH = torch==2.13.0
# Passed to every pip install: an index, a proxy, --quiet …
PIP_ARGS =
PYTEST_ARGS =

BIN = .venv/bin
LONG = tests/real/test_target_smollm2.py
PIP = $(BIN)/python -m pip --disable-pip-version-check install $(PIP_ARGS)

.PHONY: install run models test clean

install: .venv/installed

# Runs again when what is needed changes, and takes up an installation that broke off.
.venv/installed: pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "This needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=/path/to/python3.12"; \
	    exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv"; \
	    exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) --upgrade 'pip>=25.1'
	$(PIP) $(TORCH)
	$(PIP) --editable '.[test]'
	@touch $@

models: install
	@$(BIN)/assistant models pull --config $(CONFIG)

run: models
	@$(BIN)/assistant serve --config $(CONFIG)

# What only computes runs in two processes, each file in one of them so that what its tests share is
# made once, the longest first; what is played in real time has the machine to itself.
test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/assistant models pull
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadscope --no-loadscope-reorder \
	    $(LONG) tests/unit tests/golden tests/timing tests/protocol $(PYTEST_ARGS)
	$(BIN)/pytest tests/browser tests/real $(LONG:%=--ignore=%) $(PYTEST_ARGS)

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
