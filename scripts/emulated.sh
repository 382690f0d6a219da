#!/usr/bin/env bash
# Tests as an AArch64 machine runs them, by qemu: `scripts/emulated.sh ROOT [arguments of pytest]`. ROOT is a folder for
# a small Debian of that machine with Python 3.11 and wheels of PyPI, made where it is missing. Without arguments: the tests
# that docs/testing.md names. Needs qemu-user-static, mmdebstrap, and Linux 6.7: what the kernel is told of another
# machine's programs holds in a namespace of its own, and ends with it.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
root=$(realpath -m "${1:?a folder for the other system}")
shift
qemu=$(command -v qemu-aarch64-static) || { echo "no qemu-aarch64-static: apt-get install qemu-user-static" >&2; exit 2; }
if [ ! -e "$root/opt/done" ]; then
  packages=python3,python3-dev,libstdc++6,libgomp1,coreutils,bash,libc-bin,gcc
  mkdir -p "$(dirname "$root")"
  mmdebstrap --mode=root --architectures=arm64 --variant=extract --include=$packages bookworm "$root"
  mkdir -p "$root/opt/wheels" "$root/opt/site" "$root/opt/src"
  platforms=(--platform={any,manylinux2014_aarch64,manylinux_2_{17,27,28}_aarch64})
  abis=(--python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none)
  python3 -m pip install -q --target "$root/opt/site" --only-binary :all: "${platforms[@]}" "${abis[@]}" \
    'numpy>=2' 'llvmlite>=0.50,<0.51' ml-dtypes safetensors click rich pytest pytest-xdist hypothesis scipy mpmath hatchling
  touch "$root/opt/done"
fi
if [ $# = 0 ]; then
  set -- -n 2 -p no:cacheprovider tests/test_{threads,cores,llvm_kernels,llvm_math,llvm_lanes,llvm_primitives,reductions,sums}.py \
    tests/test_{contraction,conformance,integers,halves,rounding,scattering,random,async,float64,targets,build}.py
fi
# The first four bytes of a program, its class, and the number of the machine.
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
export root here format=":aarch64:M::$magic:$mask:$qemu:FC"
exec unshare --user --map-root-user --mount bash -euc '
  mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
  printf %s "$format" > /proc/sys/fs/binfmt_misc/register
  for place in dev proc sys; do mount --rbind "/$place" "$root/$place"; done
  mount -t tmpfs none "$root/tmp"
  mount --bind "$here" "$root/opt/src"
  exec chroot "$root" /usr/bin/env -i HOME=/tmp PATH=/usr/bin:/bin PYTHONPATH=/opt/site:/opt/src/src \
    PYTHONPYCACHEPREFIX=/opt/bytecode CI=1 bash -c "cd /opt/src && exec python3.11 -m pytest \"\$@\"" pytest "$@"
' emulated "$@"
