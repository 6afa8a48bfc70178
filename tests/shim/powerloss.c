/*
 * Keeps, beside a data directory, a SHADOW that holds only what a power cut would leave of it.
 *
 * POWERLOSS_ROOT     the data directory: an absolute path without symlinks
 * POWERLOSS_SHADOW   the shadow, on the same filesystem, outside the root, laid out before the process starts
 *                    (tests/support/shim.py, which also makes the data directory of after the cut from it)
 * POWERLOSS_BOOT_ID  what reading /proc/sys/kernel/random/boot_id gives
 *
 * A file's bytes become durable when an fsync or fdatasync that began after the write has succeeded; a name
 * (created, renamed, removed) when an fsync of its directory has. Neither makes the other durable. What a
 * failed flush covered is never durable unless written again. sync_file_range and syncfs count for nothing.
 *
 * The shadow:
 *     hold/<inode>    a hard link to every file ever seen in the root, so that no inode number is used twice
 *                     and an unlinked file's bytes stay readable
 *     inodes/<inode>  the durable bytes of a file. Absent: the file was there at the start and never changed
 *     dirs/<inode>    the durable names in a directory: (type, inode, ' ', name, NUL)...
 *     log             struct record...: every write, in order, and every flush, from which the harness knows
 *                     what was not flushed
 *
 * Not seen: writes through mmap, C's stdio and io_uring; O_TMPFILE.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "real.h"

#define BOOT_ID_PATH "/proc/sys/kernel/random/boot_id"
#define BUCKETS 4096

enum kind { WRITTEN = 1, TRUNCATED = 2, EXTENDED = 3, FLUSHED = 4 };

struct record { /* of the log; native byte order */
    uint64_t inode;
    uint64_t sequence; /* of the change within (process, file); FLUSHED: the last one covered */
    uint64_t offset;   /* WRITTEN: where; TRUNCATED, EXTENDED: the size */
    uint64_t length;
    uint32_t kind;
    uint32_t pid;
};

struct change {
    uint64_t sequence;
    off_t offset, length;
    enum kind kind;
};

struct file {
    ino_t inode;
    int held, shadow; /* descriptors: the real file for reading, its durable copy for writing */
    pthread_mutex_t lock;
    uint64_t sequence;      /* of the latest change */
    uint64_t flush_started; /* changes up to here may be in a running flush: not to be merged with later ones */
    struct change *changes;
    size_t count, capacity;
    struct file *next;
};

static char root[4096], shadow_dir[4096];
static size_t root_length;
static dev_t root_device;
static int log_fd = -1;
static int active;
static struct file *files[BUCKETS];
static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t directories_lock = PTHREAD_MUTEX_INITIALIZER;

static void die(const char *what)
{
    fprintf(stderr, "powerloss shim: %s: %s\n", what, strerror(errno));
    abort();
}

static int raw_open(const char *path, int flags)
{
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0644);
}

__attribute__((constructor)) static void start(void)
{
    const char *r = getenv("POWERLOSS_ROOT"), *s = getenv("POWERLOSS_SHADOW");
    struct stat st;
    if (!r || !s)
        return;
    snprintf(root, sizeof root, "%s", r);
    snprintf(shadow_dir, sizeof shadow_dir, "%s", s);
    root_length = strlen(root);
    if (stat(root, &st) != 0)
        die(root);
    root_device = st.st_dev;
    char path[4200];
    snprintf(path, sizeof path, "%s/log", shadow_dir);
    log_fd = raw_open(path, O_WRONLY | O_CREAT | O_APPEND);
    if (log_fd < 0)
        die(path);
    struct rlimit limit; /* two descriptors more for each file written to */
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    active = 1;
}

static int path_in_root(const char *path)
{
    return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == 0);
}

static int path_of(int fd, char *path, size_t size)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, size - 1);
    if (n < 0)
        return 0;
    path[n] = 0;
    return 1;
}

