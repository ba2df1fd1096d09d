/* An LD_PRELOAD library that writes down what a process does to the files below one directory.
 *
 * Everything that changes a file or a name goes through libc: the interpreter's own calls, pathlib's, and those of the
 * compiled modules. Each call is made and written down under one lock, so the log tells one order that really happened.
 * A flush is written down twice, when it begins and when it has returned. At the operation number `cut_at` the process
 * is killed before the call is made; recorder_cut_within chooses another one. Nothing is recorded until recorder_start.
 *
 * A record: u32 kind | i32 descriptor | i64 position | i64 size | u32 length | u32 length | first bytes | second bytes
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, CLOSE, WRITE, SYNC_BEGIN, SYNC_END, RENAME, UNLINK, MKDIR, LINK, TRUNCATE, ALLOCATE, MAP };
#define DESCRIPTORS 65536
#define PATHS 4096
#define REAL(name, result, ...)                                          \
    static result (*real)(__VA_ARGS__);                                  \
    if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

struct head { uint32_t kind; int32_t descriptor; int64_t at, size; uint32_t first, second; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_descriptor = -1;
static char root[PATHS];
static long count, cut_at;
static unsigned sync_us, chance;
static unsigned char followed[DESCRIPTORS];

void recorder_start(const char *directory, int descriptor, long cut, unsigned sync_us_max, unsigned seed) {
    snprintf(root, sizeof root, "%s/", directory);
    cut_at = cut, sync_us = sync_us_max, chance = seed, log_descriptor = descriptor;
}

/* Die within so many calls from now. */
void recorder_cut_within(long calls) {
    pthread_mutex_lock(&lock);
    cut_at = count + calls;
    pthread_mutex_unlock(&lock);
}

static int is_followed(int fd) { return log_descriptor >= 0 && fd >= 0 && fd < DESCRIPTORS && followed[fd]; }

static int below(int fd, const char *path, char *full) {
    if (log_descriptor < 0 || !path) return 0;
    if (path[0] == '/') {
        snprintf(full, PATHS, "%s", path);
    } else if (fd == AT_FDCWD) {
        return 0;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t size = readlink(link, full, PATHS - 1);
        if (size < 0) return 0;
        snprintf(full + size, PATHS - size, "/%s", path);
    }
    return strncmp(full, root, strlen(root)) == 0 || strlen(full) + 1 == strlen(root);
}

static void enter(void) {
    pthread_mutex_lock(&lock);
    if (++count == cut_at) kill(getpid(), SIGKILL), pause();
}

static void leave(void) {
    int kept = errno;
    pthread_mutex_unlock(&lock);
    errno = kept;
}

static void note2(uint32_t kind, int fd, int64_t at, int64_t size, const void *a, size_t m, const void *b, size_t n) {
    int kept = errno;
    struct head head = {kind, fd, at, size, m, n};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)a, m}, {(void *)b, n}};
    if (writev(log_descriptor, parts, 3) != (ssize_t)(sizeof head + m + n)) abort();
    errno = kept;
}

static void note(uint32_t kind, int fd, int64_t at, int64_t size, const void *a, size_t n) {
    note2(kind, fd, at, size, a, n, "", 0);
}

static int opened(int fd, const char *path, int flags, int mode, int (*real)(int, const char *, int, ...)) {
    char full[PATHS];
    if ((flags & O_TMPFILE) == O_TMPFILE || !below(fd, path, full)) return real(fd, path, flags, mode);
    int changes = (flags & O_CREAT && access(full, F_OK) != 0) || flags & O_TRUNC;
    if (changes) enter(); else pthread_mutex_lock(&lock);
    int created = flags & O_CREAT && access(full, F_OK) != 0;
    int got = real(fd, path, flags, mode);
    if (got >= 0 && got < DESCRIPTORS) {
        followed[got] = 1;
        note(OPEN, got, created, (flags & O_TRUNC) != 0, full, strlen(full));
    }
    leave();
    return got;
}

