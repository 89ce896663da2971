# Sourced by the other scripts: makes a virtual environment with vfsd and its dependencies.
#
#   . scripts/setup.sh
#   vfsd_environment EXTRAS PROGRAM...
#   "$PYTHON" ...
#
# EXTRAS are extras of setup.cfg, separated by commas ("" for none).  Each PROGRAM is a command that
# the caller needs.  On Debian and Ubuntu, root gets missing packages installed by apt-get, Python
# included.  Other users get the command to type.  Every step is announced on stderr.
#
# Settings, all optional:
#
#   VFSD_PYTHON       the Python to use, such as python3.12 (default: the first suitable one)
#   VFSD_ENVIRONMENT  the directory of the virtual environment (default: .venv)
#   VFSD_CONSTRAINTS  a pip constraints file with exact versions (default: constraints.txt);
#                     "none" installs the newest versions that setup.cfg allows

vfsd_say() { printf '%s\n' "$*" >&2; }
vfsd_step() { printf '==> %s\n' "$*" >&2; }

# ------------------------------------------------------------------------------------------ Python

vfsd_is_suitable() {
    command -v "$1" >/dev/null 2>&1 &&
        "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# Prints "MAJOR.MINOR" of a Python.
vfsd_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

# Prints every suitable Python of this machine as "MAJOR.MINOR PATH", the oldest first, one of each
# version.  Looks on PATH and among the versions that pyenv has.
vfsd_pythons() {
    pyenv_root=${PYENV_ROOT:-${HOME:-/root}/.pyenv}
    for candidate in python3 python3.11 python3.12 python3.13 python3.14 python3.15 python3.16 \
        "$pyenv_root"/versions/3.*/bin/python3; do
        if vfsd_is_suitable "$candidate"; then
            # sys.executable, since a shim of pyenv means another Python in another directory.
            "$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2], sys.executable)'
        fi
    done | sort -t. -k1,1n -k2,2n | awk '!seen[$1]++'
}

# Sets VFSD_PYTHON3 to the Python to use; fails where there is none.
vfsd_find_python() {
    VFSD_PYTHON3=
    if [ -n "${VFSD_PYTHON:-}" ]; then
        if ! vfsd_is_suitable "$VFSD_PYTHON"; then
            vfsd_say "VFSD_PYTHON must name Python 3.11 or newer, got $VFSD_PYTHON"
            return 2
        fi
        VFSD_PYTHON3=$VFSD_PYTHON
        return 0
    fi
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if vfsd_is_suitable "$candidate"; then
            VFSD_PYTHON3=$candidate
            return 0
        fi
    done
    return 1
}

# ---------------------------------------------------------------------------------- Debian packages

vfsd_may_install() { command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; }

# Runs a command, silent while it works.  Prints its output where it fails.
vfsd_quietly() {
    log=$(mktemp)
    status=0
    "$@" >"$log" 2>&1 </dev/null || status=$?
    if [ $status -ne 0 ]; then
        vfsd_say "failed with status $status: $*"
        sed 's/^/    /' "$log" >&2
    fi
    rm -f "$log"
    return $status
}

# dpkg that was killed leaves packages half installed, and apt-get then refuses all work.  Finishes
# what was interrupted; where that fails, the caller gets the output and the commands to type.
vfsd_repair_dpkg() {
    # Numbered files in "updates" are changes that dpkg has not merged into its list of packages.
    if [ -z "$(dpkg --audit 2>&1)" ] && ! ls /var/lib/dpkg/updates/[0-9]* >/dev/null 2>&1; then
        return 0
    fi
    vfsd_step "An earlier installation of Debian packages was interrupted; finishing it with: dpkg --configure -a"
    if ! vfsd_quietly env DEBIAN_FRONTEND=noninteractive \
        dpkg --force-confdef --force-confold --configure -a; then
        vfsd_say "dpkg could not finish the interrupted installation.  Type these, then start again:"
        vfsd_say "    dpkg --configure -a"
        vfsd_say "    apt-get install --fix-broken"
        return 1
    fi
}

vfsd_apt_update() {
    [ -z "${vfsd_updated:-}" ] || return 0
    vfsd_step "Reading the list of Debian packages (apt-get update)"
    vfsd_quietly apt-get -q -o DPkg::Lock::Timeout=300 update ||
        vfsd_say "going on with the list that this machine has"
    vfsd_updated=yes
}

vfsd_apt_install() {
    vfsd_repair_dpkg || return 1
    vfsd_apt_update
    names=
    for name in "$@"; do
        # Releases since 2024 have the 64-bit time_t variant of this library, under another name.
        if [ "$name" = libglib2.0-0 ] && vfsd_is_offered libglib2.0-0t64; then
            name=libglib2.0-0t64
        fi
        names="$names $name"
    done
    vfsd_step "Installing Debian packages:$names (with what they depend on; ffmpeg alone brings over 100)"
    # shellcheck disable=SC2086
    vfsd_quietly env DEBIAN_FRONTEND=noninteractive \
        apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $names || {
        vfsd_say "apt-get could not install:$names"
        return 1
    }
}

vfsd_is_offered() { apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [0-9]'; }

# Prints the packages that bring a PROGRAM.
vfsd_packages_of() {
    case $1 in
        gcc) echo gcc libc6-dev ;; # the headers are only a recommendation of gcc
        pg_ctlcluster) echo postgresql ;;
        *) echo "$1" ;;
    esac
}