static void log_record(struct file *f, enum kind kind, uint64_t sequence, uint64_t offset, uint64_t length)
{
    struct record r = {f->inode, sequence, offset, length, kind, (uint32_t)getpid()};
    if (syscall(SYS_write, log_fd, &r, sizeof r) != (long)sizeof r)
        die("log");
}

/* Copies what the real file has in a range now. What was truncated away meanwhile is left as it is. */
static void copy_range(struct file *f, off_t offset, off_t length)
{
    static __thread char buffer[1 << 16];
    while (length > 0) {
        size_t want = length < (off_t)sizeof buffer ? (size_t)length : sizeof buffer;
        ssize_t n = pread(f->held, buffer, want, offset);
        if (n < 0)
            die("read for the shadow");
        if (n == 0)
            return;
        if (syscall(SYS_pwrite64, f->shadow, buffer, n, offset) != n)
            die("write to the shadow");
        offset += n;
        length -= n;
    }
}

static void grow_shadow(struct file *f, off_t size)
{
    struct stat st;
    if (fstat(f->shadow, &st) != 0)
        die("size of the shadow");
    if (st.st_size < size && syscall(SYS_ftruncate, f->shadow, size) != 0)
        die("growing the shadow");
}

static void copy_all(struct file *f)
{
    struct stat st;
    if (fstat(f->held, &st) != 0)
        die("size of a file");
    off_t data = 0;
    while ((data = lseek(f->held, data, SEEK_DATA)) >= 0 && data < st.st_size) {
        off_t hole = lseek(f->held, data, SEEK_HOLE);
        copy_range(f, data, (hole < 0 ? st.st_size : hole) - data);
        if (hole < 0)
            break;
        data = hole;
    }
    if (syscall(SYS_ftruncate, f->shadow, st.st_size) != 0)
        die("size of the shadow");
}

static void add_change(struct file *f, enum kind kind, off_t offset, off_t length)
{
    uint64_t sequence = ++f->sequence;
    log_record(f, kind, sequence, (uint64_t)offset, (uint64_t)length);
    struct change *last = f->count ? &f->changes[f->count - 1] : NULL;
    if (last && kind == WRITTEN && last->kind == WRITTEN && last->sequence > f->flush_started &&
        last->offset + last->length == offset) {
        last->length += length;
        last->sequence = sequence;
        return;
    }
    if (f->count == f->capacity) {
        f->capacity = f->capacity ? f->capacity * 2 : 16;
        f->changes = realloc(f->changes, f->capacity * sizeof *f->changes);
        if (!f->changes)
            die("memory");
    }
    f->changes[f->count++] = (struct change){sequence, offset, length, kind};
}

static struct file *find_file(ino_t inode)
{
    struct file *f = files[inode % BUCKETS];
    while (f && f->inode != inode)
        f = f->next;
    return f;
}

/* Under files_lock, before the file's bytes change. `path`: any path of it, to link it from the hold. */
static struct file *add_file(ino_t inode, const char *path)
{
    char name[4300];
    snprintf(name, sizeof name, "%s/hold/%lu", shadow_dir, (unsigned long)inode);
    int is_new = link(path, name) == 0;
    if (!is_new && errno != EEXIST)
        return NULL; /* unlinked meanwhile: no power cut brings its bytes back */
    struct file *f = calloc(1, sizeof *f);
    if (!f)
        die("memory");
    f->inode = inode;
    pthread_mutex_init(&f->lock, NULL);
    f->held = raw_open(name, O_RDONLY);
    if (f->held < 0)
        die(name);
    snprintf(name, sizeof name, "%s/inodes/%lu", shadow_dir, (unsigned long)inode);
    int known = access(name, F_OK) == 0;
    f->shadow = raw_open(name, O_RDWR | O_CREAT);
    if (f->shadow < 0)
        die(name);
    if (known) {
        /* An earlier process left unflushed writes here: the first flush is to cover them all. */
        struct stat st;
        if (fstat(f->held, &st) != 0)
            die("size of a file");
        add_change(f, TRUNCATED, st.st_size, 0);
        add_change(f, WRITTEN, 0, st.st_size);
    } else if (!is_new) {
        copy_all(f); /* there since the start: durable as it is */
    }
    f->next = files[inode % BUCKETS];
    files[inode % BUCKETS] = f;
    return f;
}

