#!/bin/sh
# Installs what the tests need, and runs them on all cores.  Arguments go to pytest: sh scripts/test.sh -k frames
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
vfsd_environment test,fusepy,stitch ffmpeg rsync git attr gcc
# The tests start hundreds of processes: none is to compile what it imports once more.
unset PYTHONDONTWRITEBYTECODE
# Nor is numpy's BLAS to look for work for tens of milliseconds in each.
export OPENBLAS_THREAD_TIMEOUT=4
exec "$PYTHON" -m pytest -n auto --dist worksteal "$@"
