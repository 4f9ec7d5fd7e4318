// Data in two and three dimensions: tiles in shared memory, halos, tables in constant memory, dynamic shared memory.

// Products of square matrices whose size is a multiple of 16.
extern "C" __global__ void tiled_matmul(const float *a, const float *b, float *c, unsigned n) {
    __shared__ float left[16][16], right[16][17];
    unsigned row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (unsigned tile = 0; tile < n; tile += 16) {
        left[threadIdx.y][threadIdx.x] = a[row * n + tile + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(tile + threadIdx.y) * n + column];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 16; ++k) sum = fmaf(left[threadIdx.y][k], right[k][threadIdx.x], sum);
        __syncthreads();
    }
    c[row * n + column] = sum;
}

// Tiles of 32 by 32 with 8 rows of threads, edges included.
extern "C" __global__ void transpose(const unsigned short *in, unsigned short *out, unsigned rows, unsigned columns) {
    __shared__ unsigned short tile[32][33];
    unsigned column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    for (unsigned step = 0; step < 32; step += 8)
        if (row + step < rows && column < columns) tile[threadIdx.y + step][threadIdx.x] = in[(row + step) * columns + column];
    __syncthreads();
    column = blockIdx.y * 32 + threadIdx.x, row = blockIdx.x * 32 + threadIdx.y;
    for (unsigned step = 0; step < 32; step += 8)
        if (row + step < columns && column < rows) out[(row + step) * rows + column] = tile[threadIdx.x][threadIdx.y + step];
}

// Seven points in three dimensions, zero outside; each block brings its part with a halo of one.
extern "C" __global__ void stencil(const int *in, int *out, int3 size) {
    __shared__ int part[6][6][10];
    int x0 = blockIdx.x * 8 - 1, y0 = blockIdx.y * 4 - 1, z0 = blockIdx.z * 4 - 1;
    int thread = (threadIdx.z * 4 + threadIdx.y) * 8 + threadIdx.x;
    for (int i = thread; i < 6 * 6 * 10; i += 128) {
        int dx = i % 10, dy = i / 10 % 6, dz = i / 60;
        int x = x0 + dx, y = y0 + dy, z = z0 + dz;
        bool inside = x >= 0 && y >= 0 && z >= 0 && x < size.x && y < size.y && z < size.z;
        part[dz][dy][dx] = inside ? in[(z * size.y + y) * size.x + x] : 0;
    }
    __syncthreads();
    int dx = threadIdx.x + 1, dy = threadIdx.y + 1, dz = threadIdx.z + 1;
    int x = x0 + dx, y = y0 + dy, z = z0 + dz;
    if (x >= size.x || y >= size.y || z >= size.z) return;
    out[(z * size.y + y) * size.x + x] = 6 * part[dz][dy][dx] - part[dz][dy][dx - 1] - part[dz][dy][dx + 1] -
        part[dz][dy - 1][dx] - part[dz][dy + 1][dx] - part[dz - 1][dy][dx] - part[dz + 1][dy][dx];
}

// One step of Floyd and Warshall for each `k`, in one block: distances of all pairs of up to 32 nodes.
extern "C" __global__ void shortest_paths(unsigned *distances, unsigned n) {
    extern __shared__ unsigned between[];
    for (unsigned i = threadIdx.y; i < n; i += blockDim.y)
        for (unsigned j = threadIdx.x; j < n; j += blockDim.x) between[i * n + j] = distances[i * n + j];
    __syncthreads();
    for (unsigned k = 0; k < n; ++k) {
        for (unsigned i = threadIdx.y; i < n; i += blockDim.y)
            for (unsigned j = threadIdx.x; j < n; j += blockDim.x) {
                unsigned detour = between[i * n + k] + between[k * n + j];
                if (i != k && j != k && detour < between[i * n + j]) between[i * n + j] = detour;
            }
        __syncthreads();
    }
    for (unsigned i = threadIdx.y; i < n; i += blockDim.y)
        for (unsigned j = threadIdx.x; j < n; j += blockDim.x) distances[i * n + j] = between[i * n + j];
}

