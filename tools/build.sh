# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Configures, builds and tests one build folder; sourced by ./run.

# configure FOLDER OPTIONS...: makes the folder, or brings it up to date; anew where it was made by another Meson.
configure() {
  local folder=$1
  shift
  if [[ ! -f $folder/build.ninja ]]; then
    meson setup "$folder" "$@"
  else
    meson setup --reconfigure "$folder" "$@" || meson setup --wipe "$folder" "$@"
  fi
}

# compile FOLDER [TARGET]: at lower priority, in JOBS jobs (default: ninja's choice); goes on after an error, to show all.
compile() { nice ninja -C "$1" -k 0 ${JOBS:+-j "$JOBS"} "${@:2}"; }

# stage FOLDER OPTIONS...: configures, builds and tests; what goes wrong is noted in `broken`, never ends the script.
broken=()
stage() {
  local folder=$1
  echo "== $folder"
  rm -f "$folder/meson-logs/testlog.json"
  mkdir -p build
  if ! configure "$@" >"$folder.log" 2>&1; then
    cat "$folder.log"
    broken+=("$folder was not configured")
    return
  fi
  sed -n '/^    [a-z]* *: \(YES\|NO\)$/p' "$folder.log" # the summary: which backends and parts are built
  local -a built=()
  if ! compile "$folder"; then
    broken+=("$folder did not build whole")
    mapfile -t built < <(meson introspect --tests "$folder" | python3 tools/built_tests.py)
  fi
  meson test -C "$folder" --no-rebuild --print-errorlogs "${built[@]}" || true
  [[ -f $folder/meson-logs/testlog.json ]] || broken+=("$folder was not tested")
  tested+=("$folder")
}
tested=()

finish_tests() {
  local code=$1
  ((code == 0)) || broken+=("the script stopped with $code")
  if ((${#tested[@]} == 0)); then
    echo "0 passed, ${#broken[@]} failed"
    return 1
  fi
  python3 tools/count_tests.py "${tested[@]}" -- "${broken[@]}"
}
