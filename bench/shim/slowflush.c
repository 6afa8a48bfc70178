/*
 * Every fsync and fdatasync takes SLOWFLUSH_US microseconds longer, as on a slower disk.
 *
 * SLOWFLUSH_US          the delay, before the real flush; absent or 0: none
 * SLOWFLUSH_JITTER_US   up to so much more, at random: flushes that run side by side end in any order
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

__attribute__((constructor)) static void start(void)
{
    const char *us = getenv("SLOWFLUSH_US");
    const char *jitter = getenv("SLOWFLUSH_JITTER_US");
    const char *log = getenv("SLOWFLUSH_LOG");
    delay_us = us ? atol(us) : 0;
    jitter_us = jitter ? atol(jitter) : 0;
    if (log)
        log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
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
    long us = delay_us + (jitter_us ? rand_r(&seed) % jitter_us : 0);
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
