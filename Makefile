# Everything happens in .venv, which the first target that needs it makes. Only python3 (3.11 or newer) and make are
# needed beforehand; another interpreter: make PYTHON=/path/to/python3.12 test

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
DOCS := .venv/.docs
ZOO := .zoo/packages

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv lint test docs wheel matrix demo bench-planning bench-inference bench-gpu bench-load bench-steps bench-train zoo sweep long faults soak hunt hunt-files

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## make .venv with autotp (editable), the pinned packages and the test tools

$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "autotp needs Python 3.11 or newer, and there is no $(PYTHON) here" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"autotp needs Python 3.11 or newer, and $(PYTHON) is {v[0]}.{v[1]}: try make PYTHON=/path/to/python3.11")'
	@echo "installing autotp and its pinned packages into .venv (the first time takes minutes)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,demo]'
	@touch $@

lint: $(INSTALLED) ## ruff (rules and format), and mypy of the package and of a project that uses it
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy autotp
	$(BIN)/mypy --config-file tests/typed/mypy.ini --cache-dir .mypy_cache/user tests/typed/project.py

test: lint ## lint, then all tests
	$(BIN)/python -m pytest -q -n auto --dist loadfile --no-loadscope-reorder

$(DOCS): $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(DOCS) ## build this documentation as a site in site/; a warning or a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Beside .venv, not in it: a torchvision that does not fit torch's build breaks the import of transformers, and litgpt asks for
# another huggingface_hub. Without their dependencies, since what they need besides is in .venv or in the list.
$(ZOO)/.installed: $(INSTALLED)
	@mkdir -p $(ZOO)
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["zoo"], sep="\n")' > .zoo/wanted
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --target $(ZOO) -r .zoo/wanted
	@touch $@

sweep: $(INSTALLED) ## what `make test` runs a sample of: more families on real ranks, longer lists of cases, more killed runs
	$(BIN)/python -m pytest -q -n auto --dist worksteal --sweep

long: $(INSTALLED) ## what takes too long for CI (every task on the test device, long lists of made-up programs), and open cases
	$(BIN)/python -m pytest -q -n auto --long

faults: $(INSTALLED) ## every kind of failure of one rank in every phase: the others must hear of it (half an hour)
	$(BIN)/python -m pytest -q -n 1 --long tests/faults

soak: $(INSTALLED) ## half an hour of training that is killed again and again and goes on at other sizes: make soak ARGS="--minutes 60"
	exec env OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -W ignore -m tests.checkpoint.soak $(ARGS)

hunt-files: $(INSTALLED) ## 5,000 mutated plans, headers, indices, rule and hardware files each: refused, or right (half an hour)
	HUNT=5000 $(BIN)/python -m pytest -q -n auto --sweep tests/hunt

wheel: $(INSTALLED) ## build the wheel and the source distribution, and run what the README says from the wheel
	$(BIN)/python -m tests.packaging.stranger

matrix: $(INSTALLED) ## the oldest, pinned and newest torch and transformers, each in .matrix/ (3 GB each); one: make matrix ARGS=newest
	$(BIN)/python -m tests.packaging.matrix $(ARGS)

demo: $(INSTALLED) ## cut a real model over two local ranks and compare it with the whole one
	$(BIN)/autotp demo

bench-planning: $(INSTALLED) ## time the planner
	$(BIN)/python benchmarks/planning.py

bench-inference: $(INSTALLED) ## time prefill and decode on two ranks beside other libraries, where installed
	$(BIN)/python benchmarks/inference.py

bench-gpu: $(INSTALLED) ## time one rank's shard of large blocks, where there is a GPU
	$(BIN)/python benchmarks/gpu.py

bench-load: $(INSTALLED) ## memory, bytes and time of loading 1.5 GB on 4 ranks (transformers' side needs accelerate)
	$(BIN)/python benchmarks/load.py

bench-steps: $(INSTALLED) ## 200 AdamW steps of six families in float64 at three sizes, beside the dense ones
	PYTHONPATH=. $(BIN)/python benchmarks/steps.py

bench-train: $(INSTALLED) ## time a training step on two ranks, and what a rank holds, beside other ways to cut
	$(BIN)/python benchmarks/train.py

zoo: $(ZOO)/.installed ## cut every family of transformers and of five more libraries, compare, write docs/COVERAGE.md; some: make zoo ARGS="--only gpt2 --tp 2,3"
	exec env PYTHONPATH=.:$(ZOO) OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m tests.zoo --coverage docs/COVERAGE.md $(ARGS)

hunt: $(INSTALLED) ## programs made at random, cut, against themselves whole: make hunt ARGS="--minutes 60 --seed 1000"
	exec env OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m tests.contract.hunt $(ARGS)
