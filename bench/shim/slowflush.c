/*
 * Every fsync and fdatasync takes SLOWFLUSH_US microseconds longer, as on a slower disk.
 *
 * SLOWFLUSH_US          the delay, before the real flush; absent or 0: none
 * SLOWFLUSH_JITTER_US   up to so much more, at random: flushes that run side by side end in any order
 * SLOWFLUSH_CONTROL     a file with a number of microseconds more, read at each flush: a disk that becomes slow while
 *                       the process runs. Absent: none
 * SLOWFLUSH_LOG         a file to which each flush appends the flushed file's path and a newline, so that a test
 *                       can count flushes per file
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "real.h"

static long delay_us, jitter_us;
static int log_fd = -1;
static const char *control;

__attribute__((constructor)) static void start(void)
{
    const char *us = getenv("SLOWFLUSH_US");
    const char *jitter = getenv("SLOWFLUSH_JITTER_US");
    const char *log = getenv("SLOWFLUSH_LOG");
    control = getenv("SLOWFLUSH_CONTROL");
    delay_us = us ? atol(us) : 0;
    jitter_us = jitter ? atol(jitter) : 0;
    if (log)
        log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

static long controlled_us(void)
{
    char text[32];
    int fd = control ? (int)syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return 0;
    ssize_t n = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    text[n > 0 ? n : 0] = 0;
    return atol(text);
}

static void before_flush(int fd)
{
    int saved = errno;
    if (log_fd >= 0) {
        char link[64], path[4097];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, sizeof path - 1);
        if (n > 0) {
            path[n++] = '\n';
            if (syscall(SYS_write, log_fd, path, n) != n)
                abort();
        }
    }
    static __thread unsigned seed;
    if (!seed)
        seed = (unsigned)syscall(SYS_gettid) * 2654435761u;
    long us = delay_us + (jitter_us ? rand_r(&seed) % jitter_us : 0) + controlled_us();
    struct timespec left = {us / 1000000, us % 1000000 * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
    errno = saved;
}

int fsync(int fd)
{
    REAL(int, fsync, int)
    before_flush(fd);
    return real(fd);
}

int fdatasync(int fd)
{
    REAL(int, fdatasync, int)
    before_flush(fd);
    return real(fd);
}
