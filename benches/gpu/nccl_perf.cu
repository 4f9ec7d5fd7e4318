/* NCCL's ranks on one GPU, each a thread of this process with a stream of its own.
 *
 *   nccl_perf RANKS CTAS SMALLEST_BYTES LARGEST_BYTES
 *
 * The algorithm is whatever the environment pins: NCCL_SYM_KERNEL=AllReduce_AGxLL_R, or NCCL_ALGO and NCCL_PROTO. Each
 * size is measured as launches one after the other, and as a graph of 20 that is replayed. With NCCL's device API
 * (2.28) and NCCL_PERF_IN_KERNEL set, its barrier and its LL all-to-all are measured within a kernel too: `lsa_barrier`,
 * and `ll_all_reduce`, which is what AGxLL_R does.
 *
 * NCCL takes several ranks on a GPU from 2.30 on (NCCL_MULTI_RANK_GPU_ENABLE=1); older ones refuse: this ends with 77.
 * All ranks' CTAs must run at once, so RANKS * CTAS must not exceed the GPU's SMs. */
#include "peer.h"

#include <chrono>
#include <nccl.h>
#include <pthread.h>
#include <thread>
#include <vector>

#if __has_include(<nccl_device.h>) && NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#include <nccl_device.h>
#define HAS_DEVICE_API 1
#endif

#define CHECK_NCCL(call)                                                                                   \
    do {                                                                                                   \
        const ncclResult_t error_ = (call);                                                                \
        if (error_ != ncclSuccess) {                                                                       \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, ncclGetErrorString(error_));     \
            exit(3);                                                                                       \
        }                                                                                                  \
    } while (0)

static const int ROUNDS = 200, IN_GRAPH = 20;

static int ranks, ctas;
static size_t smallest, largest;
static pthread_barrier_t everyone;
static ncclUniqueId id;
static double slowest_us;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static double now_us() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::micro>(now).count();
}

/* The slowest rank's time, told to rank 0 alone. */
static double slowest(int rank, double us) {
    pthread_mutex_lock(&lock);
    if (us > slowest_us) slowest_us = us;
    pthread_mutex_unlock(&lock);
    pthread_barrier_wait(&everyone);
    const double worst = slowest_us;
    pthread_barrier_wait(&everyone);
    if (rank == 0) slowest_us = 0;
    pthread_barrier_wait(&everyone);
    return worst;
}

struct Rank {
    int rank;
    ncclComm_t comm;
    cudaStream_t stream;
    float *src, *dst;
};

/* Microseconds of one `work` of `calls` operations, over `rounds` of them behind a common start. */
template <typename Work>
static double time_of(const Rank &me, int rounds, int calls, Work work) {
    for (int i = 0; i < 5; i++) work();
    CHECK_CUDA(cudaStreamSynchronize(me.stream));
    pthread_barrier_wait(&everyone);
    const double start = now_us();
    for (int i = 0; i < rounds; i++) work();
    CHECK_CUDA(cudaStreamSynchronize(me.stream));
    return slowest(me.rank, (now_us() - start) / rounds / calls);
}

static const char *pinned() {
    static char text[160];
    const char *kernel = getenv("NCCL_SYM_KERNEL"), *algo = getenv("NCCL_ALGO"), *proto = getenv("NCCL_PROTO");
    if (kernel) {
        snprintf(text, sizeof text, "%s", kernel);
    } else {
        snprintf(text, sizeof text, "%s/%s", algo ? algo : "auto", proto ? proto : "auto");
    }
    return text;
}

