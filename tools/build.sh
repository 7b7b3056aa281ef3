# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Configures, builds and tests one build folder; sourced by ./run.

# configure FOLDER OPTIONS...: makes the folder, or brings it up to date; anew if another Meson or compiler made it, or
# meson_options.txt was another one, which Meson would refuse.
configure() {
  local folder=$1 made_by
  shift
  made_by="$(meson --version) $CXX ${CXX_LD:-} ${LD_LIBRARY_PATH:-} $(cksum <meson_options.txt)"
  [[ $(cat "$folder/made_by" 2>/dev/null) == "$made_by" ]] || rm -rf "$folder"
  if [[ -f $folder/build.ninja ]]; then
    meson setup --reconfigure "$folder" "$@"
  else
    meson setup "$folder" "$@" && echo "$made_by" >"$folder/made_by"
  fi
}

# compile FOLDER [TARGET...]: in JOBS jobs (default: ninja's choice); goes on after an error, to show all.
compile() { ninja -C "$1" -k 0 ${JOBS:+-j "$JOBS"} "${@:2}"; }

# stage FOLDER "AREA..." OPTIONS...: configures, builds and runs the tests of these folders under tests/ or of this name.
# What goes wrong is noted in `broken`, never ends the script.
broken=() tested=() left_to_all=""
stage() {
  local folder=$1 areas=${2// /|}
  local -a targets tests
  echo "== $folder"
  mkdir -p build
  rm -f "$folder/meson-logs/testlog.json"
  if ! configure "$folder" "${@:3}" >"$folder.log" 2>&1; then
    cat "$folder.log"
    broken+=("$folder was not configured")
    return
  fi
  sed -nE '/^    [a-z]* *: (YES|NO)( \(.*\))?$/p' "$folder.log" # the summary: which backends and parts are built
  # What is in the areas' folders and what their tests run; the programs of some areas are in another's folder.
  mapfile -t targets < <(ninja -C "$folder" -t targets all | sed -nE "s#^(((tests/)?($areas)|python/comp)/[^:/]*): .*(_LINKER|CUSTOM_COMMAND(_DEP)?)\$#\1#p")
  # shellcheck disable=SC2086 # several names
  mapfile -t -O ${#targets[@]} targets < <(meson introspect --tests "$folder" | python3 tools/built_tests.py programs "$folder" $2)
  compile "$folder" "${targets[@]}" || broken+=("$folder did not build whole")
  # shellcheck disable=SC2086 # several names
  mapfile -t tests < <(meson introspect --tests "$folder" | python3 tools/built_tests.py built "$folder" $2)
  # A slow machine that does other things besides takes several times as long as these tests take elsewhere.
  meson test -C "$folder" --no-rebuild --print-errorlogs --timeout-multiplier 4 "${tests[@]}" || true
  [[ -f $folder/meson-logs/testlog.json ]] || broken+=("$folder was not tested")
  tested+=("$folder")
}

# require_built PART FOLDER: a backend that this machine could have but the summary says NO to is a failure, with its reason.
require_built() {
  local why
  why=$(sed -nE "s/^    $1 *: NO \\((.*)\\)\$/\\1/p" "$2.log")
  [[ ! $why ]] || broken+=("the $1 backend was not built: $why")
}

finish_tests() {
  local code=$1
  ((code == 0)) || broken+=("the script stopped with $code")
  if ((${#tested[@]} == 0)); then
    echo "0 passed, ${#broken[@]} failed"
    return 1
  fi
  python3 tools/lines.py
  [[ ! $left_to_all ]] || printf '\nLeft to ./run test --all: %s\n' "$left_to_all"
  python3 tools/count_tests.py "${tested[@]}" -- "${broken[@]}"
}
