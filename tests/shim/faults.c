/*
 * Disk faults on demand. FAULTS_CONTROL names a file, read again whenever it changes (an absent file: no
 * faults). Its lines:
 *
 *     OP ERROR COUNT SUBSTRING
 *
 * OP         flush: fsync and fdatasync fail, nothing is flushed
 *            write: write, pwrite, writev, pwritev, fallocate fail, nothing is written
 *            allocate: fallocate alone fails, as where a disk is full but for what was reserved
 *            short: a write of more than one byte takes only its first half (ERROR is ignored)
 * ERROR      a number (EIO 5, ENOSPC 28)
 * COUNT      how many calls; -1: all of them
 * SUBSTRING  of the path of the file; "/" fits every path
 *
 * COUNT starts anew when the file changes. A failed flush is not repeated by the shim: as on Linux, the next
 * one may succeed although the data of the first is gone. The powerloss shim, put in front of this one,
 * keeps such data out of its shadow.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "real.h"

#define MAX_RULES 32

enum op { FLUSH, WRITE, SHORT, ALLOCATE };

struct rule {
    enum op op;
    int error;
    long count;
    char part[256];
};

static const char *control;
static struct timespec loaded_at;
static ino_t loaded_ino;
static struct rule rules[MAX_RULES];
static int rule_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void start(void)
{
    control = getenv("FAULTS_CONTROL");
}

static void load(void)
{
    char text[8192];
    rule_count = 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    text[n > 0 ? n : 0] = 0;
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n")) && rule_count < MAX_RULES) {
        struct rule *r = &rules[rule_count];
        char op[16];
        if (sscanf(line, "%15s %d %ld %255s", op, &r->error, &r->count, r->part) != 4)
            continue;
        r->op = strcmp(op, "flush") == 0   ? FLUSH
                : strcmp(op, "write") == 0 ? WRITE
                : strcmp(op, "short") == 0 ? SHORT
                                           : ALLOCATE;
        rule_count++;
    }
}

/* Whether a rule for `op` fits the file; its error number, and one of its calls is used up. */
static int fault(enum op op, int fd)
{
    if (!control)
        return 0;
    int saved = errno, error = 0;
    struct stat st;
    pthread_mutex_lock(&lock);
    if (stat(control, &st) != 0) {
        rule_count = 0;
        loaded_ino = 0;
    } else if (st.st_ino != loaded_ino || st.st_mtim.tv_sec != loaded_at.tv_sec ||
               st.st_mtim.tv_nsec != loaded_at.tv_nsec) {
        loaded_ino = st.st_ino;
        loaded_at = st.st_mtim;
        load();
    }
    if (rule_count) {
        char link[64], path[4097];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, sizeof path - 1);
        path[n > 0 ? n : 0] = 0;
        /* Only files have an absolute path here: sockets and pipes are left alone. */
        for (int i = 0; i < rule_count && path[0] == '/' && !error; i++) {
            struct rule *r = &rules[i];
            if (r->op == op && r->count != 0 && strstr(path, r->part)) {
                if (r->count > 0)
                    r->count--;
                error = op == SHORT ? 1 : r->error;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    errno = saved;
    return error;
}

#define FAIL(op, fd)                                                                                         \
    do {                                                                                                     \
        int error = fault(op, fd);                                                                           \
        if (error) {                                                                                         \
            errno = error;                                                                                   \
            return -1;                                                                                       \
        }                                                                                                    \
    } while (0)

int fsync(int fd)
{
    REAL(int, fsync, int)
    FAIL(FLUSH, fd);
    return real(fd);
}

int fdatasync(int fd)
{
    REAL(int, fdatasync, int)
    FAIL(FLUSH, fd);
    return real(fd);
}

static size_t cut(int fd, size_t size)
{
    return size > 1 && fault(SHORT, fd) ? size / 2 : size;
}

ssize_t write(int fd, const void *data, size_t size)
{
    REAL(ssize_t, write, int, const void *, size_t)
    FAIL(WRITE, fd);
    return real(fd, data, cut(fd, size));
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    REAL(ssize_t, pwrite, int, const void *, size_t, off_t)
    FAIL(WRITE, fd);
    return real(fd, data, cut(fd, size), at);
}

/* The first half of the vector's bytes, written the plain way; -2: no fault, do the real thing. */
static ssize_t short_vector(int fd, const struct iovec *iov, int count, off_t at)
{
    size_t total = 0;
    for (int i = 0; i < count; i++)
        total += iov[i].iov_len;
    size_t wanted = cut(fd, total);
    if (wanted == total)
        return -2;
    char *data = malloc(wanted), *end = data;
    for (int i = 0; i < count && (size_t)(end - data) < wanted; i++) {
        size_t left = wanted - (size_t)(end - data);
        size_t n = iov[i].iov_len < left ? iov[i].iov_len : left;
        memcpy(end, iov[i].iov_base, n);
        end += n;
    }
    ssize_t n = at < 0 ? syscall(SYS_write, fd, data, wanted) : syscall(SYS_pwrite64, fd, data, wanted, at);
    free(data);
    return n;
}

ssize_t writev(int fd, const struct iovec *iov, int count)
{
    REAL(ssize_t, writev, int, const struct iovec *, int)
    FAIL(WRITE, fd);
    ssize_t n = short_vector(fd, iov, count, -1);
    return n == -2 ? real(fd, iov, count) : n;
}

ssize_t pwritev(int fd, const struct iovec *iov, int count, off_t at)
{
    REAL(ssize_t, pwritev, int, const struct iovec *, int, off_t)
    FAIL(WRITE, fd);
    ssize_t n = short_vector(fd, iov, count, at);
    return n == -2 ? real(fd, iov, count, at) : n;
}

ssize_t pwritev2(int fd, const struct iovec *iov, int count, off_t at, int flags)
{
    REAL(ssize_t, pwritev2, int, const struct iovec *, int, off_t, int)
    FAIL(WRITE, fd);
    ssize_t n = short_vector(fd, iov, count, at);
    return n == -2 ? real(fd, iov, count, at, flags) : n;
}

int fallocate(int fd, int mode, off_t at, off_t size)
{
    REAL(int, fallocate, int, int, off_t, off_t)
    FAIL(WRITE, fd);
    FAIL(ALLOCATE, fd);
    return real(fd, mode, at, size);
}

int posix_fallocate(int fd, off_t at, off_t size)
{
    REAL(int, posix_fallocate, int, off_t, off_t)
    int error = fault(WRITE, fd);
    if (!error)
        error = fault(ALLOCATE, fd);
    return error ? error : real(fd, at, size);
}

ssize_t pwrite64(int, const void *, size_t, off_t) __attribute__((alias("pwrite")));
ssize_t pwritev64(int, const struct iovec *, int, off_t) __attribute__((alias("pwritev")));
ssize_t pwritev64v2(int, const struct iovec *, int, off_t, int) __attribute__((alias("pwritev2")));
int fallocate64(int, int, off_t, off_t) __attribute__((alias("fallocate")));
int posix_fallocate64(int, off_t, off_t) __attribute__((alias("posix_fallocate")));
