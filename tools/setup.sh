# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2119,SC2120 # ./run reads the variables
# Makes a bare Debian 12+ or Ubuntu 22.04+ machine able to build; sourced by ./run, installs only what is missing.
# A row is `package | probe | why`. The probe decides, so what came from elsewhere (or another distribution) counts.
# Not here: CUDA (used if it is found), and anything that changes a setting of the machine.

meson_version=1.12.1
ninja_version=1.13.0
onednn_wheel=2023.2.0 # PyPI's, if no package is new enough (Ubuntu 22.04): oneDNN 3.2 for g++'s OpenMP, without SYCL
torch_version=${COMP_TORCH_VERSION:-2.11.0} # PyPI's; ./run test passes with the newest 2.x too
apt_tries=120 # of apt_pause seconds, for another program's lock
site_version=9.8.2 # PyPI's mkdocs-material
frontend_version=1.32.0 # PyPI's nvidia-cudnn-frontend, of which only the headers are used
frameworks=("transformers<=5.24.0" accelerate==1.15.0 lightning==2.6.6 peft==0.21.2) # tests/python trains in their loops; Python 3.10 has an older transformers
jargon_text=/usr/share/doc/jargon-text/jargon.txt.gz

build_packages=(
  "g++                | compiler                    | compiles; version 12 or newer"
  "pkg-config         | command pkg-config          | finds the libraries"
  "python3            | command python3             | runs Meson"
  "python3-venv       | python ensurepip            | keeps Meson apart from the system's Python"
  "libfmt-dev         | header fmt/format.h         | text"
  "librange-v3-dev    | header range/v3/version.hpp | sequences"
  "nlohmann-json3-dev | header nlohmann/json.hpp    | plan files and ledgers"
  "libboost-dev       | header boost/graph/boykov_kolmogorov_max_flow.hpp | minimum cuts: the cheapest plan"
  "libcli11-dev       | header CLI/CLI.hpp          | command lines of the examples"
  "zlib1g-dev         | header zlib.h               | packed data sets"
  "libzip-dev         | header zip.h                | npz files"
  "libutf8proc-dev    | header utf8proc.h           | the tokenizer of BERT"
  "libjpeg-dev        | header jpeglib.h            | pictures"
  "libdnnl-dev        | onednn                      | arithmetic of the native trainer; oneDNN 2.6 or newer"
)
test_packages=(
  "doctest-dev        | header doctest/doctest.h    | tests"
  "librapidcheck-dev  | header rapidcheck.h         | tests of properties"
  "libboost-context-dev | library boost_context     | fibres: tests of CUDA kernels without a GPU"
  "cmake              | command cmake               | a test of what CMake users have"
  "nodejs             | command node                | tests of what the report's page draws"
)
second_packages=(
  "clang              | clang                       | second compiler of the tests, fuzzing; version 16 or newer"
)
python_packages=(
  "python3-dev        | python_h                    | the Python package"
)
demo_packages=(
  "jargon-text        | file $jargon_text           | input of the demo: the Jargon File, public domain"
)
gpu_packages=( # of the above what the CUDA backend needs: a machine with a GPU may have few others
  "g++                | compiler                    | compiles; version 12 or newer"
  "libfmt-dev         | header fmt/format.h         | text"
  "librange-v3-dev    | header range/v3/version.hpp | sequences"
  "nlohmann-json3-dev | header nlohmann/json.hpp    | plan files and ledgers"
  "libboost-dev       | header boost/graph/boykov_kolmogorov_max_flow.hpp | minimum cuts: the cheapest plan"
  "doctest-dev        | header doctest/doctest.h    | tests"
)
not_required=" libdnnl-dev clang cmake nodejs python3-dev jargon-text " # oneDNN has a wheel, the others a message

die() {
  echo "run: $*" >&2
  exit 1
}

# The newest of NAME-22 ... NAME-OLDEST, else plain NAME if that is new enough.
newest() {
  local name=$1 oldest=$2 number
  for ((number = 22; number >= oldest; --number)); do
    command -v "$name-$number" && return
  done
  number=$("$name" -dumpversion 2>/dev/null) || return 1
  ((${number%%.*} >= oldest)) && command -v "$name"
}

# The compiler that the system calls g++ comes first: libraries were built with it.
find_compiler() {
  local number
  compiler=${CXX:-} compiler=${compiler#ccache } # the prefix comes back in need_meson
  [[ -z $compiler ]] || return 0
  number=$(g++ -dumpversion 2>/dev/null || echo 0)
  if ((${number%%.*} >= 12)); then compiler=g++; else compiler=$(newest g++ 12); fi
}

find_clang() { clang=$(newest clang++ 16); }
find_nvcc() { nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null); }

