# make run    set up, and train CartPole          make check      format, lint, types, quick tests
# make test   set up, and run the quick tests     make test-slow  the slow tests that CI runs after them
# make test-all   all tests, with all combinations of parameters and long learning runs
# make docs   the documentation as a site in build/docs, with its links checked
# make bench  the benchmarks (an hour or so; nothing else should run on the machine)
# make chaos  200 runs that are killed, stopped and cut off at random (an hour or two)
# make zoo    every bundled graph with five seeds, and docs/zoo.md (hours; it continues where it was stopped)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.flowrl-installed
TYPED := .mypy_cache/installed
PYTEST := $(BIN)/pytest --dist worksteal -rs
# Packages are compiled when they are first imported; pip would compile all of them, most of which are never imported.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-slow test-all check types docs bench chaos zoo clean
.DEFAULT_GOAL := run

run: $(STAMP)
	$(BIN)/flowrl run cartpole_dqn

test: $(STAMP)
	$(PYTEST) -n 2 -m "not slow" tests

# one worker more, because slow tests often wait for processes
test-slow: $(STAMP)
	$(PYTEST) -n 3 -m "slow and not exhaustive" tests

test-all: $(STAMP)
	$(PYTEST) -n 2 --hypothesis-profile=full tests

check: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(MAKE) --no-print-directory types
	$(MAKE) --no-print-directory test

# mypy looks for flowrl.nodes in flowrl/nodes, so it is shown the packages as they are installed
types:
	@rm -rf $(TYPED) && mkdir -p $(TYPED)/flowrl
	@ln -s $(CURDIR)/flowrl/* $(CURDIR)/nodes $(CURDIR)/graphs $(TYPED)/flowrl
	MYPYPATH=$(TYPED) $(BIN)/mypy

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f docsite/mkdocs.yml

bench: $(STAMP)
	$(BIN)/python -m bench

chaos: $(STAMP)
	FLOWRL_TESTS_HARM_CLUSTERS=1 $(BIN)/pytest -n 0 -rs tests/cluster/test_slurm.py tests/cluster/test_ray.py tests/cluster/test_launcher_faults.py
	$(BIN)/python -m tests.sites.chaos

zoo: $(STAMP)
	$(BIN)/python -m bench zoo

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache

$(STAMP): setup.py setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "flowrl needs Python 3.10 or newer; 'make PYTHON=python3.11' names another one"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "this Python cannot make virtual environments; on Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	$(BIN)/flowrl schema -o graphs/flowrl.schema.json >/dev/null
	@touch $@
