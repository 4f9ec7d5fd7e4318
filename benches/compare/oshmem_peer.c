/* Two OpenSHMEM PEs: puts, atomics and barrier. */
#include "sample.h"
#include <shmem.h>
#include <string.h>

/* All on the symmetric heap: Open MPI reaches static variables of another process only through the kernel. */
static int me;
static long *word;
static double *other_ns;

/* PE 0 gets the larger of both PEs' times. */
static double slower(double ns) {
    shmem_barrier_all();
    if (me == 1) shmem_double_p(other_ns, ns, 0);
    shmem_barrier_all();
    return larger(ns, *other_ns);
}

static double put_value(void) {
    const int n = rounds(sizeof *word);
    const double start = now_ns();
    for (int i = 0; i < n; i++) shmem_long_p(word, i, 1);
    shmem_quiet();
    return (now_ns() - start) / n;
}

static double fetch_add(void) {
    const int n = rounds(sizeof *word);
    const double start = now_ns();
    for (int i = 0; i < n; i++) shmem_long_atomic_fetch_add(word, 1, 1);
    return (now_ns() - start) / n;
}

static double put(char *dst, const char *src, size_t bytes) {
    const int n = rounds(bytes);
    const double start = now_ns();
    for (int i = 0; i < n; i++) shmem_putmem(dst, src, bytes, 1 - me);
    shmem_quiet();
    return (now_ns() - start) / n;
}

static double gups(uint64_t *table, size_t bytes) {
    const size_t words = bytes / sizeof *table;
    shmem_barrier_all();
    const double start = now_ns();
    for (uint64_t i = 0; i < UPDATES; i++) {
        const uint64_t random = random_number(me * (uint64_t)UPDATES + i);
        shmem_uint64_atomic_xor(table + target_word(random, words), random, target_pe(random));
    }
    shmem_barrier_all();
    return (now_ns() - start) / UPDATES;
}

static double barrier(void) {
    const int n = rounds(0);
    shmem_barrier_all();
    const double start = now_ns();
    for (int i = 0; i < n; i++) shmem_barrier_all();
    return (now_ns() - start) / n;
}

/* One repeat; the first one warms caches, connections and pages, and is not told. */
static void repeat(char *dst, char *src, int told) {
    told = told && me == 0;
    const double meeting = slower(barrier());
    if (told) emit("barrier", 0, meeting);
    for (size_t bytes = SMALLEST_TABLE; bytes <= max_bytes; bytes *= 16) {
        const double update = slower(gups((uint64_t *)dst, bytes));
        if (told) emit("gups", bytes, update);
    }
    if (me == 0) {
        const double value = put_value(), atomic = fetch_add(), small = put(dst, src, 8);
        if (told) emit("put_value", 8, value), emit("fetch_add", 8, atomic), emit("put", 8, small);
    }
    shmem_barrier_all();
    for (size_t bytes = SMALLEST_BULK; bytes <= max_bytes; bytes *= 4) {
        if (me == 0) {
            const double ns = put(dst, src, bytes);
            if (told) emit("put", bytes, ns);
        }
        shmem_barrier_all();
        const double both = slower(put(dst, src, bytes));
        if (told) emit("put_both", bytes, both);
    }
}

int main(int argc, char **argv) {
    shmem_init();
    read_arguments(argc, argv);
    me = shmem_my_pe();
    char *dst = shmem_malloc(max_bytes), *src = shmem_malloc(max_bytes);
    word = shmem_calloc(1, sizeof *word);
    other_ns = shmem_calloc(1, sizeof *other_ns);
    if (shmem_n_pes() != 2 || !dst || !src || !word || !other_ns) shmem_global_exit(2);
    memset(src, 1 + me, max_bytes);
    memset(dst, 0, max_bytes);
    shmem_barrier_all();
    for (int r = 0; r <= repeats; r++) repeat(dst, src, r > 0);
    shmem_barrier_all();
    const size_t last = max_bytes < SMALLEST_BULK ? 7 : SMALLEST_BULK - 1;
    if (dst[last] != 2 - me && (me == 1 || last > 7)) shmem_global_exit(3);
    shmem_barrier_all();
    /* Open MPI 4.1.4 crashes in shmem_finalize, even when nothing was done before. */
    shmem_global_exit(0);
}