/* The tracked file behind a descriptor, or NULL: not a regular file in the root. Keeps errno. */
static struct file *file_of(int fd)
{
    struct stat st;
    char path[4096];
    if (!active)
        return NULL;
    int saved = errno;
    struct file *f = NULL;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_dev == root_device) {
        pthread_mutex_lock(&files_lock);
        f = find_file(st.st_ino);
        if (!f && path_of(fd, path, sizeof path) && path_in_root(path))
            f = add_file(st.st_ino, path);
        pthread_mutex_unlock(&files_lock);
    }
    errno = saved;
    return f;
}

/* The file at a path that is about to be changed by its path. */
static struct file *file_at(int dirfd, const char *path)
{
    struct stat st;
    if (!active)
        return NULL;
    int saved = errno;
    struct file *f = NULL;
    if (fstatat(dirfd, path, &st, 0) == 0 && S_ISREG(st.st_mode) && st.st_dev == root_device) {
        char name[4300];
        snprintf(name, sizeof name, "%s/hold/%lu", shadow_dir, (unsigned long)st.st_ino);
        pthread_mutex_lock(&files_lock);
        f = find_file(st.st_ino);
        if (!f && access(name, F_OK) == 0) /* held: so it is in the root */
            f = add_file(st.st_ino, name);
        pthread_mutex_unlock(&files_lock);
    }
    errno = saved;
    return f;
}

static void changed(struct file *f, enum kind kind, off_t offset, off_t length)
{
    int saved = errno;
    pthread_mutex_lock(&f->lock);
    add_change(f, kind, offset, length);
    pthread_mutex_unlock(&f->lock);
    errno = saved;
}

/* ---- flushes ------------------------------------------------------------------------------------------- */

static uint64_t flush_begins(struct file *f)
{
    pthread_mutex_lock(&f->lock);
    uint64_t upto = f->flush_started = f->sequence;
    pthread_mutex_unlock(&f->lock);
    return upto;
}

/* Makes durable, after a good flush, every change that came before it; forgets them after a failed one. */
static void flush_ended(struct file *f, uint64_t upto, int good)
{
    int saved = errno;
    size_t kept = 0;
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < f->count; i++) {
        struct change c = f->changes[i];
        if (c.sequence > upto) {
            f->changes[kept++] = c;
        } else if (good && c.kind == WRITTEN) {
            copy_range(f, c.offset, c.length);
            grow_shadow(f, c.offset + c.length);
        } else if (good && c.kind == EXTENDED) {
            grow_shadow(f, c.offset);
        } else if (good) {
            if (syscall(SYS_ftruncate, f->shadow, c.offset) != 0)
                die("truncating the shadow");
        }
    }
    f->count = kept;
    if (good)
        log_record(f, FLUSHED, upto, 0, 0);
    pthread_mutex_unlock(&f->lock);
    errno = saved;
}

/* A directory's names as dirs/<inode> holds them; malloc'ed. */
static char *list_directory(int fd, size_t *size)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, size);
    int copy = (int)syscall(SYS_openat, fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *entry;
    if (!dir || !out)
        die("listing a directory");
    while ((entry = readdir(dir))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        fprintf(out, "%c%lu %s%c", entry->d_type == DT_DIR ? 'd' : 'f', (unsigned long)entry->d_ino,
                entry->d_name, 0);
    }
    closedir(dir);
    fclose(out);
    return text;
}

