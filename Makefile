# make train   make the environment, then train a small Llama 3 on real text
# make test    everything CI checks: style, types, imports between rooms, tests

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: train test test-training-loops test-operators test-depth benchmark plan-recipes clean

train: $(VENV)/.installed
	$(BIN)/wholestep train llama3_debug

test: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --numprocesses 2

# Every sample of PyTorch's operator database (the tests take a tenth), as docs/operators.md: half an hour on two cores.
test-operators: $(VENV)/.installed-test
	PYTHONPATH=tests $(BIN)/python -m operators.report

# The examples in every mode on the tpu device, against plain PyTorch.
test-training-loops: $(VENV)/.installed-test
	$(BIN)/python -m pytest --numprocesses 2 -m long tests/examples

# Every way to run the layers with every policy on every mesh (CI takes a third).
test-depth: $(VENV)/.installed-test
	$(BIN)/python -m pytest --numprocesses 2 -m 'long or not long' tests/parity/test_depth.py

benchmark: $(VENV)/.installed
	$(BIN)/python benchmarks/step_time.py

# All that are made for a topology, or RECIPES="NAME ...": minutes each, unless compiled here before.
plan-recipes: $(VENV)/.installed-test
	$(BIN)/python benchmarks/plan_recipes.py $(RECIPES)

# torch comes first and alone: its CPU build where the package index offers one, else the plain release, which brings
# gigabytes of libraries for other accelerators.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "installing the tested versions (a few minutes the first time)"
	$(PIP) torch==2.13.0+cpu 2>/dev/null || $(PIP) torch==2.13.0
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) runs
