# make run    installs the packages, builds, and lets the bundled model speak
# make test   builds everything and runs the tests (a quarter of an hour or more on two cores)
# make nano   makes the bundled model: data, training, scores (hours on a slow machine; not timed yet)
# make help   what else there is

PACKAGES = g++ clang cmake ninja-build make python3 nlohmann-json3-dev libcli11-dev libfmt-dev libgtest-dev
# Where nano's prose comes from.
PROSE_PACKAGES = r-cran-janeaustenr bible-kjv bible-kjv-text golang-github-klauspost-compress-dev
JOBS ?= $(shell nproc)
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: run test test-long build deps nano nano-deps model asan tsan fuzz tidy format clean help

run: build model
	build/k3 generate "Once upon a time" --max-tokens 64

deps: wanted = $(PACKAGES)
nano: wanted = $(PACKAGES) $(PROSE_PACKAGES)
deps nano-deps:
	@missing=$$(for p in $(wanted); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q "ok installed" || echo $$p; done); \
	if [ -n "$$missing" ]; then \
	  echo "installing:" $$missing; \
	  $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; \
	fi

build: deps
	cmake --preset release -DCMAKE_MESSAGE_LOG_LEVEL=WARNING
	cmake --build --preset release -j $(JOBS)

model: models/random-bytes/config.json
models/random-bytes/config.json: scripts/make_random_model.py
	python3 scripts/make_random_model.py models/random-bytes

nano: nano-deps build
	python3 recipes/nano/make_nano.py --k3 build/k3 --work build/nano --out models/nano

# The release build's tests, then the parsers, loaders and threads again under sanitizers.
test: build model asan tsan
	ctest --test-dir build --output-on-failure -j 1

asan: deps
	cmake --preset asan -DCMAKE_MESSAGE_LOG_LEVEL=WARNING
	cmake --build --preset asan -j $(JOBS) --target base_test weights_test text_test kernels_test ops_test engine_test train_test
	ctest --test-dir build-asan --output-on-failure -j 1 -R '^(base|weights|text|kernels|ops|engine|train)$$'

tsan: deps
	cmake --preset tsan -DCMAKE_MESSAGE_LOG_LEVEL=WARNING
	cmake --build --preset tsan -j $(JOBS) --target base_test engine_test
	ctest --test-dir build-tsan --output-on-failure -j 1 -R '^(base|engine)$$'

FUZZ_SECONDS ?= 300
fuzz: deps
	cmake --preset fuzz -DCMAKE_MESSAGE_LOG_LEVEL=WARNING
	cmake --build --preset fuzz -j $(JOBS)
	set -e; for f in build-fuzz/*_fuzz; do echo $$f; $$f -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4096; done

# Everything under every sanitizer, and the fuzzers; takes more than an hour.
test-long: test fuzz
	cmake --build --preset asan -j $(JOBS)
	ctest --test-dir build-asan --output-on-failure
	cmake --build --preset tsan -j $(JOBS)
	ctest --test-dir build-tsan --output-on-failure

tidy: build
	run-clang-tidy -p build -quiet 'src/.*\.cc'

format:
	clang-format -i $$(git ls-files '*.cc' '*.h')

clean:
	rm -rf build build-*

help:
	@sed -n '1,4p' Makefile; echo "make asan | tsan | fuzz | test-long | tidy | format | clean"