static int flush_directory(int fd, ino_t inode, int (*real)(int))
{
    size_t size;
    pthread_mutex_lock(&directories_lock);
    char *names = list_directory(fd, &size);
    int result = real(fd);
    int saved = errno;
    if (result == 0) {
        char path[4300], temporary[4300];
        snprintf(path, sizeof path, "%s/dirs/%lu", shadow_dir, (unsigned long)inode);
        snprintf(temporary, sizeof temporary, "%s/dirs/.new", shadow_dir);
        int out = raw_open(temporary, O_WRONLY | O_CREAT | O_TRUNC);
        if (out < 0 || syscall(SYS_write, out, names, size) != (long)size ||
            syscall(SYS_renameat, AT_FDCWD, temporary, AT_FDCWD, path) != 0)
            die(path);
        syscall(SYS_close, out);
    }
    free(names);
    pthread_mutex_unlock(&directories_lock);
    errno = saved;
    return result;
}

static int flush(int fd, int (*real)(int))
{
    struct stat st;
    char path[4096];
    if (!active)
        return real(fd);
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode) && st.st_dev == root_device &&
        path_of(fd, path, sizeof path) && path_in_root(path))
        return flush_directory(fd, st.st_ino, real);
    struct file *f = file_of(fd);
    if (!f)
        return real(fd);
    uint64_t upto = flush_begins(f);
    int result = real(fd);
    flush_ended(f, upto, result == 0);
    return result;
}

int fsync(int fd)
{
    REAL(int, fsync, int)
    return flush(fd, real);
}

