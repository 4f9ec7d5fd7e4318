/* What the machine can do: libc's memcpy, within a process and from one process's shared heap to another's.
 *
 * Two processes on one core each, over one mapping of anonymous shared memory with a heap for each: a put is then a
 * memcpy from one's own heap to the other's. */
#define _GNU_SOURCE
#include "sample.h"
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

struct meeting {
    _Alignas(128) atomic_int arrived;
    _Alignas(128) double ns[2];
};

static int me;
static struct meeting *shared;
static char *heaps;

static void barrier(void) {
    static int epoch;
    epoch += 2;
    atomic_fetch_add(&shared->arrived, 1);
    while (atomic_load(&shared->arrived) < epoch) __builtin_ia32_pause();
}

static double slower(double ns) {
    shared->ns[me] = ns;
    barrier();
    const double slowest = larger(shared->ns[0], shared->ns[1]);
    barrier();
    return slowest;
}

/* The first half of a heap is what it sends, the second what it receives. */
static char *source(int pe) { return heaps + pe * 2 * max_bytes; }
static char *destination(int pe) { return source(pe) + max_bytes; }

static double copy(char *dst, const char *src, size_t bytes) {
    const int n = rounds(bytes);
    const double start = now_ns();
    for (int i = 0; i < n; i++) {
        memcpy(dst, src, bytes);
        __asm__ volatile("" ::: "memory");
    }
    return (now_ns() - start) / n;
}

static double gups(size_t bytes) {
    const size_t words = bytes / sizeof(uint64_t);
    barrier();
    const double start = now_ns();
    for (uint64_t i = 0; i < UPDATES; i++) {
        const uint64_t random = random_number(me * (uint64_t)UPDATES + i);
        uint64_t *table = (uint64_t *)destination(target_pe(random));
        __atomic_fetch_xor(table + target_word(random, words), random, __ATOMIC_RELAXED);
    }
    barrier();
    return (now_ns() - start) / UPDATES;
}

static void repeat(char *private_dst, char *private_src, int told) {
    told = told && me == 0;
    for (size_t bytes = SMALLEST_TABLE; bytes <= max_bytes; bytes *= 16) {
        const double update = slower(gups(bytes));
        if (told) emit("gups", bytes, update);
    }
    for (size_t bytes = SMALLEST_BULK; bytes <= max_bytes; bytes *= 4) {
        if (me == 0) {
            const double within = copy(private_dst, private_src, bytes);
            const double across = copy(destination(1), source(0), bytes);
            if (told) emit("copy", bytes, within), emit("put", bytes, across);
        }
        barrier();
        const double both = slower(copy(destination(1 - me), source(me), bytes));
        if (told) emit("put_both", bytes, both);
    }
}

/* The n-th of the cores this process may use, counted round. */
static void pin(int n) {
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    n %= CPU_COUNT(&all);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &all) && n-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            sched_setaffinity(0, sizeof one, &one);
        }
    }
}

int main(int argc, char **argv) {
    read_arguments(argc, argv);
    const int prot = PROT_READ | PROT_WRITE;
    shared = mmap(NULL, sizeof *shared, prot, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    heaps = mmap(NULL, 4 * max_bytes, prot, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *private_dst = malloc(max_bytes), *private_src = malloc(max_bytes);
    if (shared == MAP_FAILED || heaps == MAP_FAILED || !private_dst || !private_src) return 2;

    const pid_t parent = getpid(), child = fork();
    if (child < 0) return 2;
    me = child == 0;
    /* A PE that waits for a dead one would spin for ever. */
    if (me == 1 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)) return 2;
    pin(me);
    memset(source(me), 1 + me, max_bytes);
    memset(destination(me), 0, max_bytes);
    memset(private_dst, 0, max_bytes);
    memset(private_src, 1, max_bytes);
    barrier();

    for (int r = 0; r <= repeats; r++) repeat(private_dst, private_src, r > 0);
    barrier();
    if (me == 1) return max_bytes >= SMALLEST_BULK && destination(1)[SMALLEST_BULK - 1] != 1 ? 3 : 0;
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}
