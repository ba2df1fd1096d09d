/* Threads that append records to one log under different locks; prints CPU and wall time of one combination.
 *
 *     locks LOCK THREADS BYTES MILLISECONDS   ->   "operations cpu_ns wall_ns swaps", the times per operation
 *
 * Outside the lock a thread prepares its record; inside it takes a position, copies the record and takes its checksum,
 * with the checksum of the compiled core, which is what an append does there.
 * Invariant: the log's end equals the sum of what all threads appended, else the program fails: a lock that lets two
 * threads in cannot win.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "crc32c.h"

#define LOG_BYTES (8u << 20)
#define RECORD_MAX (64u << 10)
#define LINE 64

#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif

static uint64_t now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

/* ---- locks ---- */
static _Alignas(LINE) atomic_int held;
static _Alignas(LINE) pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Alignas(LINE) atomic_int spins = 1000; /* K; 0: never yield */
static int threads_in_all;

/* Returns how often it gave the processor away. */
static unsigned spin_lock(void) {
    unsigned retreats = 0;
    for (;;) {
        int limit = atomic_load_explicit(&spins, memory_order_relaxed);
        for (int turn = 0; limit == 0 || turn < limit; turn++) {
            if (!atomic_load_explicit(&held, memory_order_relaxed) &&
                !atomic_exchange_explicit(&held, 1, memory_order_acquire))
                return retreats;
            RELAX();
        }
        retreats++;
        sched_yield();
    }
}

static void spin_unlock(void) { atomic_store_explicit(&held, 0, memory_order_release); }

/* ---- the adaptive lock: K follows the share of retreats; where even the largest K retreats often it is a mutex ----
 * All but `mode` belongs to the holder of the lock. A thread that took the lock of an old mode gives it back. */
enum { SPINNING, SLEEPING };
#define SPINS_LEAST 1000
#define SPINS_MOST 10000
#define UP_SHARE 320        /* one retreat in so many operations is many */
#define DOWN_PART 4         /* a quarter of that is few */
#define CALM_SHARE 0.8      /* back from the mutex at this part of what the processors could do */
#define WINDOW_NS 10000000  /* Apache RocketMQ looks once a second; the rules are ratios, and here a run is shorter */
#define LOOK_EVERY 256

static _Alignas(LINE) atomic_int mode;
static struct {
    uint64_t operations, retreats, since, swap_rate, to_mutex, to_spin;
} window;

static void adapt(uint64_t at) {
    uint64_t done = window.operations;
    int k = atomic_load_explicit(&spins, memory_order_relaxed), next = k;
    if (atomic_load_explicit(&mode, memory_order_relaxed) == SLEEPING) {
        if ((double)done <= CALM_SHARE * (double)window.swap_rate) {
            window.to_spin++;
            atomic_store_explicit(&mode, SPINNING, memory_order_release);
        }
    } else if (window.retreats * UP_SHARE >= done) {
        if (k < SPINS_MOST)
            next = k * 2 > SPINS_MOST ? SPINS_MOST : k * 2;
        else {
            window.swap_rate = done * (uint64_t)threads_in_all;
            window.to_mutex++;
            atomic_store_explicit(&mode, SLEEPING, memory_order_release);
        }
    } else if (window.retreats * UP_SHARE * DOWN_PART <= done && k > SPINS_LEAST)
        next = k - 1000 < SPINS_LEAST ? SPINS_LEAST : k - 1000;
    atomic_store_explicit(&spins, next, memory_order_relaxed);
    window.operations = window.retreats = 0;
    window.since = at;
}

static int adaptive_lock(void) {
    for (;;) {
        int taken = atomic_load_explicit(&mode, memory_order_acquire);
        unsigned retreats = 0;
        if (taken == SPINNING)
            retreats = spin_lock();
        else
            pthread_mutex_lock(&mutex);
        if (atomic_load_explicit(&mode, memory_order_acquire) == taken) {
            window.retreats += retreats;
            return taken;
        }
        if (taken == SPINNING)
            spin_unlock();
        else
            pthread_mutex_unlock(&mutex);
    }
}

static void adaptive_unlock(int taken) {
    if (++window.operations % LOOK_EVERY == 0) {
        uint64_t at = now_ns();
        if (at - window.since >= WINDOW_NS) adapt(at); /* the last thing under this lock: the mode may change */
    }
    if (taken == SPINNING)
        spin_unlock();
    else
        pthread_mutex_unlock(&mutex);
}

