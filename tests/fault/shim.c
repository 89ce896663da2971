/* Sees every call by which a process changes, opens or reads files below one directory.

   Preloaded (LD_PRELOAD), it stands between libc and all that calls it: Python, SQLite, FFmpeg.
   Nothing happens until `fault_begin`.  Then each such call counts; it may be written to a log,
   with its bytes, be the last thing that the process does, or fail.  Calls take turns, so that
   the log has the order in which the disk saw them.  What libc does to itself (stdio) is not
   seen, nor are writes through a mapping: `tests/fault/test_layer.py` shows that nobody in vfsd
   changes files like that, SQLite's -shm apart, which is worth nothing after a power cut. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Kinds of calls; tests/fault/layer.py has the same. */
enum { OPEN, CREATE, READ, WRITE, SIZE, SYNC, NAME, MARK, KINDS };
/* What is in the log. */
enum { L_CREATE = 1, L_NAMELESS, L_WRITE, L_TRUNCATE, L_ZERO, L_SYNC, L_SYNCDIR, L_SYNCALL,
       L_RENAME, L_EXCHANGE, L_LINK, L_UNLINK, L_MKDIR, L_RMDIR, L_SYMLINK, L_MARK };

struct record {
    uint32_t what, path_length, other_length, reserved;
    uint64_t file; /* inode number */
    int64_t offset;
    uint64_t length; /* of the data that follow the paths; a size for L_TRUNCATE and L_ZERO */
};

/* Shared with whoever forked this process, and with its own children. */
struct control {
    int64_t changes;      /* calls seen that change something */
    int64_t seen[KINDS];  /* calls seen of each kind */
    int64_t marks;        /* steps that were acknowledged */
    int64_t hits;         /* calls that were made to fail */
};

static struct control *control;
static char root[PATH_MAX];
static size_t root_length;
static int log_fd = -1, armed, skip_sync;
static int64_t kill_at = -1, fail_at = -1;
static int fail_kinds, fail_errno, fail_on;
static pthread_mutex_t turn = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

/* `shared` is the memory of `struct control`.  `kill` and `fail` count from 0, below 0: never.
   `fail` counts calls of the `kinds` (bits); with `on`, all of them fail from then on. */
void fault_begin(const char *where, struct control *shared, int log, int64_t kill, int64_t fail,
                 int kinds, int error, int on, int no_sync)
{
    root_length = (size_t)snprintf(root, sizeof root, "%s", where);
    control = shared;
    log_fd = log;
    kill_at = kill;
    fail_at = fail;
    fail_kinds = kinds;
    fail_errno = error;
    fail_on = on;
    skip_sync = no_sync;
    armed = 1;
}

void fault_end(void)
{
    pthread_mutex_lock(&turn);
    armed = 0;
    pthread_mutex_unlock(&turn);
}

static int below(const char *path)
{
    return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || !path[root_length]);
}

/* The path that a call is about, in `out`; 0 where it is not below the root. */
static int path_at(int at, const char *path, char *out)
{
    if (!armed || !path)
        return 0;
    if (path[0] == '/') {
        snprintf(out, PATH_MAX, "%s", path);
    } else {
        char link[64];
        ssize_t length;
        if (at == AT_FDCWD)
            snprintf(link, sizeof link, "/proc/self/cwd");
        else
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        length = readlink(link, out, PATH_MAX - 1);
        if (length < 0)
            return 0;
        snprintf(out + length, PATH_MAX - (size_t)length, "%s%s", *path ? "/" : "", path);
    }
    return below(out);
}

static int path_of(int fd, char *out)
{
    char link[64];
    ssize_t length;
    if (!armed || fd < 0 || fd == log_fd)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, out, PATH_MAX - 1);
    if (length < 0)
        return 0;
    out[length] = 0;
    return below(out);
}

static uint64_t inode_of(int fd)
{
    struct stat found;
    return fstat(fd, &found) ? 0 : (uint64_t)found.st_ino;
}

