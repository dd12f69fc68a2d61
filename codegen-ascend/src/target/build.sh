#!/usr/bin/env bash
# Builds the kernels of this artifact with the vendor's compiler: NAME.cpp -> OUT/NAME.o.
#
#   build.sh [OUT [NAME...]]   OUT is the folder of the objects, the folder of this script by default;
#                              the kernels to build, all by default.
#
# ASCEND_HOME_PATH   the toolkit; its set_env.sh sets it
# PRECAST_ASCEND_FORM  `new` (toolkit 8.5 and later) or `legacy`; found out by default
# JOBS               compilers at a time; the number of processors by default
#
# A kernel that is built already is left alone when it is newer than its source.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-$here}
npu_arch=@NPU_ARCH@
legacy_arch=@LEGACY_ARCH@

fail() {
  echo "build.sh: $1" >&2
  exit 1
}

home=${ASCEND_HOME_PATH:-}
[[ -n $home ]] || fail "ASCEND_HOME_PATH is not set; run: source /usr/local/Ascend/ascend-toolkit/set_env.sh"
[[ -d $home ]] || fail "ASCEND_HOME_PATH is $home, which is no folder"

compiler=$(command -v bisheng || true)
for candidate in \
  "$home/bin/bisheng" "$home/compiler/ccec_compiler/bin/bisheng" "$home/compiler/ccec_compiler/bin/ccec"; do
  [[ -z $compiler && -x $candidate ]] && compiler=$candidate
done
[[ -n $compiler ]] || fail "no bisheng and no ccec under $home; install the toolkit package, the runtime alone has no compiler"
linker=$(dirname "$compiler")/ld.lld
[[ -x $linker ]] || linker=$(command -v ld.lld || true)

form=${PRECAST_ASCEND_FORM:-}
if [[ -z $form ]]; then
  if "$compiler" --help 2>&1 | grep -q -- '--npu-arch'; then form=new; else form=legacy; fi
fi
[[ $form == new || $form == legacy ]] || fail "PRECAST_ASCEND_FORM is $form; use new or legacy"

includes=()
for root in "$home/compiler/tikcpp/tikcfw" "$home/tools/tikcpp/tikcfw" "$home"/*-linux/tikcpp/tikcfw "$home/include/tikcfw"; do
  [[ -d $root ]] || continue
  includes+=("-I$root" "-I$root/interface" "-I$root/impl")
  break
done
[[ ${#includes[@]} -gt 0 || $form == new ]] || fail "no tikcpp headers under $home; install the toolkit package"
mkdir -p "$out"

common=(-c -O3 -std=c++17)

# One command: the compiler finds out which cores run the kernel.
build_new() {
  "$compiler" "${common[@]}" -x asc --npu-arch="$npu_arch" --cce-aicore-only \
    "${includes[@]}" -I"$here" "$1" -o "$2"
}

# $1 source, $2 object, $3 vec or cube, further arguments as they are.
compile_legacy() {
  local source=$1 object=$2 cores=$3
  shift 3
  "$compiler" "${common[@]}" -x cce --cce-aicore-only --cce-aicore-arch="$legacy_arch-$cores" \
    --cce-auto-sync \
    -mllvm -cce-aicore-stack-size=0x8000 \
    -mllvm -cce-aicore-function-stack-size=0x8000 \
    -mllvm -cce-aicore-record-overflow=true \
    -mllvm -cce-aicore-addr-transform \
    -mllvm -cce-aicore-dcci-insert-for-scalar=false \
    -DTILING_KEY_VAR=0 "$@" "${includes[@]}" -I"$here" "$source" -o "$object"
}

# The kernel's name as the compiler knows it; a mixed kernel has one function for each kind of core, which
# takes the address of the flags between cores before its arguments.
build_legacy() {
  local source=$1 object=$2 name
  name=$(basename "$source" .cpp)
  [[ -n $linker ]] || fail "no ld.lld beside $compiler"
  if grep -q 'KERNEL_TYPE_MIX_AIC_1_2' "$source"; then
    compile_legacy "$source" "$object.cube" cube "-D$name=${name}_mix_aic" -DPRECAST_SYNC_ARGUMENT
    compile_legacy "$source" "$object.vec" vec "-D$name=${name}_mix_aiv" -DPRECAST_SYNC_ARGUMENT
    "$linker" -r -o "$object.all" "$object.cube" "$object.vec"
    rm -f "$object.cube" "$object.vec"
  elif grep -q 'KERNEL_TYPE_AIC_ONLY' "$source"; then
    compile_legacy "$source" "$object.all" cube
  else
    compile_legacy "$source" "$object.all" vec
  fi
  "$linker" -m aicorelinux -Ttext=0 -static -o "$object" "$object.all"
  rm -f "$object.all"
}

# Objects appear whole or not at all.
build() {
  local source=$1 name object
  name=$(basename "$source" .cpp)
  object=$out/$name.o
  [[ $object -nt $source ]] && return 0
  "build_$form" "$source" "$object.part" || fail "$name.cpp does not compile; the command was the $form form of $compiler"
  mv "$object.part" "$object"
}

shopt -s nullglob
sources=("$here"/*.cpp)
if (($# > 1)); then
  sources=("${@:2}")
  sources=("${sources[@]/#/$here/}")
  sources=("${sources[@]/%/.cpp}")
fi
jobs=${JOBS:-$(nproc)}
pids=()
for source in "${sources[@]}"; do
  while (($(jobs -rp | wc -l) >= jobs)); do sleep 0.05; done
  build "$source" &
  pids+=("$!")
done
failed=0
for pid in ${pids[@]+"${pids[@]}"}; do
  wait "$pid" || failed=$((failed + 1))
done
((failed == 0)) || fail "$failed of ${#sources[@]} kernels failed"
echo "build.sh: ${#sources[@]} kernels in $out"