static void all_reduces(const Rank &me) {
    char how[200];
    const double factor = 2.0 * (ranks - 1) / ranks;
    for (size_t bytes = smallest; bytes <= largest; bytes *= 2) {
        const size_t count = bytes / sizeof(float);
        auto one = [&] { CHECK_NCCL(ncclAllReduce(me.src, me.dst, count, ncclFloat, ncclSum, me.comm, me.stream)); };
        const int rounds = bytes >= (4u << 20) ? ROUNDS / 10 : ROUNDS;
        const double launched = time_of(me, rounds, 1, one);
        snprintf(how, sizeof how, "%s, launches", pinned());
        if (me.rank == 0) emit("nccl", "all_reduce", how, ranks, ctas, 0, bytes, launched, factor);

        cudaGraph_t graph;
        cudaGraphExec_t replay;
        CHECK_CUDA(cudaStreamBeginCapture(me.stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < IN_GRAPH; i++) one();
        CHECK_CUDA(cudaStreamEndCapture(me.stream, &graph));
        CHECK_CUDA(cudaGraphInstantiate(&replay, graph, 0));
        CHECK_CUDA(cudaGraphUpload(replay, me.stream));
        CHECK_CUDA(cudaStreamSynchronize(me.stream));
        pthread_barrier_wait(&everyone);
        const double replayed =
            time_of(me, rounds / 10, IN_GRAPH, [&] { CHECK_CUDA(cudaGraphLaunch(replay, me.stream)); });
        snprintf(how, sizeof how, "%s, graph", pinned());
        if (me.rank == 0) emit("nccl", "all_reduce", how, ranks, ctas, 0, bytes, replayed, factor);
        /* Freeing a graph may wait for the device, so nobody is within a kernel now. */
        pthread_barrier_wait(&everyone);
        CHECK_CUDA(cudaGraphExecDestroy(replay));
        CHECK_CUDA(cudaGraphDestroy(graph));

        float sum = 0;
        CHECK_CUDA(cudaMemcpy(&sum, me.dst + count - 1, sizeof sum, cudaMemcpyDeviceToHost));
        if (sum != ranks * (ranks + 1) / 2) {
            fprintf(stderr, "rank %d: all_reduce of %zu bytes gave %f\n", me.rank, bytes, sum);
            exit(3);
        }
        pthread_barrier_wait(&everyone);
    }
}

#ifdef HAS_DEVICE_API

static const int WARM = 100, TIMED = 1000, THREADS = 256;
/* Elements of 8 bytes of the longest message that `ll_all_reduce` takes: 16 KiB. */
static const int LONGEST = 2048;

__global__ void barriers(ncclDevComm comm, uint64_t *took) {
    ncclLsaBarrierSession<ncclCoopCta> session(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x);
    uint64_t start = 0;
    for (int i = 0; i < WARM + TIMED; i++) {
        if (i == WARM) start = device_ns();
        session.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
    }
    if (threadIdx.x == 0) *took = device_ns() - start;
}

/* Each rank sends its elements to all, and each sums what it got. */
__global__ void ll_all_reduces(ncclDevComm comm, ncclLLA2AHandle handle, float2 *dst, const float2 *src, int count,
                               uint64_t *took) {
    const ncclTeam team = ncclTeamLsa(comm);
    ncclLLA2ASession<ncclCoopCta> session(ncclCoopCta(), comm, team, handle, blockIdx.x, LONGEST * team.nRanks);
    uint64_t start = 0;
    for (int i = 0; i < WARM + TIMED; i++) {
        if (i == WARM) start = device_ns();
        for (int e = threadIdx.x; e < count; e += blockDim.x) session.bcast(team.rank * count + e, src[e]);
        for (int e = threadIdx.x; e < count; e += blockDim.x) {
            dst[e] = session.recvReduce<8, float2>(
                e, team.nRanks, count, [](float2 x) { return x; },
                [](float2 x, float2 y) { return make_float2(x.x + y.x, x.y + y.y); });
        }
        session.endEpoch(ncclCoopCta());
    }
    if (threadIdx.x == 0) *took = device_ns() - start;
}

static double in_kernel(const Rank &me, uint64_t *took, cudaError_t launched) {
    uint64_t ns;
    CHECK_CUDA(launched);
    CHECK_CUDA(cudaStreamSynchronize(me.stream));
    CHECK_CUDA(cudaMemcpy(&ns, took, sizeof ns, cudaMemcpyDeviceToHost));
    return slowest(me.rank, ns / 1e3 / TIMED);
}

static void in_kernels(const Rank &me) {
    ncclDevCommRequirements asked = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    ncclDevResourceRequirements_t room = {};
    ncclLLA2AHandle handle;
    CHECK_NCCL(ncclLLA2ACreateRequirement(1, LONGEST * ranks, &handle, &room));
    asked.resourceRequirementsList = &room;
    asked.lsaBarrierCount = 1;
    ncclDevComm comm;
    CHECK_NCCL(ncclDevCommCreate(me.comm, &asked, &comm));
    uint64_t *took;
    CHECK_CUDA(cudaMalloc(&took, sizeof *took));
    pthread_barrier_wait(&everyone);

    barriers<<<1, THREADS, 0, me.stream>>>(comm, took);
    const double barrier = in_kernel(me, took, cudaGetLastError());
    if (me.rank == 0) emit("nccl", "lsa_barrier", "in-kernel", ranks, 1, THREADS, 0, barrier, 0);
    for (int count = 1; count <= LONGEST; count *= 2) {
        const size_t bytes = count * sizeof(float2);
        ll_all_reduces<<<1, THREADS, 0, me.stream>>>(comm, handle, (float2 *)me.dst, (const float2 *)me.src, count,
                                                     took);
        const double us = in_kernel(me, took, cudaGetLastError());
        const double factor = 2.0 * (ranks - 1) / ranks;
        if (me.rank == 0) emit("nccl", "ll_all_reduce", "in-kernel", ranks, 1, THREADS, bytes, us, factor);
    }
    CHECK_CUDA(cudaFree(took));
    CHECK_NCCL(ncclDevCommDestroy(me.comm, &comm));
}

#else
static void in_kernels(const Rank &) { fprintf(stderr, "NCCL %d has no device API\n", NCCL_VERSION_CODE); }
#endif

static void run(int rank) {
    Rank me = {rank};
    CHECK_CUDA(cudaSetDevice(0));
    CHECK_CUDA(cudaStreamCreateWithFlags(&me.stream, cudaStreamNonBlocking));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.minCTAs = ctas;
    config.maxCTAs = ctas;
    const ncclResult_t joined = ncclCommInitRankConfig(&me.comm, ranks, id, rank, &config);
    if (joined != ncclSuccess) {
        fprintf(stderr, "NCCL takes no %d ranks on one GPU: %s (%s)\n", ranks, ncclGetErrorString(joined),
                ncclGetLastError(nullptr));
        exit(joined == ncclInvalidUsage ? CANNOT : 3);
    }
    const size_t room = largest > (16u << 10) ? largest : 16u << 10;
    CHECK_NCCL(ncclMemAlloc((void **)&me.src, room));
    CHECK_NCCL(ncclMemAlloc((void **)&me.dst, room));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    ncclWindow_t from, to;
    CHECK_NCCL(ncclCommWindowRegister(me.comm, me.src, room, &from, NCCL_WIN_COLL_SYMMETRIC));
    CHECK_NCCL(ncclCommWindowRegister(me.comm, me.dst, room, &to, NCCL_WIN_COLL_SYMMETRIC));
#endif
    const std::vector<float> values(room / sizeof(float), rank + 1.0f);
    CHECK_CUDA(cudaMemcpy(me.src, values.data(), room, cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaMemset(me.dst, 0, room));
    CHECK_CUDA(cudaDeviceSynchronize());
    pthread_barrier_wait(&everyone);
    all_reduces(me);
    if (getenv("NCCL_PERF_IN_KERNEL")) in_kernels(me);
    pthread_barrier_wait(&everyone);
    /* The process ends here: taking communicators down is no part of what is measured. */
}

int main(int argc, char **argv) {
    ranks = argument(argc, argv, 1, 8);
    ctas = argument(argc, argv, 2, 1);
    smallest = argument(argc, argv, 3, 8);
    largest = argument(argc, argv, 4, 64l << 20);
    /* Kernels of different ranks wait for each other: each stream has its own queue, and none is loaded late. */
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    int version;
    CHECK_NCCL(ncclGetVersion(&version));
    if (version != NCCL_VERSION_CODE) {
        fprintf(stderr, "compiled for NCCL %d, loaded %d: put the library's folder first in LD_LIBRARY_PATH\n",
                NCCL_VERSION_CODE, version);
        return CANNOT;
    }
    CHECK_NCCL(ncclGetUniqueId(&id));
    pthread_barrier_init(&everyone, nullptr, ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; rank++) threads.emplace_back(run, rank);
    for (auto &thread : threads) thread.join();
    fflush(stdout);
    _Exit(0);
}