/* ---- the log and its threads ---- */
enum { NO_LOCK, MUTEX, SPIN, ADAPTIVE };
static int lock_kind;
static size_t record_bytes;
static _Alignas(LINE) atomic_int stop;
static unsigned char *log_bytes;
static _Alignas(LINE) uint64_t log_end;
static uint32_t log_checksum;

static void append(const unsigned char *record) {
    size_t at = log_end % (LOG_BYTES - RECORD_MAX);
    memcpy(log_bytes + at, record, record_bytes);
    memcpy(log_bytes + at, &log_end, sizeof log_end);
    log_checksum ^= crc32c_extend(0, log_bytes + at, record_bytes);
    log_end += record_bytes;
}

static void *run(void *result) {
    unsigned char record[RECORD_MAX];
    uint64_t done = 0;
    memset(record, 7, sizeof record);
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        memset(record, (int)done, 100); /* preparing a message is no part of the section */
        uint32_t checksum = crc32c_extend(0, record, 100);
        memcpy(record + 8, &checksum, sizeof checksum);
        int taken = 0;
        if (lock_kind == MUTEX)
            pthread_mutex_lock(&mutex);
        else if (lock_kind == SPIN)
            spin_lock();
        else if (lock_kind == ADAPTIVE)
            taken = adaptive_lock();
        append(record);
        if (lock_kind == MUTEX)
            pthread_mutex_unlock(&mutex);
        else if (lock_kind == SPIN)
            spin_unlock();
        else if (lock_kind == ADAPTIVE)
            adaptive_unlock(taken);
        done++;
    }
    *(uint64_t *)result = done;
    return NULL;
}

static uint64_t cpu_ns(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return ((uint64_t)used.ru_utime.tv_sec + (uint64_t)used.ru_stime.tv_sec) * 1000000000u +
           ((uint64_t)used.ru_utime.tv_usec + (uint64_t)used.ru_stime.tv_usec) * 1000u;
}

/* "none", "mutex", "adaptive" or the number of spins before a thread yields. */
static int choose_lock(const char *name) {
    if (!strcmp(name, "none")) return NO_LOCK;
    if (!strcmp(name, "mutex")) return MUTEX;
    if (!strcmp(name, "adaptive")) return ADAPTIVE;
    atomic_store(&spins, atoi(name));
    return SPIN;
}

int main(int count, char **arguments) {
    if (count != 5) return fprintf(stderr, "usage: locks LOCK THREADS BYTES MILLISECONDS\n"), 2;
    lock_kind = choose_lock(arguments[1]);
    threads_in_all = atoi(arguments[2]);
    record_bytes = (size_t)atoi(arguments[3]);
    if (threads_in_all < 1 || threads_in_all > 64 || record_bytes < 64 || record_bytes > RECORD_MAX ||
        (lock_kind == NO_LOCK && threads_in_all != 1))
        return fprintf(stderr, "locks: arguments out of range\n"), 2;
    crc32c_ready();
    log_bytes = calloc(1, LOG_BYTES);
    if (!log_bytes) return 1;
    memset(log_bytes, 1, LOG_BYTES);
    pthread_t threads[64];
    uint64_t done[64] = {0}, all = 0, cpu = cpu_ns(), wall = now_ns();
    window.since = wall;
    for (int each = 0; each < threads_in_all; each++)
        if (pthread_create(&threads[each], NULL, run, &done[each])) return 1;
    uint64_t pause_ns = (uint64_t)atoi(arguments[4]) * 1000000u;
    struct timespec pause = {(time_t)(pause_ns / 1000000000u), (long)(pause_ns % 1000000000u)};
    nanosleep(&pause, NULL);
    atomic_store(&stop, 1);
    for (int each = 0; each < threads_in_all; each++) pthread_join(threads[each], NULL), all += done[each];
    wall = now_ns() - wall;
    cpu = cpu_ns() - cpu;
    if (log_end != all * record_bytes || all == 0) return fprintf(stderr, "locks: the lock let two threads in\n"), 1;
    printf("%llu %.2f %.2f %llu\n", (unsigned long long)all, (double)cpu / (double)all, (double)wall / (double)all,
           (unsigned long long)(window.to_mutex + window.to_spin));
    return 0;
}
