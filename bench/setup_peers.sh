#!/bin/bash
# Builds the program Headrace is compared with: llama.cpp, from the source that the
# Python package llama-cpp-python carries inside its source distribution.
#
# usage: bench/setup_peers.sh FOLDER [JOBS]
#
# FOLDER receives   src/    the unpacked source (never committed, never changed by hand)
#                   build/  the build
#                   bin/    links to llama-bench, llama-completion, llama-perplexity, ...
#                   lib/    links to libllama.so and libggml*.so (for tests/reference/)
#                   BUILD   version, compiler and options, one a line
# Needs python3 with pip, cmake, make or ninja, a C++17 compiler; about 11 CPU minutes.
# The build is the peer's own default: Release, tuned for this CPU, OpenMP, no GPU.
set -euo pipefail

version=0.3.36
[ $# -ge 1 ] || { sed -n '2,14p' "$0" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
jobs=${2:-$(nproc)}

if [ ! -d "$out/src/vendor/llama.cpp" ]; then
  mkdir -p "$out/sdist"
  python3 -m pip -q download --no-deps --no-binary llama-cpp-python \
    -d "$out/sdist" "llama-cpp-python==$version"
  mkdir -p "$out/src"
  tar -xzf "$out"/sdist/llama_cpp_python-"$version".tar.gz -C "$out/src" \
    --strip-components=1
  # The sdist carries .git files of submodules that point nowhere; with them the
  # build's own call of git fails, or finds a repository around FOLDER.
  find "$out/src" -name .git -exec rm -rf {} +
fi

generator=()
if command -v ninja >/dev/null; then generator=(-G Ninja); fi
options=(
  -DCMAKE_BUILD_TYPE=Release
  -DGGML_NATIVE=ON
  -DBUILD_SHARED_LIBS=ON
  -DLLAMA_OPENSSL=OFF
  -DLLAMA_BUILD_TESTS=OFF
  -DLLAMA_BUILD_EXAMPLES=OFF
  -DLLAMA_BUILD_APP=OFF
  -DLLAMA_BUILD_UI=OFF
  -DLLAMA_USE_PREBUILT_UI=OFF
)
cmake -S "$out/src/vendor/llama.cpp" -B "$out/build" "${generator[@]}" "${options[@]}"

tools=(llama-bench llama-completion llama-perplexity llama-tokenize llama-cli
       llama-server llama-quantize)
cmake --build "$out/build" -j "$jobs" --target "${tools[@]}"

mkdir -p "$out/bin" "$out/lib"
for tool in "${tools[@]}"; do ln -sf "../build/bin/$tool" "$out/bin/$tool"; done
for library in "$out"/build/bin/lib*.so*; do
  ln -sf "../build/bin/$(basename "$library")" "$out/lib/$(basename "$library")"
done
{
  echo "package llama-cpp-python $version"
  echo "compiler $(${CXX:-c++} --version | head -1)"
  echo "options ${options[*]}"
} >"$out/BUILD"
echo "built: $out/bin"
