/* Preloaded into a process, moves the clock that tells the date by as many seconds as a mapped file says.
 *
 * Clocks that cannot be set (CLOCK_MONOTONIC and its like) and sleeping are left alone, as a real jump leaves them.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *moved_seconds;

__attribute__((constructor)) static void map_file(void)
{
    const char *path = getenv("MOVED_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *moved_seconds, PROT_READ, MAP_SHARED, file, 0);

    if (mapped == MAP_FAILED)
        abort(); /* A test that moves no clock would prove nothing. */
    moved_seconds = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);

    /* Libraries that are loaded before this one may ask before the file is mapped. */
    if (!failed && moved_seconds && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *moved_seconds;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec moment;

    (void)zone;
    clock_gettime(CLOCK_REALTIME, &moment);
    now->tv_sec = moment.tv_sec;
    now->tv_usec = moment.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *kept)
{
    struct timespec moment;

    clock_gettime(CLOCK_REALTIME, &moment);
    if (kept)
        *kept = moment.tv_sec;
    return moment.tv_sec;
}
