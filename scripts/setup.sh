# Sourced by the other scripts: a virtual environment with everything in it, made where it is missing.
#
#   . scripts/setup.sh; vfsd_environment EXTRA; "$PYTHON" ...
#
# Installs libfuse and what a bare machine lacks when it may, and says what to type when it may not.

vfsd_say() { printf '%s\n' "$*" >&2; }

vfsd_packages() {
    # What is missing of: libfuse 3, the tools of the tests, libraries that opencv-python loads.
    missing=
    command -v fusermount3 >/dev/null 2>&1 || missing="$missing fuse3"
    for tool in "$@"; do command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"; done
    "$VFSD_PYTHON3" -c 'import venv, ensurepip' 2>/dev/null || missing="$missing python3-venv"
    ldconfig -p 2>/dev/null | grep -q 'libGL\.so\.1' || missing="$missing libgl1"
    ldconfig -p 2>/dev/null | grep -q 'libglib-2\.0\.so\.0' || missing="$missing libglib2.0-0"
    [ -z "$missing" ] && return 0
    if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
        vfsd_say "installing$missing"
        apt-get -qq update >/dev/null 2>&1 || true
        # shellcheck disable=SC2086
        if ! DEBIAN_FRONTEND=noninteractive apt-get -qq install -y $missing >/dev/null 2>&1; then
            # Ubuntu 24.04 has renamed one of them.
            missing=$(printf '%s' "$missing" | sed 's/libglib2\.0-0/libglib2.0-0t64/')
            # shellcheck disable=SC2086
            DEBIAN_FRONTEND=noninteractive apt-get -qq install -y $missing >/dev/null || {
                vfsd_say "could not install:$missing"
                return 1
            }
        fi
    else
        vfsd_say "missing on this machine:$missing. Type this, then start again:"
        vfsd_say "    sudo apt-get update && sudo apt-get install -y$missing"
        return 1
    fi
}

vfsd_environment() {
    VFSD_PYTHON3=
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            VFSD_PYTHON3=$candidate
            break
        fi
    done
    if [ -z "$VFSD_PYTHON3" ]; then
        vfsd_say "Python 3.11 or newer is needed; type: sudo apt-get install -y python3 python3-venv"
        return 1
    fi
    extra=$1
    shift
    vfsd_packages "$@" || return 1
    [ -x .venv/bin/python ] || "$VFSD_PYTHON3" -m venv .venv || return 1
    PYTHON=.venv/bin/python
    # The stamp names what was asked for, so that a changed list is installed and nothing else is.
    wanted="$extra $(cksum < setup.cfg) $(cksum < pyproject.toml)"
    if [ "$(cat .venv/vfsd-installed 2>/dev/null)" != "$wanted" ]; then
        vfsd_say "installing vfsd and what it needs into .venv"
        "$PYTHON" -m pip install -q --disable-pip-version-check -e ".${extra:+[$extra]}" || return 1
        printf '%s' "$wanted" > .venv/vfsd-installed
    fi
}
