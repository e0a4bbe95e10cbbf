# Two commands do everything on a machine with Python 3.11 or newer: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
FLOWER := .venv-flower
RAY := .venv-ray
OUT ?= demo-run
export OMP_NUM_THREADS ?= 1
# Modules are compiled once, not by each process that a test starts.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install demo page-checkers test test-slow test-all test-seconds test-flower test-ray lint pyright size golden bench gpu wheel test-wheel docs docs-links pictures clean

help:
	@echo "make demo        plan, train, attack, audit and report on bundled digits"
	@echo "make test        the tests that are not slow, in at most four minutes on two cores"
	@echo "make test-all    every test, quick and slow, in one session"
	@echo "make test-seconds writes what the tests of the last test-all took to tests/seconds.txt"
	@echo "make test-flower the tests that need Flower, in an environment of their own"
	@echo "make test-ray    the tests that need ray, in an environment of their own"
	@echo "make lint        ruff, mypy; make pyright is a second opinion"
	@echo "make size        how large the code is, beside its limits and goals"
	@echo "make golden      whether small runs leave what they left before, bit for bit"
	@echo "make docs        the documentation as a site, in build/docs/html, and its notebooks as .ipynb"
	@echo "make pictures    runs the demo, and draws the pictures of README and docs/ from it"
	@echo "make docs-links  whether links to other sites are alive; needs a network"
	@echo "make test-wheel  what a wheel may lack: files, modules, commands, a short demo"
	@echo "make bench       the benchmarks"
	@echo "make gpu         on a machine with a CUDA device: its tests, the demo and benchmarks on it"

install: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[train,dev]"
	@touch $@

# Only what an earlier demo left under the usual name is deleted.
demo: $(READY)
	@if [ "$(OUT)" = demo-run ] && [ -f demo-run/ledger.jsonl ]; then rm -rf demo-run; fi
	$(BIN)/overhear demo --out $(OUT)

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadscope -q -m "not slow" $(PYTEST_ARGS)

# What looks at pages beside the browser: optional, so that tests run without npm.
page-checkers: build/page-checkers/.installed

build/page-checkers/.installed: tests/site/package.json
	mkdir -p build/page-checkers && cp tests/site/package.json build/page-checkers/
	npm install --prefix build/page-checkers --silent --no-audit --no-fund --fetch-timeout=20000 --fetch-retries=1
	@touch $@

test-slow: $(READY)
	@$(MAKE) --silent page-checkers >/dev/null 2>&1 || echo "no npm here: pages are not held to axe-core and the validator"
	$(BIN)/python -m pytest -n 2 --dist loadscope -q -m slow $(PYTEST_ARGS)

# One session collects once, and leaves what each test took for `make test-seconds`.
test-all: $(READY)
	@$(MAKE) --silent page-checkers >/dev/null 2>&1 || echo "no npm here: pages are not held to axe-core and the validator"
	$(BIN)/python -m pytest -n 2 --dist loadscope -q --junitxml build/seconds.xml $(PYTEST_ARGS)

# Which tests take longer than a quick one may: tests/seconds.txt, by what they took in `make test-all`.
test-seconds:
	$(BIN)/python tests/seconds.py build/seconds.xml

# Flower brings other versions of typer and rich than the command line is tested with.
test-flower: $(FLOWER)/.installed
	$(FLOWER)/bin/python -m pytest -q tests/adapters/flower $(PYTEST_ARGS)

# Ray takes minutes to begin and to end, and has no build for each new Python.
test-ray: $(RAY)/.installed
	$(RAY)/bin/python -m pytest -q tests/runs/sweep/test_sweep.py -k ray $(PYTEST_ARGS)

$(RAY)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[train,dev,ray]"
	@touch $@

$(FLOWER)/.installed: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-flower.txt --editable ".[train,flower]" "flwr[simulation]" "pytest>=8.3"
	@touch $@

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# By hand: of 32 planted faults of kinds it finds 24, and mypy --strict 28.
pyright: $(READY)
	$(BIN)/pyright

size: $(READY)
	$(BIN)/python benchmarks/size.py $(SIZE_ARGS)

golden: $(READY)
	$(BIN)/python benchmarks/compare_trees.py tests/golden . $(GOLDEN_ARGS)

bench: $(READY)
	$(BIN)/python benchmarks/engine.py --quick
	$(BIN)/python benchmarks/rounds.py --quick
	$(BIN)/python benchmarks/accounting.py --quick
	$(BIN)/python benchmarks/views.py --quick

# Tests marked gpu, the demo, and the benchmarks' columns of the device, into benchmarks/results/.
gpu: $(READY)
	$(BIN)/python benchmarks/on_device.py $(GPU_ARGS)

wheel: $(READY)
	rm -rf build/bdist* build/lib build/wheel dist
	$(BIN)/python -m build --quiet --wheel

# Warnings are errors: a dead link, a missing picture, a page that no other leads to.
docs: $(READY)
	$(BIN)/sphinx-build -q -W --keep-going -b html -d build/docs/doctrees docs build/docs/html
	for one in docs/notebooks/*.py; do $(BIN)/jupytext --quiet --to ipynb $$one --output build/docs/html/notebooks/$$(basename $$one .py).ipynb; done
	@echo "build/docs/html/index.html"

# The digit of README and docs/ as the demo's attack rebuilt it.
pictures: demo
	$(BIN)/python docs/pictures/draw.py $(OUT)

docs-links: $(READY)
	$(BIN)/sphinx-build -q -b linkcheck -D nb_execution_mode=off -d build/docs/doctrees-links docs build/docs/links

# The unpacked wheel comes before the checkout on the path; the tests are those of tests/wheel.py.
test-wheel: wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/wheel dist/*.whl
	PYTHONPATH=build/wheel:. $(BIN)/python -m pytest -q tests/wheel.py $(PYTEST_ARGS)
	rm -rf build/base && $(PYTHON) -m venv build/base
	build/base/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl
	build/base/bin/python tests/base_install.py

clean:
	rm -rf $(VENV) $(FLOWER) $(RAY) build dist *.egg-info demo-run
