/* NVSHMEM's PEs on one GPU, each a process: the ping-pong and the barrier of its device perftests, under their names.
 *
 *   nvshmem_perf PES
 *
 * put_signal_ping_pong_latency: a message to and fro with its signal, by a block of one warp up to 512 bytes and of 256
 * threads above; the time is half a round trip, as `congruent perf ping-pong` counts it (NVSHMEM's own perftest prints
 * the whole). barrier_latency: the barrier of all PEs, by a block. put_bw: puts of a block, with one quiet at the end.
 *
 * PEs that share a GPU run at once under MPS only; without it they take turns, and each hop costs a time slice. */
#include "peer.h"

#include <nvshmem.h>
#include <nvshmemx.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <csignal>
#include <unistd.h>

static const int WARM = 50, TIMED = 500, THREADS = 256;
static const size_t LONGEST = 64 << 10, BULK = 64 << 20;

struct Meeting {
    volatile int has_id;
    nvshmemx_uniqueid_t id;
};

__global__ void ping_pong(char *data, uint64_t *signal, size_t bytes, int me, uint64_t *took) {
    const int peer = 1 - me;
    uint64_t start = 0;
    for (int i = 1; i <= WARM + TIMED; i++) {
        if (i == WARM + 1) start = device_ns();
        if (me == 0) {
            nvshmemx_putmem_signal_block(data, data, bytes, signal, i, NVSHMEM_SIGNAL_SET, peer);
            if (threadIdx.x == 0) nvshmem_signal_wait_until(signal, NVSHMEM_CMP_GE, i);
            __syncthreads();
        } else {
            if (threadIdx.x == 0) nvshmem_signal_wait_until(signal, NVSHMEM_CMP_GE, i);
            __syncthreads();
            nvshmemx_putmem_signal_block(data, data, bytes, signal, i, NVSHMEM_SIGNAL_SET, peer);
        }
    }
    if (threadIdx.x == 0) *took = device_ns() - start;
}

__global__ void barriers(uint64_t *took) {
    uint64_t start = 0;
    for (int i = 0; i < WARM + TIMED; i++) {
        if (i == WARM) start = device_ns();
        nvshmemx_barrier_all_block();
    }
    if (threadIdx.x == 0) *took = device_ns() - start;
}

__global__ void puts(char *dst, const char *src, size_t bytes, int rounds, uint64_t *took) {
    const uint64_t start = device_ns();
    const size_t part = bytes / gridDim.x, at = part * blockIdx.x;
    for (int i = 0; i < rounds; i++) nvshmemx_putmem_nbi_block(dst + at, src + at, part, 1);
    if (threadIdx.x == 0) {
        nvshmem_quiet();
        atomicMax((unsigned long long *)took, (unsigned long long)(device_ns() - start));
    }
}

static double microseconds(uint64_t *took, int rounds) {
    uint64_t ns;
    CHECK_CUDA(cudaGetLastError());
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_CUDA(cudaMemcpy(&ns, took, sizeof ns, cudaMemcpyDeviceToHost));
    return ns / 1e3 / rounds;
}

static void join(int me, int pes, Meeting *meeting) {
    if (me == 0) {
        meeting->id = NVSHMEMX_UNIQUEID_INITIALIZER;
        if (nvshmemx_get_uniqueid(&meeting->id) != 0) exit(CANNOT);
        __sync_synchronize();
        meeting->has_id = 1;
    }
    while (!meeting->has_id) usleep(1000);
    __sync_synchronize();
    nvshmemx_init_attr_t how = NVSHMEMX_INIT_ATTR_INITIALIZER;
    nvshmemx_set_attr_uniqueid_args(me, pes, &meeting->id, &how);
    if (nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &how) != 0) {
        fprintf(stderr, "NVSHMEM takes no %d PEs on one GPU\n", pes);
        exit(CANNOT);
    }
}

static void run(int me, int pes, Meeting *meeting) {
    CHECK_CUDA(cudaSetDevice(0));
    join(me, pes, meeting);
    const int status = nvshmemx_init_status();
    const char *sharing = status == NVSHMEM_STATUS_FULL_MPG      ? "MPS"
                          : status == NVSHMEM_STATUS_LIMITED_MPG ? "time slices"
                                                                 : "one PE for each GPU";
    char *data = (char *)nvshmem_malloc(BULK), *src = (char *)nvshmem_malloc(BULK);
    uint64_t *signal = (uint64_t *)nvshmem_calloc(1, sizeof *signal), *took;
    if (!data || !src || !signal) exit(3);
    CHECK_CUDA(cudaMalloc(&took, sizeof *took));
    nvshmem_barrier_all();

    for (int threads = 32; threads <= THREADS; threads *= 8) {
        barriers<<<1, threads>>>(took);
        const double us = microseconds(took, TIMED);
        if (me == 0) emit("nvshmem", "barrier_latency", sharing, pes, 1, threads, 0, us, 0);
        nvshmem_barrier_all();
    }
    for (size_t bytes = 8; bytes <= LONGEST; bytes *= 8) {
        const int threads = bytes <= 512 ? 32 : THREADS;
        CHECK_CUDA(cudaMemset(signal, 0, sizeof *signal));
        CHECK_CUDA(cudaDeviceSynchronize());
        nvshmem_barrier_all();
        if (me < 2) {
            ping_pong<<<1, threads>>>(data, signal, bytes, me, took);
            const double us = microseconds(took, 2 * TIMED);
            if (me == 0) emit("nvshmem", "put_signal_ping_pong_latency", sharing, pes, 1, threads, bytes, us, 1);
        }
        nvshmem_barrier_all();
    }
    if (me == 0) {
        CHECK_CUDA(cudaMemset(took, 0, sizeof *took));
        puts<<<16, THREADS>>>(data, src, BULK, 20, took);
        emit("nvshmem", "put_bw", sharing, pes, 16, THREADS, BULK, microseconds(took, 20), 1);
    }
    nvshmem_barrier_all();
    nvshmem_finalize();
}

int main(int argc, char **argv) {
    const int pes = argument(argc, argv, 1, 2);
    setenv("NVSHMEM_REMOTE_TRANSPORT", "none", 0);
    setenv("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "lo", 0);
    setenv("NVSHMEM_SYMMETRIC_SIZE", "256M", 0);
    setenv("NVSHMEM_DISABLE_NVLS", "1", 0);
    Meeting *meeting =
        (Meeting *)mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (meeting == MAP_FAILED) return 2;
    const pid_t parent = getpid();
    for (int me = 0; me < pes; me++) {
        const pid_t child = fork();
        if (child < 0) return 2;
        if (child == 0) {
            /* A PE that waits for a dead one would spin for ever. */
            if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) return 2;
            run(me, pes, meeting);
            return 0;
        }
    }
    for (int left = pes, status; left > 0; left--) {
        if (wait(&status) < 0) return 2;
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 3;
        /* The others wait for it; ending tells them to. */
        if (code != 0) return code;
    }
    return 0;
}
