// What the kernels of the examples do, as CUDA C++ does it with accesses of 16 bytes. Lengths are in groups of these.
#include <cuda_bf16.h>
#include <cuda_pipeline.h>

typedef unsigned long long u64;

extern "C" __global__ void axpy(float a, const float4 *__restrict__ x, float4 *__restrict__ y, u64 len) {
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < len; i += gridDim.x * blockDim.x) {
        float4 left = x[i], right = y[i];
        y[i] = make_float4(a * left.x + right.x, a * left.y + right.y, a * left.z + right.z, a * left.w + right.w);
    }
}

// What all threads of a block give, combined.
template <typename Combine> __device__ float reduce(float mine, Combine combine) {
    __shared__ float warps[32];
    for (unsigned step = 16; step > 0; step /= 2) mine = combine(mine, __shfl_xor_sync(0xffffffff, mine, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
    __syncthreads();
    float all = warps[0];
    for (unsigned warp = 1; warp < blockDim.x / 32; warp++) all = combine(all, warps[warp]);
    return all;
}

extern "C" __global__ void softmax(float4 *rows, u64 count, u64 width) {
    for (u64 index = blockIdx.x; index < count; index += gridDim.x) {
        float4 *row = rows + index * width;
        float most = -INFINITY, sum = 0;
        for (u64 i = threadIdx.x; i < width; i += blockDim.x) {
            float4 x = row[i];
            most = fmaxf(fmaxf(most, fmaxf(x.x, x.y)), fmaxf(x.z, x.w));
        }
        most = reduce(most, [](float a, float b) { return fmaxf(a, b); });
        for (u64 i = threadIdx.x; i < width; i += blockDim.x) {
            float4 x = row[i];
            x = make_float4(expf(x.x - most), expf(x.y - most), expf(x.z - most), expf(x.w - most));
            row[i] = x;
            sum += x.x + x.y + x.z + x.w;
        }
        float scale = 1 / reduce(sum, [](float a, float b) { return a + b; });
        for (u64 i = threadIdx.x; i < width; i += blockDim.x) {
            float4 x = row[i];
            row[i] = make_float4(x.x * scale, x.y * scale, x.z * scale, x.w * scale);
        }
    }
}

extern "C" __global__ void rms_norm(float4 *rows, const float4 *__restrict__ weights, u64 count, u64 width) {
    for (u64 index = blockIdx.x; index < count; index += gridDim.x) {
        float4 *row = rows + index * width;
        float squares = 0;
        for (u64 i = threadIdx.x; i < width; i += blockDim.x) {
            float4 x = row[i];
            squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
        }
        squares = reduce(squares, [](float a, float b) { return a + b; });
        float scale = rsqrtf(squares / (4 * width) + 1e-5f);
        for (u64 i = threadIdx.x; i < width; i += blockDim.x) {
            float4 x = row[i], w = weights[i];
            row[i] = make_float4(x.x * scale * w.x, x.y * scale * w.y, x.z * scale * w.z, x.w * scale * w.w);
        }
    }
}

__device__ float mean(float above, float left, float right, float below) {
    return 0.25f * ((above + below) + (left + right));
}

// Steps of a plate of which a row has one group more on either side for the rim; `moved` becomes how far a cell has moved in the last one.
extern "C" __global__ void jacobi(float4 *cells, float *moved, u64 rows, u64 width, u64 steps) {
    u64 plane = (rows + 2) * (width + 2);
    float far = 0;
    for (u64 step = 0; step < steps; step++) {
        const float4 *old = cells + step % 2 * plane;
        float4 *next = cells + (step + 1) % 2 * plane;
        far = 0;
        for (u64 row = 1; row <= rows; row++) {
            const float4 *above = old + (row - 1) * (width + 2), *here = above + width + 2, *below = here + width + 2;
            for (u64 i = threadIdx.x + 1; i <= width; i += blockDim.x) {
                float4 a = above[i], h = here[i], b = below[i], to;
                float left = here[i - 1].w, right = here[i + 1].x;
                to.x = mean(a.x, left, h.y, b.x);
                to.y = mean(a.y, h.x, h.z, b.y);
                to.z = mean(a.z, h.y, h.w, b.z);
                to.w = mean(a.w, h.z, right, b.w);
                next[row * (width + 2) + i] = to;
                far = fmaxf(fmaxf(far, fmaxf(fabsf(to.x - h.x), fabsf(to.y - h.y))),
                            fmaxf(fabsf(to.z - h.z), fabsf(to.w - h.w)));
            }
        }
        __syncthreads();
    }
    far = reduce(far, [](float a, float b) { return fmaxf(a, b); });
    if (threadIdx.x == 0) *moved = far;
}

// A tile of 128 by 128 for each block, in four quarters of a warp each, from stages of 32 elements of each row; rows in shared memory are
// 80 bytes apart, so that no two of eight share a bank. Sizes are multiples of the tile's; `b` is transposed; `k` in groups.
constexpr unsigned TILE = 128, DEPTH = 32, STRIDE = 40;

struct Stage {
    __nv_bfloat16 a[TILE * STRIDE], b[TILE * STRIDE];
};

__device__ void fetch(Stage &to, const uint4 *a, const uint4 *b, u64 k, u64 at) {
    for (unsigned i = threadIdx.x; i < TILE * DEPTH / 8; i += 128) {
        unsigned row = i / 4, group = i % 4;
        __pipeline_memcpy_async(&to.a[row * STRIDE + 8 * group], &a[row * k + at + group], 16);
        __pipeline_memcpy_async(&to.b[row * STRIDE + 8 * group], &b[row * k + at + group], 16);
    }
    __pipeline_commit();
}

__device__ void load(unsigned (&to)[4], const __nv_bfloat16 *from) {
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(from));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}

__device__ void multiply(float (&sums)[4][8][4], const Stage &stage, unsigned down, unsigned right) {
    unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned k = 0; k < DEPTH; k += 16) {
        unsigned a[4][4], b[4][4];
#pragma unroll
        for (unsigned i = 0; i < 4; i++) load(a[i], &stage.a[(down + 16 * i + lane % 16) * STRIDE + k + lane / 16 * 8]);
#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            load(b[j], &stage.b[(right + 16 * j + lane % 8 + lane / 16 * 8) * STRIDE + k + lane / 8 % 2 * 8]);
#pragma unroll
        for (unsigned i = 0; i < 4; i++)
#pragma unroll
            for (unsigned j = 0; j < 8; j++)
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                             : "+f"(sums[i][j][0]), "+f"(sums[i][j][1]), "+f"(sums[i][j][2]), "+f"(sums[i][j][3])
                             : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]), "r"(b[j / 2][j % 2 * 2]), "r"(b[j / 2][j % 2 * 2 + 1]));
    }
}

