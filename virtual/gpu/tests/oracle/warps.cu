// Lanes of a warp together: ballots, matches, masks of some lanes, aggregated atomics, groups of threads.
#include <cooperative_groups.h>

namespace groups = cooperative_groups;

constexpr unsigned WHOLE = 0xFFFFFFFF;

// Keeps the values that are not divisible by three, in their order, in each warp's part of `out`.
extern "C" __global__ void compact(const unsigned *in, unsigned *out, unsigned *counts) {
    unsigned lane = threadIdx.x % 32, start = blockIdx.x * blockDim.x + threadIdx.x - lane;
    unsigned value = in[start + lane];
    unsigned kept = __ballot_sync(WHOLE, value % 3 != 0);
    unsigned before = __popc(kept & ((1u << lane) - 1));
    if (kept >> lane & 1) out[start + before] = value;
    if (lane == 0) counts[start / 32] = __popc(kept);
}

// The lanes with the same value, whether all have it, and the first and last lane of them.
extern "C" __global__ void equals(const unsigned *in, const unsigned long long *wide, unsigned *out) {
    unsigned lane = threadIdx.x;
    int all;
    unsigned same = __match_any_sync(WHOLE, in[lane]);
    unsigned same_wide = __match_any_sync(WHOLE, wide[lane]);
    unsigned half = __match_all_sync(WHOLE, in[lane] / 1000, &all);
    out[5 * lane] = same;
    out[5 * lane + 1] = same_wide;
    out[5 * lane + 2] = half - 5 * all;
    out[5 * lane + 3] = __ffs(same) - 1;
    out[5 * lane + 4] = 31 - __clz(same);
}

// Two groups of lanes go different ways; each shuffles among its own, in segments of `width` lanes.
extern "C" __global__ void shuffles_of_some(const int *in, int *out) {
    unsigned lane = threadIdx.x;
    int value = in[lane], result;
    if (value & 1) {
        unsigned odd = __ballot_sync(__activemask(), true);
        unsigned next = lane == 31 ? 0 : __ffs(odd >> (lane + 1));
        result = __shfl_sync(odd, value, next == 0 ? __ffs(odd) - 1 : lane + next);
        __syncwarp(odd);
    } else {
        result = -value;
    }
    __syncwarp();
    int rotated = __shfl_sync(WHOLE, result, lane + 1, 8);
    int below = __shfl_up_sync(WHOLE, result, 3, 16);
    int above = __shfl_down_sync(WHOLE, result, 2, 4);
    int crossed = __shfl_xor_sync(WHOLE, result, 9);
    out[4 * lane] = rotated;
    out[4 * lane + 1] = below;
    out[4 * lane + 2] = above;
    out[4 * lane + 3] = crossed;
}

// Counts the chosen values with one atomic for each group of lanes that meet, and gives each a place of its own.
extern "C" __global__ void aggregated(const unsigned *in, unsigned *next, unsigned *places, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned bucket = in[i] % 5;
    unsigned mates = __match_any_sync(__activemask(), bucket);
    unsigned lane = threadIdx.x % 32, leader = __ffs(mates) - 1, base = 0;
    if (lane == leader) base = atomicAdd(&next[bucket], __popc(mates));
    base = __shfl_sync(mates, base, leader);
    places[i] = base + __popc(mates & ((1u << lane) - 1));
}

// Groups of four threads of a warp, of its lanes with one sign, and the block.
extern "C" __global__ void in_groups(const int *in, int *out) {
    groups::thread_block block = groups::this_thread_block();
    groups::thread_block_tile<4> four = groups::tiled_partition<4>(block);
    int value = in[block.thread_rank()];
    int sum = value;
    for (int step = 1; step < 4; step *= 2) sum += four.shfl_xor(sum, step);
    int any = four.any(value > 40);
    int all = four.all(value > -40);
    int mates;
    if (value < 0) {
        groups::coalesced_group negative = groups::coalesced_threads();
        mates = negative.size() * 100 + negative.thread_rank();
    } else {
        mates = -1;
    }
    block.sync();
    out[block.thread_rank()] = sum * 8 + any * 2 + all;
    out[block.size() + block.thread_rank()] = mates;
}

// Reductions of a warp's bits and numbers.
extern "C" __global__ void warp_reductions(const unsigned *in, unsigned *out) {
    unsigned value = in[threadIdx.x];
    unsigned mask = threadIdx.x < 20 ? 0x000FFFFF : 0xFFF00000;
    unsigned results[] = {__reduce_and_sync(mask, value), __reduce_or_sync(mask, value), __reduce_xor_sync(mask, value),
                          __reduce_add_sync(mask, value), __reduce_min_sync(mask, value), __reduce_max_sync(mask, value)};
    for (int i = 0; i < 6; ++i) out[6 * threadIdx.x + i] = results[i];
}

// Each lane brings a row of 32 bits; after this it has a column.
extern "C" __global__ void transpose_bits(unsigned *rows) {
    unsigned lane = threadIdx.x, row = rows[blockIdx.x * 32 + lane], column = 0;
    for (int i = 0; i < 32; ++i) {
        unsigned bits = __ballot_sync(WHOLE, row >> i & 1);
        if (lane == i) column = bits;
    }
    rows[blockIdx.x * 32 + lane] = column;
}
