# make demo    install what is needed, build, fetch a small real model, generate text in a budget
# make check   install what is needed, build, run every test
# make build   build/release/headrace
# make soak    the long tests      make asan / tsan   the tests under sanitizers
# make bench   the table of bench/README.md (fetches models, builds the peer; takes hours)

BUILD    ?= build/release
MODELS   ?= .cache/models
DEMO_MODEL = $(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf
JOBS     ?= $(shell nproc)
TEST_ENV  = HEADRACE_MODELS=$(abspath $(MODELS))

.PHONY: demo check build setup models soak asan tsan bench clean

build: setup
	cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release
	cmake --build $(BUILD) --target headrace_cli -j $(JOBS)

setup:
	@tools/setup.sh

models: setup
	@python3 bench/fetch_models.py --into $(MODELS) smollm2

demo: build models
	$(BUILD)/headrace run $(DEMO_MODEL) --memory 64MiB --chat --tokens 96 \
	  --prompt "Explain in two sentences what a reservoir behind a dam is for."

check: setup models
	cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release
	cmake --build $(BUILD) -j $(JOBS)
	$(TEST_ENV) ctest --test-dir $(BUILD) --output-on-failure -LE soak -j $(JOBS)

soak: check
	$(TEST_ENV) ctest --test-dir $(BUILD) --output-on-failure -L soak

asan tsan: setup models
	cmake -S . -B build/$@ -G Ninja -DCMAKE_BUILD_TYPE=Release \
	  -DHEADRACE_SANITIZE=$(if $(filter asan,$@),address,thread)
	cmake --build build/$@ -j $(JOBS)
	$(TEST_ENV) ctest --test-dir build/$@ --output-on-failure -LE "soak|memory" -j $(JOBS)

bench: build
	python3 bench/fetch_models.py --into $(MODELS) all
	bench/setup_peers.sh .cache/peers
	python3 bench/run_bench.py all

clean:
	rm -rf build
