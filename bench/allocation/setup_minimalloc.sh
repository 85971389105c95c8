#!/bin/bash
# Builds the program that `headrace offsets` is compared with: google/minimalloc (Apache-2.0),
# from its public repository and the abseil it needs. Nothing of it is committed here.
#
# usage: bench/allocation/setup_minimalloc.sh FOLDER [MINIMALLOC_GIT [ABSEIL_GIT]]
#
# FOLDER receives  src/          the sources, as checked out
#                  build/        the build
#                  bin/minimalloc
#                  BUILD         commits, compiler and options, one a line
# MINIMALLOC_GIT and ABSEIL_GIT may name local clones. Needs git, cmake, make or ninja, a C++20
# compiler; about 5 CPU minutes. Release, the project's own options.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,13p' "$0" >&2; exit 2; }
minimalloc_git=${2:-https://github.com/google/minimalloc}
abseil_git=${3:-https://github.com/abseil/abseil-cpp}
minimalloc_commit=9f5cf81
abseil_commit=b75a3ff4afda9654649328e25555181759d7ad69  # the submodule of that commit

mkdir -p "$1"
out=$(cd "$1" && pwd)

# The commit asked for, or the newest one of a clone that does not have it.
checkout() {  # GIT COMMIT FOLDER
  [ -d "$3/.git" ] || git clone -q --no-checkout "$1" "$3"
  git -C "$3" checkout -q "$2" 2>/dev/null || {
    echo "setup_minimalloc: $1 has no $2; taking its HEAD" >&2
    git -C "$3" checkout -q HEAD
  }
}
checkout "$minimalloc_git" "$minimalloc_commit" "$out/src/minimalloc"
checkout "$abseil_git" "$abseil_commit" "$out/src/abseil"

# A project of our own around the same sources: theirs also builds its tests.
cat > "$out/src/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(minimalloc_peer LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
set(ABSL_PROPAGATE_CXX_STD ON)
add_subdirectory(abseil EXCLUDE_FROM_ALL)
set(from minimalloc/src)
add_executable(minimalloc ${from}/main.cc ${from}/converter.cc ${from}/minimalloc.cc
  ${from}/solver.cc ${from}/sweeper.cc ${from}/validator.cc)
target_link_libraries(minimalloc PRIVATE absl::flags absl::flags_parse absl::statusor
  absl::log absl::log_initialize absl::flat_hash_set absl::flat_hash_map absl::time)
END
generator=()
if command -v ninja >/dev/null; then generator=(-G Ninja); fi
cmake -S "$out/src" -B "$out/build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release
cmake --build "$out/build" --target minimalloc -j "$(nproc)"
mkdir -p "$out/bin"
ln -sf ../build/minimalloc "$out/bin/minimalloc"
{
  echo "minimalloc $(git -C "$out/src/minimalloc" rev-parse HEAD)"
  echo "abseil $(git -C "$out/src/abseil" rev-parse HEAD)"
  echo "compiler $(${CXX:-c++} --version | head -1)"
  echo "options CMAKE_BUILD_TYPE=Release"
} > "$out/BUILD"
