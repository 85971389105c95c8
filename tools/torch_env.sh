#!/bin/sh
# A Python environment with PyTorch and transformers for CPU use, for the tests of the Python
# package: about 0.6 GB to download, 2 GB on the disk, without a byte of CUDA's libraries.
#
# usage: tools/torch_env.sh FOLDER [TORCH_VERSION]
#
# FOLDER/bin/python imports torch (2.15.0 where no version is given), transformers, pytest, nanobind
# and scikit_build_core; FOLDER/ready says what is in it. Does nothing when that is already so. Ends
# with 1 and one line that says why when it cannot be done: no network, no such version.
set -u

here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] || { sed -n '2,10p' "$0" >&2; exit 2; }
folder=$1
torch=torch==${2:-2.15.0}
python=$folder/bin/python
wanted="$torch $(cksum <"$here/torch_packages.txt")"
[ "$(cat "$folder/ready" 2>/dev/null)" = "$wanted" ] && exit 0

fail() { echo "torch: $1" >&2; exit 1; }

# What a broken connection leaves is not resumed but fetched again, once. The cache of packages is
# passed by: it would hold the half gigabyte a second time.
install() {
  for attempt in 1 2; do
    "$python" -m pip -q --disable-pip-version-check install --no-cache-dir --no-deps \
      --retries 3 --timeout 30 "$@" && return 0
    [ $attempt = 2 ] || { echo "torch: trying once more" >&2; sleep 5; }
  done
  return 1
}

rm -f "$folder/ready"
[ -x "$python" ] || python3 -m venv "$folder" || fail "no environment in $folder"
echo "torch: fetching $torch and what it needs into $folder" >&2
install -r "$here/torch_packages.txt" || fail "pip could not fetch tools/torch_packages.txt"
install "$torch" || fail "pip could not fetch $torch"
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
"$python" "$here/torch_stubs.py" "$packages/torch" >/dev/null ||
  fail "no stand-ins for the CUDA libraries that $torch names"
"$python" -c 'import torch, transformers, accelerate, pytest, nanobind, scikit_build_core
assert torch.ones(3).sum() == 3' || fail "$torch does not work in $folder"
echo "$wanted" >"$folder/ready"