static uint64_t inode_at(const char *path)
{
    struct stat found;
    return lstat(path, &found) ? 0 : (uint64_t)found.st_ino;
}

static void put(const void *data, size_t length)
{
    while (length) {
        ssize_t done = syscall(SYS_write, log_fd, data, length);
        if (done <= 0)
            _exit(99);
        data = (const char *)data + done;
        length -= (size_t)done;
    }
}

static void note(int what, uint64_t file, int64_t offset, uint64_t length, const char *path,
                 const char *other, const void *data)
{
    struct record head = {(uint32_t)what, path ? (uint32_t)strlen(path) : 0,
                          other ? (uint32_t)strlen(other) : 0, 0, file, offset, length};
    if (log_fd < 0)
        return;
    put(&head, sizeof head);
    put(path, head.path_length);
    put(other, head.other_length);
    if (data)
        put(data, length);
}

/* One call of that kind begins: 0, or -1 with errno where it is to fail. */
static int enter(int kind)
{
    int64_t number;
    pthread_mutex_lock(&turn);
    if (!armed)
        return 0;
    if (kind != OPEN && kind != READ) {
        number = control->changes++;
        if (number == kill_at)
            syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    }
    control->seen[kind]++;
    if (fail_at >= 0 && (fail_kinds >> kind & 1)) {
        if (fail_at == 0) {
            if (!fail_on)
                fail_at = -1;
            control->hits++;
            errno = fail_errno;
            return -1;
        }
        fail_at--;
    }
    return 0;
}

static void leave(void)
{
    int kept = errno;
    pthread_mutex_unlock(&turn);
    errno = kept;
}

/* What the program says by itself: a step is done. */
void fault_mark(void)
{
    pthread_mutex_lock(&turn);
    if (armed) {
        control->marks++;
        note(L_MARK, 0, 0, 0, NULL, NULL, NULL);
    }
    pthread_mutex_unlock(&turn);
}

/* ------------------------------------------------------------------------------------ open */

static int do_open(int at, const char *path, int flags, mode_t mode)
{
    char full[PATH_MAX];
    int fd, was_there, creates = (flags & O_CREAT) != 0;
    int nameless = (flags & O_TMPFILE) == O_TMPFILE;
    REAL(int, "openat64", int, const char *, int, ...);
    if (!path_at(at, path, full))
        return real(at, path, flags, mode);
    was_there = nameless ? 0 : inode_at(full) != 0;
    /* Making a file, or emptying one, changes something. */
    int kind = nameless || (creates && !was_there) ? CREATE : (flags & O_TRUNC) ? SIZE : OPEN;
    if (enter(kind)) {
        leave();
        return -1;
    }
    fd = real(at, path, flags, mode);
    if (fd >= 0 && kind == CREATE)
        note(nameless ? L_NAMELESS : L_CREATE, inode_of(fd), 0, 0, full, NULL, NULL);
    else if (fd >= 0 && kind == SIZE)
        note(L_TRUNCATE, inode_of(fd), 0, 0, full, NULL, NULL);
    leave();
    return fd;
}

#define MODE(flags, last) mode_t mode = 0; \
    if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) { \
        va_list more; va_start(more, last); mode = va_arg(more, mode_t); va_end(more); }

int open(const char *path, int flags, ...) { MODE(flags, flags) return do_open(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags, flags) return do_open(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags, flags) return do_open(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags, flags) return do_open(at, path, flags, mode); }
int __open_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int __openat_2(int at, const char *path, int flags) { return do_open(at, path, flags, 0); }
int __openat64_2(int at, const char *path, int flags) { return do_open(at, path, flags, 0); }
int creat(const char *path, mode_t mode) { return do_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return do_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* ------------------------------------------------------------------------------------ read */

#define READING(call) { \
    char full[PATH_MAX]; ssize_t done; \
    if (!path_of(fd, full)) return call; \
    if (enter(READ)) { leave(); return -1; } \
    pthread_mutex_unlock(&turn); /* others may go on */ \
    done = call; return done; }

