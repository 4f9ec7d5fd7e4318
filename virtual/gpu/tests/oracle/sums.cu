// Scans and reductions: shuffles, shared memory, block syncs, and blocks that meet through atomics and fences.

#include <climits>

constexpr unsigned WHOLE = 0xFFFFFFFF;

__device__ unsigned scan_of_warp(unsigned value) {
    for (int step = 1; step < 32; step *= 2) {
        unsigned below = __shfl_up_sync(WHOLE, value, step);
        if (threadIdx.x % 32 >= step) value += below;
    }
    return value;
}

// Inclusive sums of each block's part.
extern "C" __global__ void inclusive_scan(const unsigned *in, unsigned *out) {
    __shared__ unsigned totals[32];
    unsigned index = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned sum = scan_of_warp(in[index]);
    if (lane == 31) totals[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        unsigned total = lane < blockDim.x / 32 ? totals[lane] : 0;
        totals[lane] = scan_of_warp(total);
    }
    __syncthreads();
    out[index] = sum + (warp > 0 ? totals[warp - 1] : 0);
}

// Inclusive sums that start anew where `heads` is not zero; one block.
extern "C" __global__ void segmented_scan(const int *in, const unsigned char *heads, int *out, unsigned n) {
    extern __shared__ int shared[];
    int *sums = shared, *flags = shared + blockDim.x;
    unsigned me = threadIdx.x;
    sums[me] = me < n ? in[me] : 0;
    flags[me] = me < n ? heads[me] : 1;
    for (unsigned step = 1; step < blockDim.x; step *= 2) {
        __syncthreads();
        int sum = sums[me], flag = flags[me];
        if (me >= step && !flag) {
            sum += sums[me - step];
            flag |= flags[me - step];
        }
        __syncthreads();
        sums[me] = sum;
        flags[me] = flag;
    }
    if (me < n) out[me] = sums[me];
}

// Sum, smallest and largest of each block's part, with as many threads as divide it.
extern "C" __global__ void block_reduce(const int *in, int *sums, int *least, int *most, unsigned n) {
    __shared__ int parts[3][32];
    int sum = 0, low = INT_MAX, high = INT_MIN;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
        int value = in[blockIdx.x * n + i];
        sum += value;
        low = min(low, value);
        high = max(high, value);
    }
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(WHOLE, sum, step);
        low = min(low, __shfl_xor_sync(WHOLE, low, step));
        high = max(high, __shfl_down_sync(WHOLE, high, step));
    }
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (lane == 0) parts[0][warp] = sum, parts[1][warp] = low, parts[2][warp] = high;
    __syncthreads();
    if (warp != 0) return;
    sum = __reduce_add_sync(WHOLE, lane < warps ? parts[0][lane] : 0);
    low = __reduce_min_sync(WHOLE, lane < warps ? parts[1][lane] : INT_MAX);
    high = __reduce_max_sync(WHOLE, lane < warps ? parts[2][lane] : INT_MIN);
    if (lane == 0) sums[blockIdx.x] = sum, least[blockIdx.x] = low, most[blockIdx.x] = high;
}

__device__ unsigned blocks_done;

// Each block stores its sum; the last one to come adds them in their order, so that floats sum up the same each time.
extern "C" __global__ void grid_reduce(const float *in, float *parts, float *out, unsigned n) {
    __shared__ float sums[256];
    __shared__ bool last;
    float sum = 0;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = sums[0];
        __threadfence();
        last = atomicInc(&blocks_done, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last || threadIdx.x != 0) return;
    __threadfence();
    float total = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) total += __ldcg(&parts[i]);
    *out = total;
}

// How many threads of the block have an odd value, whether all and whether any have one of at least `bound`.
extern "C" __global__ void block_votes(const unsigned *in, unsigned bound, unsigned *out) {
    unsigned value = in[blockIdx.x * blockDim.x + threadIdx.x];
    unsigned odd = __syncthreads_count(value & 1);
    unsigned all = __syncthreads_and(value >= bound);
    unsigned any = __syncthreads_or(value >= bound);
    if (threadIdx.x == 0) {
        out[3 * blockIdx.x] = odd;
        out[3 * blockIdx.x + 1] = all != 0;
        out[3 * blockIdx.x + 2] = any != 0;
    }
}

// Two 64-bit products summed with their carries: 128-bit dot product of `n` pairs, by one warp.
extern "C" __global__ void wide_dot(const unsigned long long *a, const unsigned long long *b, unsigned long long *out, unsigned n) {
    unsigned __int128 sum = 0;
    for (unsigned i = threadIdx.x; i < n; i += 32) sum += static_cast<unsigned __int128>(a[i]) * b[i];
    for (int step = 16; step > 0; step /= 2) {
        unsigned long long low = __shfl_down_sync(WHOLE, static_cast<unsigned long long>(sum), step);
        unsigned long long high = __shfl_down_sync(WHOLE, static_cast<unsigned long long>(sum >> 64), step);
        sum += static_cast<unsigned __int128>(high) << 64 | low;
    }
    if (threadIdx.x == 0) {
        out[0] = static_cast<unsigned long long>(sum);
        out[1] = static_cast<unsigned long long>(sum >> 64);
    }
}
