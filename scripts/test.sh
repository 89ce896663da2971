#!/bin/sh
# Installs what the tests need, and runs them on all cores.
#
#   sh scripts/test.sh           the default tests
#   sh scripts/test.sh --all     every test, those marked thorough or slow included
#
# Other arguments go to pytest, too:
#
#   sh scripts/test.sh -k frames
#   sh scripts/test.sh tests/derive/test_retile.py      every test of a file, as with --all
#   sh scripts/test.sh @tests/smoke.txt     a short selection from every part, for other versions
#
# Temporary files are in /dev/shm if 4 GiB are free there, else in /tmp; TMPDIR names another folder.
#
# scripts/setup.sh says how to choose the Python, the environment and the versions.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
# Without these programs, the default tests skip those that need them.
case " $* " in
    *" --all "*) programs="pg_ctlcluster pgbouncer chromium npm" ;;
    *) programs= ;;
esac
# shellcheck disable=SC2086
vfsd_environment test,fusepy,stitch,onnx,postgresql,ray-data,dask,s3,test-cluster,test-web \
    ffmpeg rsync git attr gcc $programs
# The tests start hundreds of processes: compiled modules are to be kept for the next one.
unset PYTHONDONTWRITEBYTECODE
# OpenBLAS threads of numpy spin while they wait for work; 2^4 cycles are enough.
export OPENBLAS_THREAD_TIMEOUT=4
# Tests of stores would wait for fsync a third of the time.  Some need user attributes, direct I/O
# and programs that they compile.
in_memory() {
    "$PYTHON" - /dev/shm 2>/dev/null <<'END'
import os, sys, tempfile
found = os.statvfs(sys.argv[1])
with tempfile.NamedTemporaryFile(dir=sys.argv[1]) as file:
    os.setxattr(file.fileno(), "user.vfsd", b"")
    os.close(os.open(file.name, os.O_RDONLY | os.O_DIRECT))
sys.exit(found.f_bavail * found.f_frsize < 4 << 30 or found.f_flag & os.ST_NOEXEC != 0)
END
}
if [ -z "${TMPDIR:-}" ] && in_memory; then export TMPDIR=/dev/shm; fi
exec "$PYTHON" -m pytest -n auto --dist worksteal "$@"