ssize_t read(int fd, void *to, size_t count) { REAL(ssize_t, "read", int, void *, size_t); READING(real(fd, to, count)) }
ssize_t __read_chk(int fd, void *to, size_t count, size_t room) { (void)room; return read(fd, to, count); }
ssize_t pread64(int fd, void *to, size_t count, off64_t at) { REAL(ssize_t, "pread64", int, void *, size_t, off64_t); READING(real(fd, to, count, at)) }
ssize_t pread(int fd, void *to, size_t count, off_t at) { return pread64(fd, to, count, at); }
ssize_t __pread64_chk(int fd, void *to, size_t count, off64_t at, size_t room) { (void)room; return pread64(fd, to, count, at); }
ssize_t preadv64(int fd, const struct iovec *to, int n, off64_t at) { REAL(ssize_t, "preadv64", int, const struct iovec *, int, off64_t); READING(real(fd, to, n, at)) }
ssize_t preadv(int fd, const struct iovec *to, int n, off_t at) { return preadv64(fd, to, n, at); }
ssize_t preadv64v2(int fd, const struct iovec *to, int n, off64_t at, int flags) { REAL(ssize_t, "preadv64v2", int, const struct iovec *, int, off64_t, int); READING(real(fd, to, n, at, flags)) }
ssize_t preadv2(int fd, const struct iovec *to, int n, off_t at, int flags) { return preadv64v2(fd, to, n, at, flags); }
ssize_t readv(int fd, const struct iovec *to, int n) { REAL(ssize_t, "readv", int, const struct iovec *, int); READING(real(fd, to, n)) }

/* ----------------------------------------------------------------------------------- write */

/* What a call has just put into a file, read back for the log. */
static void note_written(int fd, off64_t at, ssize_t count)
{
    static char *kept;
    static size_t room;
    char link[64];
    int again;
    ssize_t done = 0;
    if (log_fd < 0 || count <= 0)
        return;
    if (room < (size_t)count) {
        if (kept)
            munmap(kept, room);
        room = ((size_t)count + 65535) & ~(size_t)65535;
        kept = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    again = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC);
    while (again >= 0 && done < count) {
        ssize_t got = syscall(SYS_pread64, again, kept + done, (size_t)(count - done), at + done);
        if (got <= 0)
            break;
        done += got;
    }
    if (again >= 0)
        syscall(SYS_close, again);
    if (done < count)
        _exit(98);
    note(L_WRITE, inode_of(fd), at, (uint64_t)count, NULL, NULL, kept);
}

#define WRITING(call, placed) { \
    char full[PATH_MAX]; ssize_t done; \
    if (!path_of(fd, full)) return call; \
    if (enter(WRITE)) { leave(); return -1; } \
    done = call; \
    if (done > 0) { int kept = errno; note_written(fd, (placed), done); errno = kept; } \
    leave(); return done; }

#define HERE (lseek64(fd, 0, SEEK_CUR) - done)

