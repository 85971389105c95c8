#!/bin/sh
# Installs what building and testing Headrace needs on Debian 12, by package name. Does
# nothing, and needs neither rights nor network, when all of it is there.
#
# usage: tools/setup.sh [--check]
#
# --check  installs nothing: names what is missing and ends with 1
set -eu

packages="g++ cmake ninja-build pkg-config python3 python3-pip python3-venv python3-dev
liburing-dev nlohmann-json3-dev libcli11-dev libpcre2-dev libzstd-dev libxxhash-dev libboost-dev
libgtest-dev libgmock-dev"

missing=""
for p in $packages; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' ||
    missing="$missing $p"
done
[ -n "$missing" ] || exit 0

if [ "${1:-}" = "--check" ]; then
  echo "setup: these packages are missing:$missing" >&2
  echo "setup: make setup installs them (apt-get, through sudo if need be)" >&2
  exit 1
fi

# sudo passes no variables on by itself.
quietly="env DEBIAN_FRONTEND=noninteractive"
if [ "$(id -u)" -eq 0 ]; then as_root="$quietly"
elif command -v sudo >/dev/null 2>&1; then as_root="sudo $quietly"
else
  echo "setup: these packages are missing and this is not root:$missing" >&2
  echo "setup: ask an administrator to run: apt-get install$missing" >&2
  exit 1
fi
echo "setup: installing$missing" >&2
$as_root apt-get update -qq
# shellcheck disable=SC2086
$as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
