# Every target installs what it needs. `make` lists the targets.

export UV_PYTHON_DOWNLOADS := never
# The tests start hundreds of programs, each in a third of the time if its modules are compiled.
unexport PYTHONDONTWRITEBYTECODE

# The uv of this machine, or one below .uv/.
UV := $(shell uv --version >/dev/null 2>&1 && echo uv || echo .uv/bin/uv)
OWN_UV := $(filter .uv/bin/uv,$(UV))
RUN := $(UV) run --frozen
export PATH := $(PATH):$(CURDIR)/.uv/bin
PYTHON ?= python3
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
IMAGE ?= gpushare:$(VERSION)

.DEFAULT_GOAL := help
.PHONY: help taste demo cluster down test needs trials soak lint bench bench-all bench-placement pictures hardware image release setup

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# In a separate environment, with only the packages of the command line.
taste: $(OWN_UV)  ## simulate a pod that no single GPU has room for: ten seconds, no cluster, no GPU, no root
	@$(RUN) --quiet --isolated --no-default-groups gpushare simulate --example fragmentation

demo: setup  ## follow one pod through a real Kubernetes, drawn in the terminal (root, Linux)
	$(RUN) python -m localcluster.demo

cluster: setup  ## start a cluster with gpushare and print how to use it (root, Linux)
	@$(RUN) python -m localcluster up --gpushare --nodes 3

down: setup  ## stop that cluster and delete what a demo or test run left
	@$(RUN) python -m localcluster down --all

test: needs  ## run all tests, 30 minutes, 45 on the first run; those with a cluster need root on Linux
	$(RUN) pytest -n 3 --durations=30 --durations-min=10

needs: setup  ## build and install what tests need, as `make test` does before the first test
	@$(RUN) python -m tests.needs

# VERSIONS=all (or some: `python -m tests.trials.versions --help`) adds what depends on kube-scheduler, on each
# of these versions of Kubernetes.
VERSIONS ?=
trials: setup  ## run the long trials: GPUs of containers, node setups, faults, replicas, updates, hostile objects, gangs, their containers and plans, preemption, Kueue; 68 minutes (root, Linux)
	$(RUN) python -m tests.simulation
	$(RUN) python -m tests.trials
	$(RUN) python -m tests.trials.nodes
	$(RUN) python -m tests.trials.faults
	$(RUN) python -m tests.trials.replicas
	$(RUN) python -m tests.trials.updates
	$(RUN) python -m tests.trials.hostile
	$(RUN) python -m tests.trials.gangs
	$(RUN) python -m tests.trials.gang_containers
	$(RUN) python -m tests.trials.plans
	$(RUN) python -m tests.trials.victims
	$(RUN) python -m tests.trials.preemption
	$(RUN) python -m tests.trials.queue
	$(RUN) python -m tests.trials.kueue
	$(if $(VERSIONS),$(RUN) python -m tests.trials.versions $(VERSIONS))

soak: needs  ## run the tests with all cases and the longest trials for two hours, and watch for growth
	GPUSHARE_LONG=1 $(RUN) pytest -n 3
	$(RUN) python -m tests.trials.faults
	$(RUN) python -m tests.trials --churn 60

lint: setup  ## check style, types, import rules, generated code and documents
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(RUN) lint-imports
	$(RUN) python -m protos.generate --check
	$(RUN) python -m reference --check
	$(RUN) python -m monitoring --check

bench: setup  ## measure every cost against its lower bound, in one table, 6 minutes (root, Linux)
	$(RUN) python -m bench

bench-all: setup  ## the same, and pods bound per second on up to 5,000 nodes, 30 minutes
	$(RUN) python -m bench --all

# TRACE is a folder with CSV files of Alibaba's trace openb; without it a generated trace is used.
TRACE ?=
bench-placement: setup  ## measure how much of the GPUs each placement policy allocates, beside FGD and others (20 minutes with a trace)
	$(RUN) python -m bench.placement $(if $(TRACE),--trace $(TRACE))

pictures: setup  ## take the screenshots of the live page in docs/ again (root, Linux)
	GPUSHARE_SCREENSHOTS=1 $(RUN) pytest -q -k "themes or reason_once or played" tests/integration/extender tests/integration/gpusharectl/test_serve.py

# PyTorch and JAX are those of PYTHON. What is wrong with limits does not hide the node setups.
hardware: setup  ## show what the driver of this machine reports, whether shares are kept, and which GPUs containers get (docs/dev/hardware.md)
	$(RUN) python -m bench.hardware
	@$(RUN) python -m bench.limits --python="$$(command -v $(PYTHON))"; limits=$$?; \
	$(RUN) python -m tests.trials.hardware && exit $$limits

# The first builder that works: docker counts only with its daemon. BUILDER= (or DOCKER=) names another,
# BUILD_FLAGS= adds flags for it; docs/dev/release.md.
BUILDER ?= $(or $(DOCKER),$(shell for each in docker podman buildah; do \
	if $$each info >/dev/null 2>&1; then echo $$each; break; fi; done))
BUILD_FLAGS ?= $(if $(filter buildah,$(notdir $(BUILDER))),--isolation chroot --network host --layers)
REVISION := $(shell git rev-parse HEAD 2>/dev/null)
OCI := org.opencontainers.image

# CREATED= (a time such as 2026-01-31T12:00:00Z) and BASE_DIGEST= (sha256:...) are optional.
image:  ## build the image of both programs and the command line, with docker, podman or buildah
	@test -n "$(BUILDER)" || { echo "no docker, podman or buildah here works: install one (on Debian, apt-get install buildah)"; exit 1; }
	$(BUILDER) build $(BUILD_FLAGS) $(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE)) \
	  $(if $(BASE_DIGEST),--build-arg BASE_DIGEST=$(BASE_DIGEST) --label $(OCI).base.digest=$(BASE_DIGEST)) \
	  $(if $(REVISION),--label $(OCI).revision=$(REVISION)) $(if $(CREATED),--label $(OCI).created=$(CREATED)) \
	  --build-arg VERSION=$(VERSION) -t $(IMAGE) .

release: setup  ## write image, chart, packages and checksums to dist/ (REGISTRY=, URL=; docs/dev/release.md)
	@$(RUN) python -m release --registry "$(REGISTRY)" --url "$(URL)" $(if $(BASE_IMAGE),--base-image "$(BASE_IMAGE)") \
	  $(if $(BUILD_FLAGS),--build-flags "$(BUILD_FLAGS)") $(RELEASE_FLAGS)

setup: $(OWN_UV)  ## install the Python packages and the command line gpushare into .venv
	@$(UV) sync --frozen --quiet

.uv/bin/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "gpushare needs Python 3.11 or newer: $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing); PYTHON= names another"; exit 1; }
	@echo "uv is not installed: putting it into .uv/"
	@$(PYTHON) -m venv .uv || { rm -rf .uv; echo "$(PYTHON) has no venv module: on Debian, apt-get install python3-venv"; exit 1; }
	@$(PYTHON) release/locked.py uv.lock uv > .uv/uv.txt && .uv/bin/pip install --quiet --require-hashes -r .uv/uv.txt