ssize_t write(int fd, const void *from, size_t count) { REAL(ssize_t, "write", int, const void *, size_t); WRITING(real(fd, from, count), HERE) }
ssize_t writev(int fd, const struct iovec *from, int n) { REAL(ssize_t, "writev", int, const struct iovec *, int); WRITING(real(fd, from, n), HERE) }
ssize_t pwrite64(int fd, const void *from, size_t count, off64_t at) { REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t); WRITING(real(fd, from, count, at), at) }
ssize_t pwrite(int fd, const void *from, size_t count, off_t at) { return pwrite64(fd, from, count, at); }
ssize_t pwritev64(int fd, const struct iovec *from, int n, off64_t at) { REAL(ssize_t, "pwritev64", int, const struct iovec *, int, off64_t); WRITING(real(fd, from, n, at), at) }
ssize_t pwritev(int fd, const struct iovec *from, int n, off_t at) { return pwritev64(fd, from, n, at); }
ssize_t pwritev64v2(int fd, const struct iovec *from, int n, off64_t at, int flags) { REAL(ssize_t, "pwritev64v2", int, const struct iovec *, int, off64_t, int); WRITING(real(fd, from, n, at, flags), at < 0 ? HERE : at) }
ssize_t pwritev2(int fd, const struct iovec *from, int n, off_t at, int flags) { return pwritev64v2(fd, from, n, at, flags); }
ssize_t sendfile64(int fd, int in, off64_t *from, size_t count) { REAL(ssize_t, "sendfile64", int, int, off64_t *, size_t); WRITING(real(fd, in, from, count), HERE) }
ssize_t sendfile(int fd, int in, off_t *from, size_t count) { return sendfile64(fd, in, from, count); }

ssize_t copy_file_range(int in, off64_t *from, int fd, off64_t *to, size_t count, unsigned flags)
{
    off64_t at = to ? *to : -1;
    REAL(ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned);
    WRITING(real(in, from, fd, to, count, flags), at < 0 ? HERE : at)
}

int ioctl(int fd, unsigned long request, ...)
{
    char full[PATH_MAX];
    va_list more;
    void *argument;
    int done;
    REAL(int, "ioctl", int, unsigned long, ...);
    va_start(more, request);
    argument = va_arg(more, void *);
    va_end(more);
    if ((request != FICLONE && request != FICLONERANGE) || !path_of(fd, full))
        return real(fd, request, argument);
    if (enter(WRITE)) {
        leave();
        return -1;
    }
    done = real(fd, request, argument);
    if (done == 0) {
        struct stat found;
        fstat(fd, &found);
        note_written(fd, 0, found.st_size);
    }
    leave();
    return done;
}

#define SIZING(kind, call, failed, noted) { \
    char full[PATH_MAX]; int done; \
    if (!path_of(fd, full)) return call; \
    if (enter(kind)) { leave(); return failed; } \
    done = call; \
    if (done == 0) noted; \
    leave(); return done; }

int ftruncate64(int fd, off64_t size) { REAL(int, "ftruncate64", int, off64_t); SIZING(SIZE, real(fd, size), -1, note(L_TRUNCATE, inode_of(fd), 0, (uint64_t)size, full, NULL, NULL)) }
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int truncate64(const char *path, off64_t size)
{
    int done, fd = open64(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    done = ftruncate64(fd, size);
    close(fd);
    return done;
}
int truncate(const char *path, off_t size) { return truncate64(path, size); }

/* Room is size too, unless it keeps it; holes and zeroed ranges are L_ZERO. */
static void note_fallocate(int fd, int mode, off64_t at, off64_t length, off64_t before)
{
    struct stat now;
    fstat(fd, &now);
    if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
        note(L_ZERO, inode_of(fd), at, (uint64_t)length, NULL, NULL, NULL);
    if (now.st_size != before)
        note(L_TRUNCATE, inode_of(fd), 0, (uint64_t)now.st_size, NULL, NULL, NULL);
}

int fallocate64(int fd, int mode, off64_t at, off64_t length)
{
    char full[PATH_MAX];
    struct stat before;
    int done;
    REAL(int, "fallocate64", int, int, off64_t, off64_t);
    if (!path_of(fd, full))
        return real(fd, mode, at, length);
    if (enter(WRITE)) {
        leave();
        return -1;
    }
    fstat(fd, &before);
    done = real(fd, mode, at, length);
    if (done == 0)
        note_fallocate(fd, mode, at, length, before.st_size);
    leave();
    return done;
}
int fallocate(int fd, int mode, off_t at, off_t length) { return fallocate64(fd, mode, at, length); }
int posix_fallocate64(int fd, off64_t at, off64_t length) { return fallocate64(fd, 0, at, length) ? errno : 0; }
int posix_fallocate(int fd, off_t at, off_t length) { return posix_fallocate64(fd, at, length); }

/* ------------------------------------------------------------------------------------ sync */

static int is_directory(int fd)
{
    struct stat found;
    return fstat(fd, &found) == 0 && S_ISDIR(found.st_mode);
}

#define SYNCING(call) SIZING(SYNC, (skip_sync ? 0 : call), -1, \
    note(is_directory(fd) ? L_SYNCDIR : L_SYNC, inode_of(fd), 0, 0, full, NULL, NULL))

