/* What the peers share: the clock, how often to repeat, and the form of a sample.
 *
 * A peer is called with the number of repeats and the largest size in bytes. Each repeat of a work prints one line,
 * {"work":"put","pes":2,"bytes":8,"ns":51.3}, the mean over a loop long enough for the clock. The works:
 *
 *   put_value       one 8-byte value to the other PE, inlined where the library can
 *   put             a buffer to the other PE, done when the last of the loop has arrived; the other PE waits
 *   put_both        the same, both PEs at once, the slower one counts
 *   tokens          one of TOKENS buffers to places of the other PE that are apart, all of which are awaited together
 *   copy            a buffer within one process
 *   fetch_add       an 8-byte atomic on the other PE
 *   gups            one of UPDATES updates of words by chance, of the tables of all PEs, by all PEs at once, until all are done
 *   send_recv       half the round trip of a message to the other PE and back
 *   barrier         all PEs meet
 *   all_reduce      the sum of f32 on all PEs
 *   broadcast       PE 0's buffer to all
 *   all_gather      every PE's part to all
 *   reduce_scatter  the sum of f32, a part of it to each PE
 *   all_to_all      a part from every PE to every PE
 *   moe             tokens to the PEs of their experts, each once to each, and what those answer back, weighted and summed
 *
 * The bytes of a collective are those of the larger of a PE's two buffers, out of place: the whole for all-reduce and
 * broadcast; all parts together for all-gather (the destination), reduce-scatter (the source) and all-to-all. That is the
 * size that nccl-tests means. The slowest PE counts.
 *
 * Loops reuse their buffers, so sizes below the caches' stay in them, for every peer alike. */
#ifndef SAMPLE_H
#define SAMPLE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const size_t SMALLEST_BULK = 64 << 10, SMALLEST_TABLE = 4 << 10;

/* Rows of a mixture of experts, 7168 numbers of a byte. The places are these apart, modulo how many fit. */
enum { TOKENS = 1000, TOKEN = 7168, APART = 37 };

/* Updates of a PE, by random numbers as those of the example `gups`. */
enum { UPDATES = 1 << 18 };

static inline uint64_t random_number(uint64_t i) {
    uint64_t mixed = i * 0x9e3779b97f4a7c15;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
    return mixed ^ mixed >> 31;
}

/* What a random number means: a PE of two, and one of a power of two of words there. */
static inline int target_pe(uint64_t random) { return random >> 63; }
static inline size_t target_word(uint64_t random, size_t words) { return (uint32_t)random & (words - 1); }

static int repeats;
/* A layer of experts that answer with what they are given: tokens of a PE, numbers of a token, of two bytes each, experts, and
 * those of a token, which are different ones. The size is that of a PE's tokens. */
enum { MOE_TOKENS = 128, HIDDEN = 2048, EXPERTS = 16, TOP_K = 4 };

/* Choice k of a PE's token, and its weight. */
static inline int expert_of(int pe, int token, int k) {
    const uint64_t random = random_number(pe * MOE_TOKENS + token);
    return (random + k * (random >> 8 | 1)) % EXPERTS;
}

static inline float weight_of(int pe, int token, int k) {
    return (random_number((pe * MOE_TOKENS + token) * TOP_K + k) % 1024) / 1024.0f;
}

/* Number i of a token: few enough bits that an answer is exact. */
static inline float number_of(int pe, int token, int i) { return (pe * 31 + token * 7 + i) % 61; }

static size_t max_bytes;
static int pes = 2;

static void read_arguments(int argc, char **argv) {
    if (argc != 3 || (repeats = atoi(argv[1])) < 1 || (max_bytes = strtoull(argv[2], NULL, 10)) < 8) {
        fprintf(stderr, "usage: %s REPEATS MAX_BYTES\n", argv[0]);
        exit(2);
    }
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

/* Loop length: a quarter of a gibibyte of traffic, within bounds; shorter where PEs share cores and wait for them. */
static int rounds(size_t bytes) {
    const size_t n = ((size_t)256 << 20) / (bytes ? bytes : 1), most = pes > 2 ? 500 : 20000;
    return n < 4 ? 4 : n > most ? (int)most : (int)n;
}

static void emit(const char *work, size_t bytes, double ns) {
    printf("{\"work\":\"%s\",\"pes\":%d,\"bytes\":%zu,\"ns\":%.2f}\n", work, pes, bytes, ns);
    fflush(stdout);
}

static inline double larger(double a, double b) {
    return a > b ? a : b;
}

#endif