// Sorts 2 * blockDim.x keys of a block with their values.
extern "C" __global__ void bitonic_sort(unsigned long long *keys, unsigned *values) {
    extern __shared__ unsigned long long sorted[];
    unsigned n = 2 * blockDim.x, *with = reinterpret_cast<unsigned *>(sorted + n);
    unsigned start = blockIdx.x * n;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) sorted[i] = keys[start + i], with[i] = values[start + i];
    for (unsigned size = 2; size <= n; size *= 2) {
        for (unsigned apart = size / 2; apart > 0; apart /= 2) {
            __syncthreads();
            unsigned low = 2 * threadIdx.x - (threadIdx.x & (apart - 1)), high = low + apart;
            bool up = (low & size) == 0;
            if ((sorted[low] > sorted[high]) == up) {
                unsigned long long key = sorted[low];
                sorted[low] = sorted[high], sorted[high] = key;
                unsigned value = with[low];
                with[low] = with[high], with[high] = value;
            }
        }
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) keys[start + i] = sorted[i], values[start + i] = with[i];
}

// Counts per block in shared memory, and those of all blocks in global memory.
extern "C" __global__ void histogram(const unsigned char *in, unsigned *counts, unsigned n) {
    __shared__ unsigned mine[256];
    for (unsigned i = threadIdx.x; i < 256; i += blockDim.x) mine[i] = 0;
    __syncthreads();
    unsigned words = n / 4, stride = gridDim.x * blockDim.x, first = blockIdx.x * blockDim.x + threadIdx.x;
    for (unsigned i = first; i < words; i += stride) {
        uchar4 four = reinterpret_cast<const uchar4 *>(in)[i];
        atomicAdd(&mine[four.x], 1);
        atomicAdd(&mine[four.y], 1);
        atomicAdd(&mine[four.z], 1);
        atomicAdd(&mine[four.w], 1);
    }
    if (first < n % 4) atomicAdd(&mine[in[words * 4 + first]], 1);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < 256; i += blockDim.x)
        if (mine[i] != 0) atomicAdd(&counts[i], mine[i]);
}

struct Tap {
    short dx, dy;
    float weight;
};

__constant__ Tap taps[5] = {{0, 0, 0.5f}, {-1, 0, 0.125f}, {1, 0, 0.125f}, {0, -1, 0.125f}, {0, 1, 0.125f}};
__constant__ float gains[3] = {1.0f, -2.0f, 0.25f};
__device__ float bias[2] = {0.75f, -0.75f};
__device__ float *const table_of_biases[2] = {&bias[1], &bias[0]};

// Taps from constant memory, with a wrap at the edges; the planes' biases through a table of addresses.
extern "C" __global__ void weighted_taps(const float *in, float *out) {
    int x = threadIdx.x, y = threadIdx.y, plane = blockIdx.x, width = blockDim.x, height = blockDim.y;
    float sum = *table_of_biases[plane & 1];
    for (const Tap &tap : taps) {
        int from_x = (x + tap.dx + width) % width, from_y = (y + tap.dy + height) % height;
        sum += tap.weight * in[(plane * height + from_y) * width + from_x];
    }
    out[(plane * height + y) * width + x] = gains[plane % 3] * sum;
}

struct Point {
    float x, y, z;
};

struct Box {
    Point low, high;
    char name[5];
    double scale;
};

__device__ __noinline__ Point moved(Point point, Box box) {
    return {fmaxf(box.low.x, fminf(point.x, box.high.x)), fmaxf(box.low.y, fminf(point.y, box.high.y)),
            fmaxf(box.low.z, fminf(point.z, box.high.z))};
}

// Structures by value, as parameters of the kernel and of a function, and as its result.
extern "C" __global__ void clamp_points(const Point *in, Point *out, Box box, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Point point = moved(in[i], box);
    point.z = static_cast<float>(point.z * box.scale) + box.name[i % 5];
    out[i] = point;
}