int fsync(int fd) { REAL(int, "fsync", int); SYNCING(real(fd)) }
int fdatasync(int fd) { REAL(int, "fdatasync", int); SYNCING(real(fd)) }

int syncfs(int fd)
{
    REAL(int, "syncfs", int);
    SIZING(SYNC, real(fd), -1, note(L_SYNCALL, 0, 0, 0, NULL, NULL, NULL))
}

/* ----------------------------------------------------------------------------------- names */

#define NAMING(call, noted) \
    if (enter(NAME)) { leave(); return -1; } \
    done = call; \
    if (done == 0) noted; \
    leave(); return done;

static int do_rename(int at, const char *from, int to_at, const char *to, unsigned flags)
{
    char old[PATH_MAX], new[PATH_MAX];
    int done;
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    int in = path_at(at, from, old), out = path_at(to_at, to, new);
    if (!in && !out)
        return real(at, from, to_at, to, flags);
    NAMING(real(at, from, to_at, to, flags),
           note(flags & RENAME_EXCHANGE ? L_EXCHANGE : L_RENAME, inode_at(new), 0, 0, old, new, NULL))
}
int rename(const char *from, const char *to) { return do_rename(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int at, const char *from, int to_at, const char *to) { return do_rename(at, from, to_at, to, 0); }
int renameat2(int at, const char *from, int to_at, const char *to, unsigned flags) { return do_rename(at, from, to_at, to, flags); }

int linkat(int at, const char *from, int to_at, const char *to, int flags)
{
    char new[PATH_MAX];
    int done;
    REAL(int, "linkat", int, const char *, int, const char *, int);
    if (!path_at(to_at, to, new))
        return real(at, from, to_at, to, flags);
    NAMING(real(at, from, to_at, to, flags), note(L_LINK, inode_at(new), 0, 0, new, NULL, NULL))
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int at, const char *path, int flags)
{
    char full[PATH_MAX];
    int done;
    REAL(int, "unlinkat", int, const char *, int);
    if (!path_at(at, path, full))
        return real(at, path, flags);
    if (!inode_at(full))
        return real(at, path, flags); /* there is nothing to take away */
    NAMING(real(at, path, flags),
           note(flags & AT_REMOVEDIR ? L_RMDIR : L_UNLINK, 0, 0, 0, full, NULL, NULL))
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path)
{
    struct stat found;
    if (lstat(path, &found))
        return -1;
    return S_ISDIR(found.st_mode) ? rmdir(path) : unlink(path);
}

int mkdirat(int at, const char *path, mode_t mode)
{
    char full[PATH_MAX];
    int done;
    REAL(int, "mkdirat", int, const char *, mode_t);
    if (!path_at(at, path, full) || inode_at(full))
        return real(at, path, mode);
    NAMING(real(at, path, mode), note(L_MKDIR, inode_at(full), 0, 0, full, NULL, NULL))
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int symlinkat(const char *target, int at, const char *path)
{
    char full[PATH_MAX];
    int done;
    REAL(int, "symlinkat", const char *, int, const char *);
    if (!path_at(at, path, full))
        return real(target, at, path);
    NAMING(real(target, at, path), note(L_SYMLINK, inode_at(full), 0, 0, full, target, NULL))
}
int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }
