# make demo       fetch SmolLM2-135M-Instruct, make a bundle of it in seconds, answer a prompt
# make test       the fast tests          make test-all   the slow ones too
# make test-cluster  those of several machines, which need Ray (600 MB)
# make lint       ruff, its format, who imports whom
# make types      mypy --strict on edge and edge.runtime
# make options    what follows from the options' fields: keywords for type checkers, docs/reference/options.md
# make docs       the pages of docs/ as a site in build/site
# make fuzz       every kind of input damaged by the thousand, for five minutes   (FUZZ=short: one or two; FUZZ=nightly: hours; SEED=N)
# make android    the Kotlin runtime for apps and the Android app: jar, tests and APK   (AAR=onnxruntime-android.aar)
# make bench      what the benchmarks need and how to start them

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= python3
# A package index with CPU-only torch wheels, where pip's own index would bring CUDA packages. CONTRIBUTING.md says when.
TORCH_INDEX ?=
MODEL ?= smollm2-135m-instruct
PROMPT ?= Why is the sky blue? Answer in two sentences.

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
JVM := command -v mvn > /dev/null && command -v javac > /dev/null
SOURCES := pyproject.toml constraints.txt
# A built wheel of edge-lm-kernels, which is taken instead of building one. 'off': onnxruntime's own kernels alone.
KERNELS ?= $(lastword $(wildcard kernels/dist/*.whl))

# Tests run beside each other, each with a core of its own (tests/conftest.py). ARGS="-n 0": one after another.
BESIDE := --numprocesses logical --maxprocesses 4 --dist worksteal

# How long `make fuzz` takes, what its cases are drawn from, and what else python -m fuzz is given.
FUZZ ?= usual
SEED ?=

.PHONY: demo test test-all test-cluster lint types options docs fuzz android bench clean

demo: $(VENV)/.gguf $(VENV)/.kernels
	$(BIN)/edge run $(MODEL) "$(PROMPT)"

test: $(VENV)/.test $(VENV)/.kernels
	@$(JVM) || echo "There is no JDK with Maven here: the tests of the Kotlin runtime are left out."
	$(BIN)/python -m pytest -m "not slow" $(BESIDE) $(ARGS)

test-all: $(VENV)/.test $(VENV)/.kernels
	$(BIN)/python -m pytest $(ARGS)

test-cluster: $(VENV)/.cluster $(VENV)/.kernels
	$(BIN)/python -m pytest tests/cluster $(ARGS)

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.test
	$(BIN)/python -m mypy -p edge

options: $(VENV)/.test
	$(BIN)/python -m tools.options

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

fuzz: $(VENV)/.test $(VENV)/.kernels
	$(BIN)/python -m fuzz --length $(FUZZ) $(if $(SEED),--seed $(SEED)) $(ARGS)

android: $(VENV)/.test
	@$(JVM) || { echo "This needs a JDK and Maven (Debian: apt install openjdk-17-jdk-headless maven)."; exit 1; }
	mvn --quiet --batch-mode --file android_demo package -DskipTests
	$(BIN)/python -m pytest tests/android
	$(BIN)/python android_demo/app/build_apk.py $(if $(AAR),--onnxruntime-aar $(AAR),--without-onnxruntime)
	@ls android_demo/edge-runtime/target/*.jar android_demo/app/target/*.apk

bench:
	@echo "The benchmarks run this project beside its peers, whose packages stand in the extra 'bench':"
	@echo "  $(BIN)/python -m pip install -c constraints.txt -e '.[export,audio,bench]'"
	@echo "  $(BIN)/python benchmarks/decoder_vs_peers.py --help    a decoder at 4 bits"
	@echo "  $(BIN)/python benchmarks/first_answer.py --help        from a GGUF file to the first token"
	@echo "  $(BIN)/python benchmarks/front.py --help               perplexity against size and speed, next to llama.cpp"
	@echo "  $(BIN)/python benchmarks/encoder_decoder.py --help     Whisper, a T5 translator, and their quality"

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "edge needs Python 3.11 or later and '$(PYTHON)' is none; name one: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.lint: $(SOURCES) | $(VENV)/bin/python
	$(PIP_INSTALL) ruff import-linter
	@touch $@

$(VENV)/.gguf: $(SOURCES) | $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[gguf]'
	@touch $@

# Kernels of our own, where they were measured: they need a C++ compiler, and edge runs without them too.
$(VENV)/.kernels: $(wildcard kernels/*.* kernels/src/*.* kernels/edge_kernels/*.py) | $(VENV)/bin/python
	@if [ "$(KERNELS)" = off ]; then \
		echo "Kernels: onnxruntime's, as asked for."; \
	elif [ -n "$(KERNELS)" ]; then \
		echo "Kernels: installing $(KERNELS)."; $(PIP_INSTALL) --force-reinstall $(KERNELS); \
	elif ! uname -m | grep -qE '^(x86_64|amd64)$$'; then \
		echo "Kernels: onnxruntime's. Those of edge were measured on x86 alone; pip install ./kernels builds them."; \
	elif ! command -v c++ > /dev/null; then \
		echo "Kernels: onnxruntime's. Those of edge are faster, but there is no C++ compiler (c++) here to build them."; \
	elif $(PIP_INSTALL) ./kernels; then \
		echo "Kernels: those of edge, which were built here and answer faster than onnxruntime's."; \
	else \
		echo "Kernels: onnxruntime's. Those of edge are faster, but could not be built, for the reason above."; \
	fi
	@touch $@

$(VENV)/.docs: $(SOURCES) | $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[docs]'
	@touch $@

$(VENV)/.cluster: $(VENV)/.test
	$(PIP_INSTALL) --editable '.[cluster]'
	@touch $@

$(VENV)/.test: $(SOURCES) | $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[tune,serve,test]'
	@touch $@ $(VENV)/.gguf $(VENV)/.lint
