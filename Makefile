# espalier: `make demo` and `make test` set everything up themselves.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
# Distributions beside the core, each in the folder of its package.
PACKAGES := $(patsubst %/pyproject.toml,%,$(wildcard components/*/pyproject.toml))
BESIDE := $(PACKAGES:%=--editable %)
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_RUN ?= runs/demo
# Where it is set, every process compiles anew what it imports, which takes as long as the import.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test test-fast test-gpu test-interop test-nodes test-cluster test-operations test-kubeflow test-neighbours images push-images test-images loss-compare docs check format dist test-dist pins clean

help:                ## list the targets
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

install: $(STAMP)    ## create .venv and install espalier with its pinned dependencies

$(STAMP): pyproject.toml constraints.txt setup.py $(PACKAGES:%=%/pyproject.toml)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade uv --constraint constraints.txt
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --constraint constraints.txt --editable '.[dev]' $(BESIDE)
	touch $@

# reasoning-gym, whose pins are not ours: built from source, so a machine without a compiler goes on,
# and the tests that need it are skipped
FAMILIES := $(VENV)/.families
$(FAMILIES): $(STAMP)
	$(BIN)/espalier environments add procedural || echo "the family procedural is not tested"
	touch $@

demo: install        ## the main job on the embedded default: knowledge in, registered model out
	$(BIN)/espalier models add smollm2
	$(BIN)/espalier run --profile laptop --out $(DEMO_RUN)

test-fast: install   ## unit tests by themselves, without those marked slow
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m 'not slow' tests/unit

# More than the two cores that they are made for: a third of their time is waiting.
TEST_WORKERS ?= 5
INTEROP = test_runners.py test_kfp_local.py test_refused_validation.py test_kept_checkpoints.py \
  test_lost_processes.py test_train_nodes.py test_two_processes.py test_launched_step.py \
  test_steps_elsewhere.py test_suspended_publishing.py test_restore_drill.py test_stopping.py \
  test_viewer_talks.py test_record.py serving/test_process.py test_own_environment.py \
  test_code_environment.py test_self_play_chain.py test_hindsight_chain.py test_own_folder.py \
  test_openenv_in_sandboxes.py test_mcp_servers.py test_harbor_tasks.py
NODES = test_ray_nodes.py test_ray_rollouts.py

test: install $(FAMILIES) ## unit and integration tests: no root, no cluster, no GPU
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder \
	  $(INTEROP:%=--ignore tests/integration/%) $(NODES:%=--ignore tests/integration/%) \
	  tests/integration tests/unit  # long files first

test-gpu: install   ## tests on one GPU, in three minutes: engine, gradients, updates, whole runs
	$(BIN)/python -m pytest -q tests/gpu

test-interop: install ## whole chains, by other runners and in many processes, and agents written with real packages in venvs of their own
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder \
	  $(INTEROP:%=tests/integration/%) tests/interop

test-nodes: install ## stages on the nodes of a Ray cluster, two on this machine, with processes killed
	$(BIN)/python -m pytest $(NODES:%=tests/integration/%)

test-cluster: install ## tests on a real Kubernetes: on that of KUBECONFIG, else on one built here (root)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --constraint constraints.txt --editable '.[dev,cluster]' $(BESIDE)
	$(BIN)/python -m tests.cluster test $(TEST_CLUSTER_FLAGS)

test-operations: install ## the same cluster operated: restore drill, upgrade and back, Jobs suspended (root)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --constraint constraints.txt --editable '.[dev,cluster]' $(BESIDE)
	$(BIN)/python -m tests.cluster test $(TEST_CLUSTER_FLAGS) tests/cluster/operations

test-kubeflow: install ## tests on a real Kubeflow Pipelines, built from checkouts below SOURCES=DIR (root)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --constraint constraints.txt --editable '.[dev,cluster]' $(BESIDE)
	$(BIN)/python -m tests.cluster kubeflow $(if $(SOURCES),--sources $(SOURCES)) $(TEST_KUBEFLOW_FLAGS)

test-neighbours: install ## tests on Kueue, KubeRay, agent-sandbox, Trainer, from checkouts below SOURCES=DIR (root)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --constraint constraints.txt --editable '.[dev,cluster,ray]' $(BESIDE)
	$(BIN)/python -m tests.cluster neighbours $(if $(SOURCES),--sources $(SOURCES)) $(TEST_NEIGHBOURS_FLAGS)

# Where pip reads its index, if not PyPI's: mounted while an image is built, and no part of it.
PIP_CONF ?= $(firstword $(wildcard $(PIP_CONFIG_FILE) $(HOME)/.config/pip/pip.conf /etc/pip.conf))
IMAGES_VENV := build/images-venv
BUILD_IMAGES = $(IMAGES_VENV)/bin/python components/build_images.py

$(IMAGES_VENV)/.installed: constraints.txt  # the tools that list contents, without gigabytes beside
	$(PYTHON) -m venv $(IMAGES_VENV)
	$(IMAGES_VENV)/bin/python -m pip install --quiet --constraint constraints.txt cyclonedx-bom
	touch $@

images: $(IMAGES_VENV)/.installed ## build all images but rollout, each with its contents (IMAGES_FLAGS=cpu)
	$(BUILD_IMAGES) build $(if $(PIP_CONF),--pip-conf $(PIP_CONF)) $(IMAGES_FLAGS)

push-images: $(IMAGES_VENV)/.installed ## push what was built (IMAGES_FLAGS="--registry registry.example/team")
	$(BUILD_IMAGES) push $(IMAGES_FLAGS)

TEST_IMAGES ?= cpu sandbox-python sandbox-search sandbox-shop sandbox-swe

test-images: install $(IMAGES_VENV)/.installed ## build on a base of debootstrap, start and check (podman, root, 20 GB)
	$(BUILD_IMAGES) build $(if $(PIP_CONF),--pip-conf $(PIP_CONF)) \
	  --own-base --certificates /etc/ssl/certs $(TEST_IMAGES)
	$(BIN)/python -m pytest -q tests/images

loss-compare: install ## compare every loss of warm start and GRPO with those of BASE=<commit>, exactly (4 min)
	$(BIN)/python -m tests.benchmarks.loss_compare --base $(or $(BASE),main) $(LOSS_COMPARE_FLAGS)

docs: install        ## build this repository's documentation into site/ and check all that it says
	$(BIN)/python -m docs.build
	$(BIN)/python -m pytest -q tests/unit/docs

check: install       ## format, lint, types, import rules, spelling, shape of the code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/codespell components pipelines tests docs README.md CHANGELOG.md CONTRIBUTING.md
	$(BIN)/python -m pytest -q tests/unit/shape

format: install      ## rewrite the sources in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

dist: install        ## build wheels and source distributions of all packages into dist/
	for package in . $(PACKAGES); do $(BIN)/uv build --quiet --out-dir dist $$package || exit; done

DIST_VENV := build/dist-venv
test-dist: dist      ## install the wheels alone into a bare environment, and run the profile smoke with them
	rm -rf $(DIST_VENV)
	$(PYTHON) -m venv $(DIST_VENV)
	VIRTUAL_ENV=$(DIST_VENV) $(BIN)/uv pip install --quiet --constraint constraints.txt --find-links dist \
	  'espalier-agents[train]' $(notdir $(PACKAGES:components/espalier_%=espalier-agents-%))
	cd $(DIST_VENV) && bin/espalier run --profile smoke --out run

# All but vllm, which has an environment of its own: its pins of protobuf and transformers are not
# those of the rest, and constraints.txt has what `make install` and the images install.
EXTRAS := train cluster ray dev documents
pins: install dist   ## renew constraints.txt from pyproject.toml
	head -1 constraints.txt > constraints.new
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate \
	  $(EXTRAS:%=--extra %) --find-links dist pyproject.toml $(PACKAGES:%=%/pyproject.toml) \
	  --no-emit-package espalier-agents >> constraints.new
	mv constraints.new constraints.txt

clean:               ## remove what builds and tests leave behind (not .venv, not runs)
	rm -rf build dist site .pytest_cache .ruff_cache .hypothesis components/*.egg-info components/*/*.egg-info