preprocesses() { ${compiler:-c++} -x c++ -E - -o /dev/null 2>/dev/null; }

probe() {
  case $1 in
    command) command -v "$2" >/dev/null ;;
    compiler) find_compiler ;;
    python) python3 -c "import $2" 2>/dev/null ;;
    header) find_compiler && preprocesses <<<"#include <$2>" ;;
    library) find_compiler && "$compiler" -x c++ - -l"$2" -o /dev/null <<<'int main() {}' 2>/dev/null ;;
    file) [[ -r $2 ]] ;;
    clang) find_clang ;;
    python_h) [[ -e $(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h ]] ;;
    onednn) preprocesses <<<'#include <oneapi/dnnl/dnnl_version.h>
#if DNNL_VERSION_MAJOR * 100 + DNNL_VERSION_MINOR < 206
#error
#endif' ;;
  esac
}

# Fills `missing` with the rows whose probe fails.
find_missing() {
  local row package check why
  missing=()
  for row in "$@"; do
    IFS='|' read -r package check why <<<"$row"
    read -r package <<<"$package" # trims
    # shellcheck disable=SC2086 # a probe is a word or two
    probe $check || missing+=("$package|${why# }")
  done
}

# apt-get, as root, with the arguments given. If another program holds the package manager's lock (on a freshly started
# Ubuntu the one that installs updates), it waits for that, ten minutes at most.
apt_get() {
  local said tries status
  for ((tries = 0; ; ++tries)); do
    status=0
    said=$(as_root env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" 2>&1 >/dev/null) || status=$?
    [[ $status != 0 && $said == *"Could not get lock"* && $tries -lt $apt_tries ]] || break
    ((tries)) || echo "  waiting for another program that installs packages (apt's lock is taken) ..."
    sleep "${apt_pause:-5}"
  done
  [[ -z $said ]] || echo "$said" >&2
  return "$status"
}

as_root() {
  if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

# The version of a package that apt would install; nothing if it has none.
candidate() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: \([0-9][^ ]*\)$/\1/p'; }

# The names that this release has for a package; none if it has nothing that would do.
names_of() {
  local number version
  case $1 in
    g++) for number in "" -14 -13 -12; do
      version=$(candidate "g++$number")
      version=${version#*:} && version=${version:-0}
      ((${version%%[.-]*} >= 12)) || continue
      echo "g++$number"
      return
    done ;;
    clang) for number in 19 18 17 16; do
      [[ $(candidate "clang-$number") ]] || continue
      echo "clang-$number"
      [[ -z $(candidate "libclang-rt-$number-dev") ]] || echo "libclang-rt-$number-dev"
      return
    done ;;
    libdnnl-dev)
      version=$(candidate libdnnl-dev)
      [[ ! $version || $version == [01].* || $version == 2.[0-5].* ]] || echo libdnnl-dev
      ;;
    *) echo "$1" ;;
  esac
}