extern "C" __global__ void gemm(const uint4 *a, const uint4 *b, __nv_bfloat162 *c, u64 m, u64 n, u64 k) {
    __shared__ Stage stages[2];
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, down = warp % 2 * 64, right = warp / 2 * 64;
    u64 across = n / TILE;
    for (u64 tile = blockIdx.x; tile < m / TILE * across; tile += gridDim.x) {
        u64 row = tile / across * TILE, column = tile % across * TILE;
        const uint4 *left = a + row * k, *top = b + column * k;
        float sums[4][8][4] = {};
        __syncthreads();
        fetch(stages[0], left, top, k, 0);
        for (u64 at = 0; at < k; at += 2 * DEPTH / 8) {
            __pipeline_wait_prior(0);
            __syncthreads();
            if (at + DEPTH / 8 < k) fetch(stages[1], left, top, k, at + DEPTH / 8);
            multiply(sums, stages[0], down, right);
            __pipeline_wait_prior(0);
            __syncthreads();
            if (at + 2 * DEPTH / 8 < k) fetch(stages[0], left, top, k, at + 2 * DEPTH / 8);
            if (at + DEPTH / 8 < k) multiply(sums, stages[1], down, right);
        }
        for (unsigned i = 0; i < 4; i++)
            for (unsigned j = 0; j < 8; j++)
                for (unsigned half = 0; half < 2; half++) {
                    u64 to_row = row + down + 16 * i + 8 * half + lane / 4, to_column = column + right + 8 * j + lane % 4 * 2;
                    c[(to_row * n + to_column) / 2] =
                        __floats2bfloat162_rn(sums[i][j][2 * half], sums[i][j][2 * half + 1]);
                }
    }
}
