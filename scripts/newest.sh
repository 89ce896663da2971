#!/bin/sh
# Runs the tests with the newest release of every dependency, whatever the upper bounds in setup.cfg
# say, and tells which releases break them.  Arguments go to pytest:
#
#   sh scripts/newest.sh
#   sh scripts/newest.sh @tests/smoke.txt
#
# Everything is installed into a scratch environment, with the newest Python of this machine or that
# of VFSD_PYTHON.  Tests that fail run again with the versions of constraints.txt.  Those that pass
# then are tried with one newer package at a time, to find out which one breaks them.  Ends with 0
# where every test passes, else with 1.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
if [ -z "${VFSD_PYTHON:-}" ]; then VFSD_PYTHON=$(vfsd_pythons | tail -n 1 | cut -d' ' -f2); fi
export VFSD_PYTHON

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
export VFSD_ENVIRONMENT="$scratch/environment"
vfsd_environment test,fusepy,stitch ffmpeg rsync git attr gcc
unset PYTHONDONTWRITEBYTECODE
export OPENBLAS_THREAD_TIMEOUT=4

install() { vfsd_quietly "$PYTHON" -m pip install -q --disable-pip-version-check --no-deps "$@"; }
tests() { "$PYTHON" -m pytest -n auto --dist worksteal -o cache_dir="$scratch/cache" "$@"; }

# The bounds of vfsd alone are ignored: those that packages set for each other hold.
names=$("$PYTHON" -m scripts.make_constraints --names)
vfsd_step "Upgrading to the newest releases"
# shellcheck disable=SC2086
vfsd_quietly "$PYTHON" -m pip install -q --disable-pip-version-check --upgrade \
    --upgrade-strategy eager $names
changed=$("$PYTHON" -m scripts.compare_versions)
vfsd_say "$("$PYTHON" --version); versions that differ from constraints.txt:"
vfsd_say "${changed:-none}"

status=0
tests "$@" || status=$?
if [ $status -eq 0 ]; then
    vfsd_say "every test passes with the newest releases"
    exit 0
fi
# 1: some tests failed.  Everything else is an error of pytest, of its arguments or of a conftest.py,
# where there is no list of tests that failed.
select="--last-failed --last-failed-no-failures none"
[ $status -eq 1 ] && [ -d "$scratch/cache" ] || select=
[ -z "$select" ] || cp -r "$scratch/cache" "$scratch/failed"
again() {
    rm -rf "$scratch/cache"
    [ ! -d "$scratch/failed" ] || cp -r "$scratch/failed" "$scratch/cache"
    # shellcheck disable=SC2086
    tests -q $select "$@" >"$scratch/log" 2>&1
}

if [ -z "$changed" ]; then
    vfsd_say "tests fail, and all versions are those of constraints.txt"
    exit 1
fi
printf '%s\n' "$changed" | sed 's/^\([^ ]*\) \([^ ]*\) (.*: \(.*\))$/\1 \2 \3/' >"$scratch/changed"
pinned=$(awk '{ print $1 "==" $3 }' "$scratch/changed")
vfsd_step "Running what failed again, with the versions of constraints.txt"
# shellcheck disable=SC2086
install $pinned
if ! again "$@"; then
    tail -n 20 "$scratch/log" >&2
    vfsd_say "tests fail with the versions of constraints.txt, too"
    exit 1
fi
broke=
while read -r name new old; do
    vfsd_step "Trying $name $new alone"
    install "$name==$new"
    again "$@" </dev/null || broke="$broke
    $name $new (works with $old)"
    install "$name==$old"
done <"$scratch/changed"
vfsd_say "tests that pass with constraints.txt fail with:${broke:-
    several of these together, none of them alone:
$changed}"
exit 1