# Without a suitable Python: the one that the distribution calls python3, else the newest that it has.
vfsd_install_python() {
    if ! vfsd_may_install; then
        vfsd_say "vfsd needs Python 3.11 or newer.  Type this, then start again:"
        vfsd_say "    sudo apt-get update && sudo apt-get install -y python3 python3-venv"
        return 1
    fi
    vfsd_step "Python 3.11 or newer is not on this machine"
    vfsd_apt_install python3 python3-venv || return 1
    vfsd_find_python && return 0
    for version in 3.14 3.13 3.12 3.11; do
        if vfsd_is_offered "python$version"; then
            vfsd_apt_install "python$version" "python$version-venv" || return 1
            vfsd_find_python && return 0
        fi
    done
    vfsd_say "this release of the distribution has no Python 3.11 or newer"
    return 1
}

# Installs libfuse, the shared libraries that OpenCV loads, and the PROGRAMs, where they are missing.
vfsd_install_packages() {
    missing=
    command -v fusermount3 >/dev/null 2>&1 || missing="$missing fuse3"
    for program in "$@"; do
        # Servers are in /usr/sbin, which is not on the PATH of every user.
        (PATH=$PATH:/usr/sbin command -v "$program") >/dev/null 2>&1 || missing="$missing $(vfsd_packages_of "$program")"
    done
    if ! "$VFSD_PYTHON3" -c 'import venv, ensurepip' 2>/dev/null; then
        # Debian has a package for each version; python3-venv is that of the default version.
        case $("$VFSD_PYTHON3" -c 'import sys; print(sys.executable)') in
            /usr/bin/python3) missing="$missing python3-venv" ;;
            *) missing="$missing python$(vfsd_version "$VFSD_PYTHON3")-venv" ;;
        esac
    fi
    # ldconfig is in /sbin, which is not on the PATH of every user.
    libraries=$(PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null)
    case $libraries in *libGL.so.1*) ;; *) missing="$missing libgl1" ;; esac
    case $libraries in *libglib-2.0.so.0*) ;; *) missing="$missing libglib2.0-0" ;; esac
    [ -n "$missing" ] || return 0
    if vfsd_may_install; then
        # shellcheck disable=SC2086
        vfsd_apt_install $missing
    else
        vfsd_say "these Debian packages are missing:$missing.  Type this, then start again:"
        vfsd_say "    sudo apt-get update && sudo apt-get install -y$missing"
        return 1
    fi
}

# --------------------------------------------------------------------------------- the environment

# Sets `pip_words` to the options of pip that choose versions.
vfsd_choose_versions() {
    constraints=${VFSD_CONSTRAINTS:-constraints.txt}
    pip_words="--upgrade --upgrade-strategy eager"
    [ "$constraints" != none ] || return 0
    newest=$(sed -n 's/^# Python 3\.[0-9]* to 3\.\([0-9]*\)$/\1/p' "$constraints")
    if [ "$("$PYTHON" -c 'import sys; print(sys.version_info[1])')" -gt "${newest:-99}" ]; then
        vfsd_say "$constraints has no versions for Python $(vfsd_version "$PYTHON"); taking the newest that setup.cfg allows"
        constraints=none
        return 0
    fi
    pip_words="--constraint $constraints"
}

vfsd_environment() {
    extras=$1
    shift
    status=0
    vfsd_find_python || status=$?
    case $status in
        0) ;;
        1) vfsd_install_python || return 1 ;;
        *) return 1 ;;
    esac
    vfsd_install_packages "$@" || return 1

    folder=${VFSD_ENVIRONMENT:-.venv}
    PYTHON=$folder/bin/python
    # An environment whose Python has gone or is too old, or whose creation was interrupted, is
    # made again.  So is one of another version than the caller has asked for.
    if [ -e "$folder" ]; then
        if ! vfsd_is_suitable "$PYTHON" || ! "$PYTHON" -m pip --version >/dev/null 2>&1; then
            vfsd_say "$folder cannot be used, and is made again"
            rm -rf "$folder"
        elif [ -n "${VFSD_PYTHON:-}" ] &&
            [ "$(vfsd_version "$PYTHON")" != "$(vfsd_version "$VFSD_PYTHON3")" ]; then
            vfsd_say "$folder has Python $(vfsd_version "$PYTHON"), and is made again"
            rm -rf "$folder"
        fi
    fi
    if [ ! -e "$folder" ]; then
        vfsd_step "Making a virtual environment in $folder, with Python $(vfsd_version "$VFSD_PYTHON3")"
        vfsd_quietly "$VFSD_PYTHON3" -m venv "$folder" || return 1
    fi

    vfsd_choose_versions
    # The note lists what has been installed: first the files that say what to install, then the
    # extras.  What is listed is not installed again.
    note=$folder/vfsd-installed
    if [ "$constraints" = none ]; then
        basis="none $PWD"
    else
        basis="$(cat setup.cfg pyproject.toml "$constraints" | cksum) $PWD"
    fi
    [ "$(sed -n 1p "$note" 2>/dev/null)" = "$basis" ] || printf '%s\n' "$basis" >"$note"
    # The newest versions may be others today.
    if [ "$constraints" = none ] || ! sed 1d "$note" | grep -qxF "[$extras]"; then
        vfsd_step "Installing vfsd and its Python packages into $folder (about 200 MB to download, a minute or two)"
        # shellcheck disable=SC2086
        vfsd_quietly "$PYTHON" -m pip install -q --disable-pip-version-check $pip_words \
            -e ".${extras:+[$extras]}" || return 1
        printf '[%s]\n' "$extras" >>"$note"
    fi
}
