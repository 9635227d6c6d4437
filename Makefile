PYTHON ?= python3
BIN := .venv/bin
NATIVE := $(wildcard src/resolvent/executors/native/*.cpp src/resolvent/executors/native/*.h)

.PHONY: run test fuzz bench format clean

run: .venv/installed
	$(BIN)/resolvent train

# jaxtyping's run-time checks break torch.compile, so the marked tests run in a pass of their own without them.
test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/pytest -q -n 2 -m "not unchecked and not long" --jaxtyping-packages=resolvent,beartype.beartype
	$(BIN)/pytest -q -n 2 -m unchecked

# Laws over machines that are drawn anew in each run.
fuzz: .venv/installed
	$(BIN)/pytest -q -n 2 -m long --hypothesis-profile=long

bench: .venv/installed
	$(BIN)/resolvent bench --out benchmarks/results

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/installed: pyproject.toml constraints.txt setup.py $(NATIVE)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[train,onnx,dev]"
	touch $@

clean:
	rm -rf .venv
