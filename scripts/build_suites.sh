#!/bin/sh
# Builds what python -m benchmarks.suites needs and no package has, from checkouts that are given:
#
#   git clone https://github.com/pjd/pjdfstest
#   git clone https://github.com/kdave/xfstests
#   scripts/build_suites.sh INTO pjdfstest xfstests
#
# Makes INTO/pjdfstest (a copy of the checkout, built), INTO/fsx and INTO/fsstress, and prints the
# options for them.  A checkout that is not given ("") is left out.  Needs gcc and make; pjdfstest
# needs autoconf, automake and perl, fsstress xfslibs-dev.  With libaio-dev both of xfstests do
# asynchronous reads and writes, too.  xfstests itself is not configured: that would need the
# libraries of all its other programs.

set -eu

say() { printf '%s\n' "$*" >&2; }

if [ $# -ne 3 ]; then
    say "usage: $0 INTO PJDFSTEST XFSTESTS"
    exit 2
fi
mkdir -p "$1"
into=$(cd "$1" && pwd)
options=

if [ -n "$2" ]; then
    rm -rf "$into/pjdfstest"
    cp -a "$2" "$into/pjdfstest"
    (cd "$into/pjdfstest" && autoreconf -ifs && ./configure && make pjdfstest) >&2
    options="$options --pjdfstest $into/pjdfstest"
fi

if [ -n "$3" ]; then
    headers=$(mktemp -d)
    trap 'rm -rf "$headers"' EXIT
    # What configure would find out, as far as these two go by it.
    for name in assert bstring dirent err errno libgen malloc stdlib string strings time unistd wait \
        linux/falloc linux/fiemap linux/fs sys/fcntl sys/ioctl sys/mman sys/param sys/prctl sys/stat \
        sys/statvfs sys/time sys/types sys/uuid sys/wait xfs/xfs xfs/libxfs xfs/jdm attr/attributes; do
        macro=HAVE_$(printf '%s' "$name" | tr 'a-z/' 'A-Z_')_H
        printf '#if __has_include(<%s.h>)\n#define %s 1\n#endif\n' "$name" "$macro"
    done >"$headers/config.h"
    words="-w -O2 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DSTDC_HEADERS=1 -I$headers -I$3/src"
    words="$words -DHAVE_RENAMEAT2=1 -include getopt.h -DHAVE_FALLOCATE=1 -DHAVE_COPY_FILE_RANGE=1 ${CPPFLAGS:-}"
    libraries="${LDFLAGS:-} -lm"
    # shellcheck disable=SC2086
    if printf '#include <libaio.h>\n' | gcc ${CPPFLAGS:-} -E - >/dev/null 2>&1; then
        words="$words -DAIO"
        libraries="$libraries -laio"
    fi
    for name in fsx fsstress; do
        # shellcheck disable=SC2086
        gcc $words "$3/ltp/$name.c" -o "$into/$name" $libraries -lpthread
        options="$options --$name $into/$name"
    done
fi

printf 'python -m benchmarks.suites%s\n' "$options"
