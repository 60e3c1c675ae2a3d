# Every target makes its own environment on first use: Python >= 3.11 and make are all it takes.
PYTHON ?= python3
VENV := .venv
BENCH_VENV := .bench-venv
INTEGRATIONS_VENV := .integrations-venv
RELEASE_VENV := .release-venv
RUN := $(VENV)/bin/python
PIP_QUIET := --quiet --disable-pip-version-check

.PHONY: demo test test-integrations test-slow test-oldest test-newest test-release dist fuzz lint lint-ruff lint-types lint-imports lint-spelling docs bench clean

demo: $(VENV)/ready
	$(VENV)/bin/minsharp demo

test: lint docs
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n 2 -m "not slow" --durations=20

test-slow: $(VENV)/ready
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n 2 -m slow

# Networks of other libraries, as they come, in an environment of their own.
test-integrations: $(INTEGRATIONS_VENV)/ready
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(INTEGRATIONS_VENV)/bin/python -m pytest -n 2 tests/integrations

# The least versions that pyproject.toml asks for, and the newest that there are.
test-oldest test-newest: test-%: .bounds-venv-%/ready
	OMP_NUM_THREADS=1 .bounds-venv-$*/bin/python -m pytest -n 2 -m "not slow"

# What is published: built, checked, and installed in an empty environment.
dist: $(RELEASE_VENV)/ready
	rm -rf dist
	$(RELEASE_VENV)/bin/python -m build --outdir dist

test-release: dist
	OMP_NUM_THREADS=1 $(RELEASE_VENV)/bin/python -m pytest --confcutdir tests/release tests/release

# 10,000 random networks, every claim checked on each: about an hour on two cores. FUZZ="--count 500 --start 20000" for others.
FUZZ ?= --count 10000
fuzz: $(VENV)/ready
	OMP_NUM_THREADS=1 $(RUN) -m tests.fuzz $(FUZZ)

# What pre-commit runs before a commit, each under its own name.
lint: lint-ruff lint-types lint-imports lint-spelling

lint-ruff: $(VENV)/ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

lint-types: $(VENV)/ready
	$(VENV)/bin/mypy

lint-imports: $(VENV)/ready
	$(VENV)/bin/lint-imports --no-logo --cache-dir .mypy_cache/imports

lint-spelling: $(VENV)/ready
	$(VENV)/bin/codespell

docs: $(VENV)/ready
	$(VENV)/bin/zensical build --strict --clean

# Each program writes its own tables, into docs/performance.md or the page that speaks of them. Calibration goes on from
# what it has stored; reading needs the networks of timm.
bench: $(BENCH_VENV)/ready $(INTEGRATIONS_VENV)/ready
	$(BENCH_VENV)/bin/python -m benchmarks.run
	$(BENCH_VENV)/bin/python -m benchmarks.transformers
	$(BENCH_VENV)/bin/python -m benchmarks.estimates
	$(BENCH_VENV)/bin/python -m benchmarks.rescaling
	$(BENCH_VENV)/bin/python -m benchmarks.large
	$(BENCH_VENV)/bin/python -m benchmarks.smooth
	$(BENCH_VENV)/bin/python -m benchmarks.calibration
	HF_HUB_OFFLINE=1 $(INTEGRATIONS_VENV)/bin/python -m benchmarks.reading

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"minsharp needs Python >= 3.11, {sys.executable} is {v.major}.{v.minor}; try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install $(PIP_QUIET) --constraint constraints.txt --editable '.[dev]'
	@touch $@

# The peers pin or pull other versions of torch, so they go in last, without their dependencies.
$(BENCH_VENV)/ready: pyproject.toml constraints.txt benchmarks/peers.txt
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install $(PIP_QUIET) --constraint constraints.txt --editable '.[experiments]'
	$(BENCH_VENV)/bin/python -m pip install $(PIP_QUIET) --no-deps --requirement benchmarks/peers.txt
	@touch $@

# A library joins by a line in one of the two files: the second is for those that would pull another torch.
INTEGRATIONS := tests/integrations/requirements.txt tests/integrations/without-dependencies.txt
$(INTEGRATIONS_VENV)/ready: pyproject.toml constraints.txt $(INTEGRATIONS)
	$(PYTHON) -m venv $(INTEGRATIONS_VENV)
	$(INTEGRATIONS_VENV)/bin/python -m pip install $(PIP_QUIET) --constraint constraints.txt --editable . --requirement $(firstword $(INTEGRATIONS))
	$(INTEGRATIONS_VENV)/bin/python -m pip install $(PIP_QUIET) --no-deps --requirement $(lastword $(INTEGRATIONS))
	@touch $@

# Without constraints, pip takes the newest.
.bounds-venv-newest/ready: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install $(PIP_QUIET) --upgrade --editable '.[test]'
	@touch $@

.bounds-venv-oldest/ready: pyproject.toml tests/oldest.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install $(PIP_QUIET) --constraint tests/oldest.txt --editable '.[test]'
	@touch $@

$(RELEASE_VENV)/ready: tests/release/requirements.txt
	$(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python -m pip install $(PIP_QUIET) --requirement $<
	@touch $@

clean:
	rm -rf dist $(VENV) $(BENCH_VENV) $(INTEGRATIONS_VENV) $(RELEASE_VENV) .bounds-venv-* .mypy_cache .pytest_cache .ruff_cache .hypothesis .cache site