# Installs what of the given rows is missing; a machine that misses nothing is not asked for apt or root.
need_packages() {
  local row packages
  find_missing "$@"
  ((${#missing[@]})) || return 0
  if ! command -v apt-get >/dev/null; then
    without_apt
    return
  fi
  echo "Installing what is missing:"
  apt_get update || echo "run: apt-get update failed; trying with the lists that are there" >&2
  for row in "${missing[@]}"; do
    packages=$(names_of "${row%%|*}" | tr '\n' ' ') || true
    [[ $packages ]] || continue
    echo "  $packages(${row##*|})"
    # shellcheck disable=SC2086 # several names
    apt_get install -y --no-install-recommends $packages || true
  done
  find_missing "$@"
  refuse_if_required "could not be installed: install by hand and run again"
}

without_apt() {
  refuse_if_required "this machine has no apt-get: install these, or what your distribution calls them, and run again"
}

refuse_if_required() {
  local row
  local -a required=()
  for row in "${missing[@]}"; do
    [[ $not_required == *" ${row%%|*} "* ]] || required+=("${row%%|*} (${row##*|})")
  done
  ((${#required[@]} == 0)) || die "missing: $(printf '%s; ' "${required[@]}")$1"
}

need_build_tools() {
  need_meson
  find_onednn
}

# True if ninja and a Meson that is new enough are there; a Meson that is only a folder on PYTHONPATH gets a command.
have_meson() {
  if ! command -v meson >/dev/null && python3 -c 'import mesonbuild' 2>/dev/null; then
    mkdir -p build/bin
    printf '#!/bin/sh\nexec python3 -m mesonbuild.mesonmain "$@"\n' >build/bin/meson
    chmod +x build/bin/meson
    PATH=$PWD/build/bin:$PATH
  fi
  [[ $(meson --version 2>/dev/null) == [1-9]* ]] && command -v ninja >/dev/null
}

# Meson and ninja in .venv, at the versions above. The system's if those cannot be had, or, for need_meson any, if it has
# them: PyPI is not asked then. The compiler goes into CXX.
need_meson() {
  if [[ ${1:-} != any ]] || ! have_meson; then
    own_meson
    have_meson ||
      die "no Meson here and none from PyPI (no network?): install meson (1.0 or newer) and ninja-build, and run again"
  fi
  if command -v ccache >/dev/null; then export CXX="ccache $compiler"; else export CXX=$compiler; fi
}

own_meson() {
  if [[ $(.venv/bin/meson --version 2>/dev/null) != "$meson_version" ]]; then
    echo "Putting Meson $meson_version into .venv"
    { python3 -m venv .venv && .venv/bin/pip -q install "meson==$meson_version" "ninja==$ninja_version"; } ||
      echo "run: no Meson from PyPI; trying the system's" >&2
  fi
  # One that came from another machine may be there and not run.
  ! .venv/bin/meson --version &>/dev/null || PATH=$PWD/.venv/bin:$PATH
}

# Headers that travelled count as installed: COMP_EXTRA_INCLUDE names their folders, separated by colons.
take_extra_headers() {
  local folder
  local -a folders
  IFS=: read -ra folders <<<"${COMP_EXTRA_INCLUDE:-}"
  for folder in "${folders[@]}"; do
    [[ -d $folder ]] || die "COMP_EXTRA_INCLUDE names \"$folder\" (there is no such folder here): bring it, or leave it out"
    CPATH=${CPATH:+$CPATH:}$(realpath "$folder") # absolute: compilers run in the build folder
    export CPATH
  done
}

# The system's oneDNN if it is new enough, else the wheel.
find_onednn() {
  ! probe onednn || return 0
  if [[ ! -e .venv/include/oneapi ]]; then
    echo "Putting oneDNN 3.2 into .venv (this system's package is older than 2.6)"
    .venv/bin/pip -q install "onednn-devel-cpu-gomp==$onednn_wheel" ||
      die "no oneDNN 2.6 or newer here and none from PyPI (no network?): install libdnnl-dev"
  fi
  export CPLUS_INCLUDE_PATH=$PWD/.venv/include${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}
  export LIBRARY_PATH=$PWD/.venv/lib${LIBRARY_PATH:+:$LIBRARY_PATH}
  export LD_LIBRARY_PATH=$PWD/.venv/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

have_gpu() { [[ -e /dev/nvidia0 || -e /dev/dxg ]]; }

# Sets torch_path to a LibTorch that is here: COMP_TORCH_PATH, else the fetched one; on a machine with a GPU only one
# with torch's CUDA part.
find_torch() {
  torch_path=${COMP_TORCH_PATH:-$PWD/.torch/$torch_version/torch}
  [[ -e $torch_path/lib/libtorch_cpu.so ]] &&
    { [[ ${COMP_TORCH_PATH:-} ]] || ! have_gpu || [[ -e $torch_path/lib/libtorch_cuda.so ]]; }
}

# Fetches LibTorch into .torch if none is here. The size of the download: 0.6 GB, with CUDA 3 GB; on disk 0.5 GB.
need_torch() {
  ! find_torch || return 0
  if [[ ${COMP_TORCH_PATH:-} ]]; then
    echo "run: no lib/libtorch_cpu.so in COMP_TORCH_PATH=$COMP_TORCH_PATH: give the folder that has include/ and lib/" >&2
    return 1
  fi
  echo "Putting LibTorch $torch_version into .torch (a download of 0.6 GB, more where there is a GPU)"
  # shellcheck disable=SC2046 # a word or none
  python3 tools/get_torch.py "$torch_version" "$PWD/.torch/$torch_version" $(! have_gpu || echo cuda) && find_torch
}

# Sets with_frontend, what Meson is told of cuDNN's C++ front end: COMP_CUDNN_FRONTEND, else the headers of its wheel in
# .deps; nothing if there is no nvcc, or they cannot be had: attention then runs operator by operator, and convolutions
# by older calls.
need_frontend() {
  local folder=$PWD/.deps/cudnn-frontend-$frontend_version
  local headers=${COMP_CUDNN_FRONTEND:-$folder/include}
  with_frontend=()
  [[ ${nvcc:-} ]] || return 0
  if [[ ! -e $headers/cudnn_frontend.h && ! ${COMP_CUDNN_FRONTEND:-} ]]; then
    echo "Putting the headers of cuDNN's front end $frontend_version into .deps (a download of 12 MB)"
    rm -rf "$folder" "$folder.part"
    { [[ -x .venv/bin/pip ]] || python3 -m venv .venv; } &&
      .venv/bin/pip -q install --no-deps --target "$folder.part" "nvidia-cudnn-frontend==$frontend_version" &&
      mkdir -p "$folder" && mv "$folder.part/include" "$folder/include"
    rm -rf "$folder.part"
  fi
  if [[ ! -e $headers/cudnn_frontend.h ]]; then
    echo "run: no cudnn_frontend.h in $headers: attention on cuda will run operator by operator, and convolutions by older calls" >&2
    return 0
  fi
  with_frontend=("-Dcudnn_frontend=$headers")
}

# Sets torch_python to a Python that imports torch 2.11 or newer: COMP_PYTHON, else that of .venv, else the system's.
find_python_torch() {
  for torch_python in ${COMP_PYTHON:+"$COMP_PYTHON"} "$PWD/.venv/bin/python" "$(command -v python3)"; do
    ! "$torch_python" -c 'import torch; assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 11)' 2>/dev/null || return 0
  done
  torch_python=
  return 1
}

# The same; if there is none, .venv gets the whole wheel of torch (3 GB, with the CUDA libraries that it depends on), which
# is then LibTorch, too. What torch's own tests import (tests/suites) is added to .venv alone, and the frameworks: without
# these their tests are skipped.
need_python_torch() {
  if ! find_python_torch; then
    echo "Putting torch $torch_version into .venv (a download of 3 GB)"
    { [[ -x .venv/bin/pip ]] || python3 -m venv .venv; } && .venv/bin/pip -q install "torch==$torch_version" && find_python_torch || return 1
  fi
  if [[ $torch_python == "$PWD/.venv/bin/python" ]]; then
    "$torch_python" -c 'import numpy, expecttest' 2>/dev/null || .venv/bin/pip -q install numpy expecttest || return 1
    "$torch_python" -c 'from importlib.metadata import version as v; v("transformers"), v("accelerate"), v("lightning"), v("peft")' 2>/dev/null ||
      .venv/bin/pip -q install "${frameworks[@]}" || echo "run: no ${frameworks[*]} from PyPI: their tests are skipped" >&2
  fi
  : "${COMP_TORCH_PATH:=$("$torch_python" -c 'import torch; print(torch.__path__[0])')}"
}

# Puts MkDocs into .venv, which makes a site of docs/. Needs: own_meson's .venv.
need_site() {
  [[ $(.venv/bin/python -c 'from importlib.metadata import version; print(version("mkdocs-material"))' 2>/dev/null) != "$site_version" ]] || return 0
  echo "Putting MkDocs into .venv"
  { [[ -x .venv/bin/pip ]] || python3 -m venv .venv; } && .venv/bin/pip -q install "mkdocs-material==$site_version"
}

# Sets CXX_LD, which Meson reads, to a linker that is faster than the compiler's own, if there is one.
find_linker() {
  local one
  for one in mold lld; do
    [[ ${CXX_LD:-} ]] || ! $compiler -fuse-ld=$one -Wl,--version -o /dev/null &>/dev/null || export CXX_LD=$one
  done
}

# Sets gcc_heap to an option for g++, which collects garbage from 128 MB on and so spends a fifth of its time: with an eighth of
# this machine's memory it hardly has to.
find_gcc_heap() {
  gcc_heap="--param=ggc-min-heapsize=$(($(sed -n 's/^MemTotal: *\([0-9]*\) kB$/\1/p' /proc/meminfo) / 8))"
  $compiler -Werror "$gcc_heap" -E -x c++ /dev/null &>/dev/null || gcc_heap=
}

# What Meson is told, in with_torch: the LibTorch that is here, or that there is none.
torch_options() {
  with_torch=(-Dlibtorch=disabled -Dlibtorch_path=)
  ! find_torch || with_torch=(-Dlibtorch=enabled "-Dlibtorch_path=$torch_path")
}
