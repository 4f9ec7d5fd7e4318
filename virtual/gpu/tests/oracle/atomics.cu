// Atomics of every operation and width, loops of compare and swap, locks, and blocks that wait for each other.

// One word for each operation; every thread applies its value to all.
extern "C" __global__ void every_atomic(const int *in, int *words, unsigned long long *wide, unsigned *old_sum) {
    int value = in[blockIdx.x * blockDim.x + threadIdx.x];
    unsigned bits = value;
    unsigned long long long_value = static_cast<unsigned long long>(bits) * 0x100000001ull;
    atomicAdd(&words[0], value);
    atomicSub(&words[1], value);
    atomicMin(&words[2], value);
    atomicMax(&words[3], value);
    unsigned *unsigned_words = reinterpret_cast<unsigned *>(words);
    atomicMin(&unsigned_words[4], bits);
    atomicMax(&unsigned_words[5], bits);
    atomicAnd(&unsigned_words[6], bits | 0xFFFF0000);
    atomicOr(&unsigned_words[7], bits & 0x00FF00FF);
    atomicXor(&unsigned_words[8], bits);
    atomicAdd(old_sum, atomicInc(&unsigned_words[9], 36));
    atomicAdd(old_sum, atomicDec(&unsigned_words[10], 50));
    atomicAdd(&wide[0], long_value);
    atomicMin(&wide[1], long_value);
    atomicMax(&wide[2], long_value);
    atomicMin(reinterpret_cast<long long *>(&wide[3]), static_cast<long long>(value));
    atomicMax(reinterpret_cast<long long *>(&wide[4]), static_cast<long long>(value));
    atomicAnd(&wide[5], long_value | 0xFFFFFFFF00000000ull);
    atomicOr(&wide[6], long_value & 0x0F0F0F0F0F0F0F0Full);
    atomicXor(&wide[7], long_value);
}

// What each thread puts in comes out at another one, or stays: nothing is lost, nothing doubled.
extern "C" __global__ void exchange(unsigned *slots, unsigned long long *wide_slots, unsigned *seen) {
    unsigned me = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    unsigned hand = me + 1;
    unsigned long long wide_hand = (me + 1ull) << 32 | (me + 1);
    for (int round = 0; round < 4; ++round) {
        hand = atomicExch(&slots[(me * 7 + round) % 16], hand);
        wide_hand = atomicExch(&wide_slots[(me * 5 + round) % 16], wide_hand);
    }
    if (hand != 0) atomicAdd(&seen[hand - 1], 1);
    if (wide_hand != 0) atomicAdd(&seen[n + (wide_hand >> 32) - 1], wide_hand >> 32 == (wide_hand & 0xFFFFFFFF));
}

// Sums of floats in an order of its own; the values are such that every order gives the same.
extern "C" __global__ void float_atomics(const float *in, float *single, double *twice, float *largest) {
    float value = in[blockIdx.x * blockDim.x + threadIdx.x];
    atomicAdd(single, value);
    atomicAdd(twice, value / 1024.0);
    int *bits = reinterpret_cast<int *>(largest);
    int old = *reinterpret_cast<volatile int *>(bits);
    while (__int_as_float(old) < value) {
        int seen = atomicCAS(bits, old, __float_as_int(value));
        if (seen == old) break;
        old = seen;
    }
}

// Multiplies modulo a prime by compare and swap, of 16, 32 and 64 bits.
extern "C" __global__ void products_by_cas(const unsigned *in, unsigned short *shorts, unsigned *word, unsigned long long *wide) {
    unsigned value = in[blockIdx.x * blockDim.x + threadIdx.x];
    unsigned short *half = &shorts[threadIdx.x % 2];
    for (unsigned short old = *static_cast<volatile unsigned short *>(half);;) {
        unsigned short seen = atomicCAS(half, old, static_cast<unsigned short>(old * (value % 255 + 1) % 257));
        if (seen == old) break;
        old = seen;
    }
    for (unsigned old = *static_cast<volatile unsigned *>(word);;) {
        unsigned seen = atomicCAS(word, old, static_cast<unsigned>(static_cast<unsigned long long>(old) * (value % 65535 + 1) % 65537));
        if (seen == old) break;
        old = seen;
    }
    for (unsigned long long old = *static_cast<volatile unsigned long long *>(wide);;) {
        unsigned long long seen = atomicCAS(wide, old, old * (value % 1000003 + 1) % 2147483647ull);
        if (seen == old) break;
        old = seen;
    }
}

// One thread of each block enters at a time and changes several words that no atomic guards.
extern "C" __global__ void spinlock(unsigned *lock, unsigned *account, unsigned rounds) {
    if (threadIdx.x != 0) return;
    for (unsigned round = 0; round < rounds; ++round) {
        while (atomicCAS(lock, 0, 1) != 0) __nanosleep(20);
        __threadfence();
        volatile unsigned *words = account;
        unsigned count = words[0];
        words[1 + count] = blockIdx.x;
        words[0] = count + 1;
        __threadfence();
        atomicExch(lock, 0);
    }
}

// Block 0 makes parts, block 1 consumes them: a ring of two slots with a flag each.
extern "C" __global__ void ring_of_two(const unsigned *in, unsigned *slots, unsigned *flags, unsigned *out, unsigned parts) {
    unsigned me = threadIdx.x, threads = blockDim.x;
    for (unsigned part = 0; part < parts; ++part) {
        unsigned slot = part % 2, *flag = &flags[slot];
        unsigned ready = 2 * (part / 2) + blockIdx.x;
        if (me == 0) {
            unsigned seen;
            do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
            while (seen != ready);
        }
        __syncthreads();
        if (blockIdx.x == 0)
            slots[slot * threads + me] = in[part * threads + me] * 3;
        else
            out[part * threads + me] = slots[slot * threads + me] + part;
        __syncthreads();
        if (me == 0) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(ready + 1) : "memory");
    }
}

// All blocks meet at a barrier of their own between steps; each step reads what the neighbours wrote.
extern "C" __global__ void grid_barrier(unsigned *values, unsigned *arrived, unsigned steps) {
    unsigned me = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    for (unsigned step = 0; step < steps; ++step) {
        unsigned *from = values + (step % 2) * n, *to = values + (1 - step % 2) * n;
        unsigned left = *reinterpret_cast<volatile unsigned *>(&from[(me + n - blockDim.x) % n]);
        unsigned right = *reinterpret_cast<volatile unsigned *>(&from[(me + blockDim.x) % n]);
        *reinterpret_cast<volatile unsigned *>(&to[me]) = left + 2 * right + step;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            atomicAdd(arrived, 1);
            while (*reinterpret_cast<volatile unsigned *>(arrived) < (step + 1) * gridDim.x) __nanosleep(50);
            __threadfence();
        }
        __syncthreads();
    }
}

// Atomics in shared memory, of 32 and 64 bits, with results: each thread draws a ticket of its own.
extern "C" __global__ void tickets(unsigned *out, unsigned long long *totals) {
    __shared__ unsigned next;
    __shared__ unsigned long long total;
    __shared__ int drawn[256];
    drawn[threadIdx.x] = 0;
    if (threadIdx.x == 0) next = 0, total = 0;
    __syncthreads();
    unsigned ticket = atomicAdd(&next, 1);
    atomicAdd(&total, static_cast<unsigned long long>(ticket) << 20);
    atomicOr(&drawn[ticket], 1);
    atomicMax(&drawn[ticket], static_cast<int>(ticket));
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = drawn[threadIdx.x];
    if (threadIdx.x == 0) totals[blockIdx.x] = total + next;
}
