#!/usr/bin/env bash
# One number on another processor: builds Ditto for 64-bit ARM with Debian's cross compiler, Debian's arm64 libraries and PyTorch's
# wheel, trains under qemu-user, and compares weights, losses and norms with this machine's build (build/release), bit for bit.
#   tests/aarch64.sh [FOLDER]      FOLDER: build/aarch64; 6 GB, and an hour on two cores
# Needs Debian's packages g++-aarch64-linux-gnu and qemu-user, and a kernel that hands ARM programs to qemu-aarch64 (binfmt_misc;
# Debian's qemu-user-binfmt sets it up).
#
# Claim (one number): On 64-bit ARM (the whole program, with PyTorch's wheel, under qemu-user) ten steps with `run.numerics =
# "one"` have this machine's hash: with NEON's kernels and the plain ones, on one rank, fsdp, tensor, ring and pipeline, and
# two of UNets, with its convolutions and norms; so has the program that clang 14 builds. Also: `one_number_builds_slow.py`
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:-build/aarch64}")
for program in aarch64-linux-gnu-g++ qemu-aarch64; do
  command -v $program >/dev/null || { echo "error: no $program; install Debian's g++-aarch64-linux-gnu and qemu-user" >&2; exit 2; }
done
packages=$(grep -v '^#' cmake/packages.txt | grep -E '^lib.*-dev$|^nlohmann|^zlib')
mkdir -p "$folder"

# Debian's arm64 libraries, in a folder: apt with a state of its own installs nothing on this machine.
root=$folder/root
if [ ! -d "$root" ]; then
  apt=$folder/apt
  mkdir -p "$apt"/state/lists/partial "$apt"/cache/archives/partial
  : >"$apt/status"
  options=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$apt/state" -o Dir::State::status="$apt/status"
           -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root)
  apt-get "${options[@]}" -q update
  # shellcheck disable=SC2086
  apt-get "${options[@]}" -qy --download-only --no-install-recommends install libc6-dev libstdc++-12-dev libgomp1 $packages
  rm -rf "$root.partial"
  mkdir "$root.partial"
  for package in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$package" "$root.partial"; done
  mv "$root.partial" "$root"
fi

# The same LibTorch as cmake/libtorch.txt's, for ARM; its hashes are another processor's, so versions alone are taken from there.
if [ ! -d "$folder/libtorch" ]; then
  # shellcheck disable=SC2046
  python3 -m pip download --disable-pip-version-check --no-cache-dir --no-deps --only-binary=:all: --python-version 3.11 \
    --implementation cp --platform manylinux_2_28_aarch64 --platform manylinux_2_25_aarch64 --platform manylinux2014_aarch64 \
    --dest "$folder/wheels" $(grep -oE '^[a-z-]+==[0-9.]+' cmake/libtorch.txt)
  python3 cmake/unpack_libtorch.py "$folder/wheels" "$folder/libtorch.partial"
  mv "$folder/libtorch.partial" "$folder/libtorch"
  rm -r "$folder/wheels"
fi

cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64.cmake" \
  -DDITTO_SYSROOT="$root" -DDITTO_LIBTORCH="$folder/libtorch/torch" -DDITTO_CUDA=OFF -DDITTO_TESTS=OFF >"$folder/configure.log" ||
  { tail -20 "$folder/configure.log" >&2; exit 1; }
cmake --build "$folder"
DITTO_AARCH64="$folder" python3 tests/integration/numerics/one_number_builds_slow.py arm
