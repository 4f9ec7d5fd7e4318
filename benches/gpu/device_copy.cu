/* What the GPU can do: copies within its memory, by the copy engine's call and by a kernel of plain 16-byte accesses.
 *
 *   device_copy [LARGEST_BYTES]
 *
 * Bandwidth counts the bytes read and the bytes written (`busbw`); `algbw` counts each byte once. */
#include "peer.h"

__global__ void copy(uint4 *__restrict__ dst, const uint4 *__restrict__ src, size_t count) {
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) dst[i] = src[i];
}

/* Microseconds of one copy, the best of five loops. */
template <typename Copy>
static double time_of(Copy one, size_t bytes) {
    const int rounds = bytes >= (64u << 20) ? 20 : 200;
    cudaEvent_t start, end;
    CHECK_CUDA(cudaEventCreate(&start));
    CHECK_CUDA(cudaEventCreate(&end));
    double best = 1e30;
    for (int repeat = 0; repeat <= 5; repeat++) {
        CHECK_CUDA(cudaEventRecord(start));
        for (int i = 0; i < rounds; i++) one();
        CHECK_CUDA(cudaEventRecord(end));
        CHECK_CUDA(cudaEventSynchronize(end));
        float ms;
        CHECK_CUDA(cudaEventElapsedTime(&ms, start, end));
        /* The first loop warms up. */
        if (repeat > 0 && ms * 1e3 / rounds < best) best = ms * 1e3 / rounds;
    }
    CHECK_CUDA(cudaEventDestroy(start));
    CHECK_CUDA(cudaEventDestroy(end));
    return best;
}

int main(int argc, char **argv) {
    const size_t largest = argument(argc, argv, 1, 1l << 30);
    cudaDeviceProp device;
    CHECK_CUDA(cudaGetDeviceProperties(&device, 0));
    char *dst, *src;
    CHECK_CUDA(cudaMalloc(&dst, largest));
    CHECK_CUDA(cudaMalloc(&src, largest));
    CHECK_CUDA(cudaMemset(src, 7, largest));
    const int threads = 512, blocks = device.multiProcessorCount * 4;
    for (size_t bytes = 1 << 20; bytes <= largest; bytes *= 4) {
        auto by_call = [&] { CHECK_CUDA(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice)); };
        auto by_kernel = [&] { copy<<<blocks, threads>>>((uint4 *)dst, (const uint4 *)src, bytes / 16); };
        const double call = time_of(by_call, bytes);
        emit("device", "copy", "cudaMemcpy", 1, 0, 0, bytes, call, 2);
        const double kernel = time_of(by_kernel, bytes);
        CHECK_CUDA(cudaGetLastError());
        emit("device", "copy", "kernel", 1, blocks, threads, bytes, kernel, 2);
    }
    unsigned char last;
    CHECK_CUDA(cudaMemcpy(&last, dst + (1 << 20) - 1, 1, cudaMemcpyDeviceToHost));
    return last == 7 ? 0 : 3;
}
