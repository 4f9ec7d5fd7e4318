// Matrix instructions, and copies to shared memory that run beside the arithmetic.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>

// One warp, tiles of 16 by 8 by 16 of bfloat16 by hand: rows of a, columns of b, sums in floats.
extern "C" __global__ void mma_bfloats(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c, unsigned depth) {
    unsigned lane = threadIdx.x, group = lane / 4, pair = lane % 4 * 2;
    float sums[4] = {};
    for (unsigned k = 0; k < depth; k += 16) {
        auto two = [](const __nv_bfloat16 *from) { return *reinterpret_cast<const unsigned *>(from); };
        unsigned left[4] = {two(&a[group * depth + k + pair]), two(&a[(group + 8) * depth + k + pair]),
                            two(&a[group * depth + k + pair + 8]), two(&a[(group + 8) * depth + k + pair + 8])};
        unsigned right[2] = {two(&b[group * depth + k + pair]), two(&b[group * depth + k + pair + 8])};
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
    }
    c[group * 8 + pair] = sums[0];
    c[group * 8 + pair + 1] = sums[1];
    c[(group + 8) * 8 + pair] = sums[2];
    c[(group + 8) * 8 + pair + 1] = sums[3];
}

// The same of half, with `ldmatrix` from shared memory, b transposed on the way, and sums in half.
extern "C" __global__ void mma_halves(const __half *a, const __half *b, __half *c) {
    __shared__ __align__(16) __half left[16][16], right[16][8];
    unsigned lane = threadIdx.x;
    for (unsigned i = lane; i < 256; i += 32) left[i / 16][i % 16] = a[i];
    for (unsigned i = lane; i < 128; i += 32) right[i / 8][i % 8] = b[i];
    __syncwarp();
    unsigned x[4], y[2], sums[2] = {};
    unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(&left[lane % 16][lane / 16 * 8]));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from) : "memory");
    from = static_cast<unsigned>(__cvta_generic_to_shared(&right[lane % 16][0]));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(from) : "memory");
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                 : "+r"(sums[0]), "+r"(sums[1]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    unsigned *rows = reinterpret_cast<unsigned *>(c);
    rows[lane] = sums[0];
    rows[32 + lane] = sums[1];
}

// Products of matrices whose sizes are multiples of 16, four warps for tiles of 32 by 16, with sums in floats.
extern "C" __global__ void mma_matmul(const __half *a, const __half *b, float *c, unsigned n) {
    __shared__ __align__(16) __half left[32][24], right[16][24];
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, me = threadIdx.x;
    unsigned row = blockIdx.y * 32, column = blockIdx.x * 16, high = warp / 2 * 16, wide = warp % 2 * 8;
    float sums[4] = {};
    for (unsigned k = 0; k < n; k += 16) {
        for (unsigned i = me; i < 512; i += 128) left[i / 16][i % 16] = a[(row + i / 16) * n + k + i % 16];
        for (unsigned i = me; i < 256; i += 128) right[i / 16][i % 16] = b[(k + i / 16) * n + column + i % 16];
        __syncthreads();
        unsigned x[4], y[2];
        unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(&left[high + lane % 16][lane / 16 * 8]));
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from) : "memory");
        from = static_cast<unsigned>(__cvta_generic_to_shared(&right[lane % 16][wide]));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(from) : "memory");
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
        __syncthreads();
    }
    float *to = c + (row + high + lane / 4) * n + column + wide + lane % 4 * 2;
    to[0] = sums[0], to[1] = sums[1];
    to[8 * n] = sums[2], to[8 * n + 1] = sums[3];
}

// Matrices of 8 by 8 out of registers, moved across and stored.
extern "C" __global__ void move_matrices(const unsigned *in, unsigned *out) {
    __shared__ __align__(16) unsigned rows[64];
    unsigned lane = threadIdx.x, moved;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(moved) : "r"(in[lane]));
    unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(&rows[lane % 16 * 4]));
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(moved), "r"(in[32 + lane]) : "memory");
    __syncwarp();
    out[lane] = rows[lane];
    out[32 + lane] = rows[32 + lane];
}

// Sums of rows; the next part is copied while the last one is summed, three parts in flight.
extern "C" __global__ void pipelined_sums(const int4 *in, int *out, unsigned parts) {
    __shared__ int4 stages[3][64];
    unsigned me = threadIdx.x;
    const int4 *mine = in + blockIdx.x * parts * 64;
    auto fetch = [&](unsigned part) {
        if (part < parts) __pipeline_memcpy_async(&stages[part % 3][me], &mine[part * 64 + me], sizeof(int4));
        __pipeline_commit();
    };
    fetch(0);
    fetch(1);
    int sum = 0;
    for (unsigned part = 0; part < parts; ++part) {
        fetch(part + 2);
        __pipeline_wait_prior(2);
        __syncthreads();
        int4 value = stages[part % 3][63 - me];
        sum += value.x + 2 * value.y + 3 * value.z + 4 * value.w;
        __syncthreads();
    }
    out[blockIdx.x * 64 + me] = sum;
}

// Copies of 4 and 8 bytes, and of fewer than the destination has, which zeros fill up.
extern "C" __global__ void short_copies(const unsigned *in, unsigned *out) {
    __shared__ __align__(16) unsigned part[32][8];
    unsigned lane = threadIdx.x;
    unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(part[lane]));
    const unsigned *from = in + lane * 8;
    unsigned some = lane % 17;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from + 7) : "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, 4;" ::"r"(to + 8), "l"(from + 2) : "memory");
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + 16), "l"(from), "r"(some) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    part[lane][1] = lane;
    __syncwarp();
    for (int i = 0; i < 8; ++i) out[lane * 8 + i] = part[lane ^ 1][i];
}