#define OPENAT(name)                                                     \
    int name(int fd, const char *path, int flags, ...) {                 \
        va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
        REAL(#name, int, int, const char *, int, ...);                   \
        return opened(fd, path, flags, mode, real);                      \
    }
OPENAT(openat)
OPENAT(openat64)
#define OPENED(name)                                                     \
    int name(const char *path, int flags, ...) {                         \
        va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
        REAL("openat", int, int, const char *, int, ...);                \
        return opened(AT_FDCWD, path, flags, mode, real);                \
    }
OPENED(open)
OPENED(open64)

int close(int fd) {
    REAL("close", int, int);
    if (!is_followed(fd)) return real(fd);
    pthread_mutex_lock(&lock);
    followed[fd] = 0;
    note(CLOSE, fd, 0, 0, "", 0);
    int got = real(fd);
    leave();
    return got;
}

static ssize_t written(int fd, const void *data, size_t size, int64_t at) {
    enter();
    ssize_t got = syscall(SYS_pwrite64, fd, data, size, at);
    if (got > 0) note(WRITE, fd, at, got, data, got);
    leave();
    return got;
}

#define PWRITE(name)                                                     \
    ssize_t name(int fd, const void *data, size_t size, off_t at) {      \
        if (!is_followed(fd)) return syscall(SYS_pwrite64, fd, data, size, at); \
        return written(fd, data, size, at);                              \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t write(int fd, const void *data, size_t size) {
    if (!is_followed(fd)) return syscall(SYS_write, fd, data, size);
    int64_t at = lseek(fd, 0, SEEK_CUR);
    ssize_t got = written(fd, data, size, at);
    if (got > 0) lseek(fd, at + got, SEEK_SET);
    return got;
}

static int synced(int fd, int number) {
    if (!is_followed(fd)) return syscall(number, fd);
    enter();
    note(SYNC_BEGIN, fd, 0, 0, "", 0);
    unsigned pause_us = sync_us ? rand_r(&chance) % sync_us : 0;
    leave();
    if (pause_us) usleep(pause_us);
    int got = syscall(number, fd);
    enter();
    if (!got) note(SYNC_END, fd, 0, 0, "", 0);
    leave();
    return got;
}

int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

#define TRUNCATED(name)                                                  \
    int name(int fd, off_t size) {                                       \
        if (!is_followed(fd)) return syscall(SYS_ftruncate, fd, size);   \
        enter();                                                         \
        int got = syscall(SYS_ftruncate, fd, size);                      \
        if (!got) note(TRUNCATE, fd, 0, size, "", 0);                    \
        leave();                                                         \
        return got;                                                      \
    }
TRUNCATED(ftruncate)
TRUNCATED(ftruncate64)

#define ALLOCATED(name)                                                  \
    int name(int fd, off_t at, off_t size) {                             \
        REAL(#name, int, int, off_t, off_t);                             \
        if (!is_followed(fd)) return real(fd, at, size);                 \
        enter();                                                         \
        int got = real(fd, at, size);                                    \
        if (!got) note(ALLOCATE, fd, at, size, "", 0);                   \
        leave();                                                         \
        return got;                                                      \
    }
ALLOCATED(posix_fallocate)
ALLOCATED(posix_fallocate64)

#define MAPPED(name)                                                     \
    void *name(void *place, size_t size, int protection, int flags, int fd, off_t at) { \
        REAL(#name, void *, void *, size_t, int, int, int, off_t);       \
        void *got = real(place, size, protection, flags, fd, at);        \
        if (is_followed(fd) && protection & PROT_WRITE && flags & MAP_SHARED) { \
            pthread_mutex_lock(&lock);                                   \
            note(MAP, fd, at, size, "", 0);                              \
            leave();                                                     \
        }                                                                \
        return got;                                                      \
    }
MAPPED(mmap)
MAPPED(mmap64)

static int named(uint32_t kind, long call, int fd, const char *path, long flags) {
    char full[PATHS];
    if (!below(fd, path, full)) return syscall(call, fd, path, flags);
    enter();
    int got = syscall(call, fd, path, flags);
    if (!got) note(kind, -1, 0, 0, full, strlen(full));
    leave();
    return got;
}

int unlink(const char *path) { return named(UNLINK, SYS_unlinkat, AT_FDCWD, path, 0); }
int unlinkat(int fd, const char *path, int flags) { return named(UNLINK, SYS_unlinkat, fd, path, flags); }
int rmdir(const char *path) { return named(UNLINK, SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR); }
int mkdir(const char *path, mode_t mode) { return named(MKDIR, SYS_mkdirat, AT_FDCWD, path, mode); }
int mkdirat(int fd, const char *path, mode_t mode) { return named(MKDIR, SYS_mkdirat, fd, path, mode); }

static int moved(uint32_t kind, long call, int a, const char *from, int b, const char *to, long flags) {
    char first[PATHS], second[PATHS];
    if (!below(a, from, first) || !below(b, to, second)) return syscall(call, a, from, b, to, flags);
    enter();
    int got = syscall(call, a, from, b, to, flags);
    if (!got) note2(kind, -1, 0, 0, first, strlen(first), second, strlen(second));
    leave();
    return got;
}

int rename(const char *from, const char *to) { return moved(RENAME, SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int a, const char *from, int b, const char *to) { return moved(RENAME, SYS_renameat2, a, from, b, to, 0); }
int link(const char *from, const char *to) { return moved(LINK, SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int a, const char *from, int b, const char *to, int flags) { return moved(LINK, SYS_linkat, a, from, b, to, flags); }
