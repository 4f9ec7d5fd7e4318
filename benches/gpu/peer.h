/* What the peers on a GPU share: how they end when something fails, the clock of the device, and the form of a sample.
 *
 * A sample is one line, {"peer":"nccl","work":"all_reduce","how":"AllReduce_AGxLL_R, graph","pes":8,"ctas":1,
 * "threads":512,"bytes":8192,"us":6.20,"algbw":1.32,"busbw":2.31}: microseconds of one operation, gigabytes (1e9) a
 * second as nccl-tests counts them; 0 threads are those that the library chose. All PEs are on one GPU, so these are
 * figures of its caches and its memory, never of a link. */
#ifndef PEER_H
#define PEER_H

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

/* What did not work, and where; a peer that fails is a line of the report. */
#define CHECK_CUDA(call)                                                                                    \
    do {                                                                                                    \
        const cudaError_t error_ = (call);                                                                  \
        if (error_ != cudaSuccess) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));      \
            exit(3);                                                                                        \
        }                                                                                                   \
    } while (0)

/* Exit status of a peer whose library cannot do this on one GPU; standard error says why. */
enum { CANNOT = 77 };

/* A sample; `factor` makes of the algorithm's bandwidth the bus bandwidth. */
static inline void emit(const char *peer, const char *work, const char *how, int pes, int ctas, int threads,
                        size_t bytes, double us, double factor) {
    const double algbw = bytes / us / 1e3;
    printf("{\"peer\":\"%s\",\"work\":\"%s\",\"how\":\"%s\",\"pes\":%d,\"ctas\":%d,\"threads\":%d,\"bytes\":%zu,"
           "\"us\":%.3f,\"algbw\":%.3f,\"busbw\":%.3f}\n",
           peer, work, how, pes, ctas, threads, bytes, us, algbw, algbw * factor);
    fflush(stdout);
}

/* Nanoseconds, of one clock for the whole GPU. */
__device__ static inline uint64_t device_ns() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

/* The n-th argument as a number. */
static inline long argument(int argc, char **argv, int n, long otherwise) {
    return argc > n ? strtol(argv[n], nullptr, 10) : otherwise;
}

#endif