int fdatasync(int fd)
{
    REAL(int, fdatasync, int)
    return flush(fd, real);
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static int is_boot_id(const char *path)
{
    return getenv("POWERLOSS_BOOT_ID") && strcmp(path, BOOT_ID_PATH) == 0;
}

static int open_boot_id(void)
{
    const char *id = getenv("POWERLOSS_BOOT_ID");
    int fd = memfd_create("boot_id", MFD_CLOEXEC);
    if (fd < 0 || syscall(SYS_write, fd, id, strlen(id)) < 0 || syscall(SYS_write, fd, "\n", 1) != 1)
        die("boot id");
    lseek(fd, 0, SEEK_SET);
    return fd;
}

static int opened(int fd, int flags)
{
    if (fd >= 0 && (flags & (O_CREAT | O_TRUNC)) && (flags & O_DIRECTORY) == 0) {
        struct file *f = file_of(fd);
        if (f && (flags & O_TRUNC))
            changed(f, TRUNCATED, 0, 0);
    }
    return fd;
}

#define MODE                                                                                                 \
    mode_t mode = 0;                                                                                         \
    if (flags & (O_CREAT | __O_TMPFILE)) {                                                                   \
        va_list more;                                                                                        \
        va_start(more, flags);                                                                               \
        mode = va_arg(more, mode_t);                                                                         \
        va_end(more);                                                                                        \
    }

int open(const char *path, int flags, ...)
{
    REAL(int, open, const char *, int, ...)
    MODE
    if (is_boot_id(path))
        return open_boot_id();
    if (flags & O_TRUNC)
        file_at(AT_FDCWD, path);
    return opened(real(path, flags, mode), flags);
}

int openat(int dirfd, const char *path, int flags, ...)
{
    REAL(int, openat, int, const char *, int, ...)
    MODE
    if (is_boot_id(path))
        return open_boot_id();
    if (flags & O_TRUNC)
        file_at(dirfd, path);
    return opened(real(dirfd, path, flags, mode), flags);
}

int creat(const char *path, mode_t mode)
{
    return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

/* What open() becomes in programs built with _FORTIFY_SOURCE. */
int __open_2(const char *path, int flags)
{
    return open(path, flags);
}

int __openat_2(int dirfd, const char *path, int flags)
{
    return openat(dirfd, path, flags);
}

FILE *fopen(const char *path, const char *mode)
{
    REAL(FILE *, fopen, const char *, const char *)
    return is_boot_id(path) ? fdopen(open_boot_id(), mode) : real(path, mode);
}

/* A directory that is removed before its removal is durable must keep its inode number to itself. */
static void hold_directory(int dirfd, const char *path)
{
    char full[4096];
    int saved = errno;
    int fd = active ? (int)syscall(SYS_openat, dirfd, path, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0 && !(path_of(fd, full, sizeof full) && path_in_root(full)))
        syscall(SYS_close, fd);
    errno = saved;
}

int mkdir(const char *path, mode_t mode)
{
    REAL(int, mkdir, const char *, mode_t)
    int result = real(path, mode);
    if (result == 0)
        hold_directory(AT_FDCWD, path);
    return result;
}

int mkdirat(int dirfd, const char *path, mode_t mode)
{
    REAL(int, mkdirat, int, const char *, mode_t)
    int result = real(dirfd, path, mode);
    if (result == 0)
        hold_directory(dirfd, path);
    return result;
}

/* ---- changes ------------------------------------------------------------------------------------------- */

/* Notes a write that took `n` bytes; under O_DSYNC (or its flag of pwritev2) the range is durable at once. */
static void wrote(struct file *f, int status, off_t offset, ssize_t n, int synchronous)
{
    int saved = errno;
    pthread_mutex_lock(&f->lock);
    add_change(f, WRITTEN, offset, n);
    if (synchronous || (status & O_DSYNC)) {
        copy_range(f, offset, n);
        grow_shadow(f, offset + n);
    }
    pthread_mutex_unlock(&f->lock);
    errno = saved;
}

/* A write at the descriptor's position, or at the file's end under O_APPEND: where it went is known after it
   only, so such writes of one file take turns. */
#define WRITE_AT_POSITION(call)                                                                              \
    struct file *f = file_of(fd);                                                                            \
    if (!f)                                                                                                  \
        return call;                                                                                         \
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;                                                 \
    pthread_mutex_lock(&turn);                                                                               \
    ssize_t n = call;                                                                                        \
    if (n > 0)                                                                                               \
        wrote(f, fcntl(fd, F_GETFL), lseek(fd, 0, SEEK_CUR) - n, n, 0);                                      \
    pthread_mutex_unlock(&turn);                                                                             \
    return n;

/* Linux appends a pwrite under O_APPEND, whatever its offset. */
#define WRITE_AT(call, offset, synchronous)                                                                  \
    struct file *f = file_of(fd);                                                                            \
    ssize_t n = call;                                                                                        \
    if (f && n > 0) {                                                                                        \
        int status = fcntl(fd, F_GETFL);                                                                     \
        struct stat st;                                                                                      \
        off_t where = offset;                                                                                \
        if ((status & O_APPEND) && fstat(fd, &st) == 0)                                                      \
            where = st.st_size - n;                                                                          \
        wrote(f, status, where, n, synchronous);                                                             \
    }                                                                                                        \
    return n;

ssize_t write(int fd, const void *data, size_t size)
{
    REAL(ssize_t, write, int, const void *, size_t)
    WRITE_AT_POSITION(real(fd, data, size))
}

ssize_t writev(int fd, const struct iovec *iov, int count)
{
    REAL(ssize_t, writev, int, const struct iovec *, int)
    WRITE_AT_POSITION(real(fd, iov, count))
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    REAL(ssize_t, pwrite, int, const void *, size_t, off_t)
    WRITE_AT(real(fd, data, size, at), at, 0)
}

ssize_t pwritev(int fd, const struct iovec *iov, int count, off_t at)
{
    REAL(ssize_t, pwritev, int, const struct iovec *, int, off_t)
    WRITE_AT(real(fd, iov, count, at), at, 0)
}

ssize_t pwritev2(int fd, const struct iovec *iov, int count, off_t at, int flags)
{
    REAL(ssize_t, pwritev2, int, const struct iovec *, int, off_t, int)
    if (at == -1) {
        WRITE_AT_POSITION(real(fd, iov, count, at, flags))
    }
    WRITE_AT(real(fd, iov, count, at, flags), at, flags & (RWF_DSYNC | RWF_SYNC))
}

ssize_t sendfile(int fd, int in, off_t *from, size_t size)
{
    REAL(ssize_t, sendfile, int, int, off_t *, size_t)
    WRITE_AT_POSITION(real(fd, in, from, size))
}

ssize_t copy_file_range(int in, off_t *from, int fd, off_t *to, size_t size, unsigned flags)
{
    REAL(ssize_t, copy_file_range, int, off_t *, int, off_t *, size_t, unsigned)
    if (!to) {
        WRITE_AT_POSITION(real(in, from, fd, to, size, flags))
    }
    WRITE_AT(real(in, from, fd, to, size, flags), *to - n, 0)
}

int ftruncate(int fd, off_t size)
{
    REAL(int, ftruncate, int, off_t)
    struct file *f = file_of(fd);
    int result = real(fd, size);
    if (f && result == 0)
        changed(f, TRUNCATED, size, 0);
    return result;
}

int truncate(const char *path, off_t size)
{
    REAL(int, truncate, const char *, off_t)
    struct file *f = file_at(AT_FDCWD, path);
    int result = real(path, size);
    if (f && result == 0)
        changed(f, TRUNCATED, size, 0);
    return result;
}

int fallocate(int fd, int mode, off_t at, off_t size)
{
    REAL(int, fallocate, int, int, off_t, off_t)
    struct file *f = file_of(fd);
    if (f && (mode & (FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE))) {
        errno = EOPNOTSUPP;
        return -1;
    }
    int result = real(fd, mode, at, size);
    struct stat st;
    if (f && result == 0 && !(mode & FALLOC_FL_KEEP_SIZE))
        changed(f, EXTENDED, at + size, 0);
    if (f && result == 0 && (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) && fstat(fd, &st) == 0 &&
        st.st_size > at)
        changed(f, WRITTEN, at, size < st.st_size - at ? size : st.st_size - at);
    return result;
}

int posix_fallocate(int fd, off_t at, off_t size)
{
    REAL(int, posix_fallocate, int, off_t, off_t)
    struct file *f = file_of(fd);
    int error = real(fd, at, size);
    if (f && error == 0)
        changed(f, EXTENDED, at + size, 0);
    return error;
}

/* Where off_t has 64 bits, the functions with and without 64 are the same. */
_Static_assert(sizeof(off_t) == 8, "a 64-bit system is needed");
int open64(const char *, int, ...) __attribute__((alias("open")));
int openat64(int, const char *, int, ...) __attribute__((alias("openat")));
int creat64(const char *, mode_t) __attribute__((alias("creat")));
int __open64_2(const char *, int) __attribute__((alias("__open_2")));
int __openat64_2(int, const char *, int) __attribute__((alias("__openat_2")));
FILE *fopen64(const char *, const char *) __attribute__((alias("fopen")));
ssize_t pwrite64(int, const void *, size_t, off_t) __attribute__((alias("pwrite")));
ssize_t pwritev64(int, const struct iovec *, int, off_t) __attribute__((alias("pwritev")));
ssize_t pwritev64v2(int, const struct iovec *, int, off_t, int) __attribute__((alias("pwritev2")));
ssize_t sendfile64(int, int, off_t *, size_t) __attribute__((alias("sendfile")));
int ftruncate64(int, off_t) __attribute__((alias("ftruncate")));
int truncate64(const char *, off_t) __attribute__((alias("truncate")));
int fallocate64(int, int, off_t, off_t) __attribute__((alias("fallocate")));
int posix_fallocate64(int, off_t, off_t) __attribute__((alias("posix_fallocate")));
