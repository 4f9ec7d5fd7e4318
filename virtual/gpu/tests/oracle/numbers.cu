// Arithmetic: integers of every width, bits, floats of every width and their conversions, approximations.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

__device__ unsigned place() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Quotients, remainders and high products of pairs; divisors are not zero.
extern "C" __global__ void divisions(const long long *a, const long long *b, long long *out) {
    unsigned i = place();
    long long x = a[i], y = b[i];
    unsigned long long ux = x, uy = y;
    int x32 = x, y32 = static_cast<int>(y) | 1;
    unsigned ux32 = x32, uy32 = y32;
    short x16 = x, y16 = static_cast<short>(y) | 1;
    signed char x8 = x, y8 = static_cast<signed char>(y) | 1;
    long long results[] = {
        x / y, x % y, static_cast<long long>(ux / uy), static_cast<long long>(ux % uy),
        x32 / y32, x32 % y32, ux32 / uy32, ux32 % uy32, x16 / y16, x16 % y16, x8 / y8, x8 % y8,
        __mul64hi(x, y), static_cast<long long>(__umul64hi(ux, uy)), __mulhi(x32, y32), __umulhi(ux32, uy32),
        x * y, static_cast<long long>(x32) * y32, x / 7, x32 % 10, static_cast<long long>(ux / 1000003),
        __sad(x32, y32, ux32), __usad(ux32, uy32, ux32), __mul24(x32, y32), __umul24(ux32, uy32),
        __hadd(x32, y32), __rhadd(x32, y32), __uhadd(ux32, uy32), llabs(x), abs(x32),
    };
    for (int k = 0; k < 30; ++k) out[30 * i + k] = results[k];
}

// Bits of pairs of words.
extern "C" __global__ void bit_tricks(const unsigned long long *a, const unsigned *b, unsigned long long *out) {
    unsigned i = place();
    unsigned long long x = a[i];
    unsigned y = b[i], low = x, high = x >> 32;
    unsigned extracted, inserted, found;
    asm("bfe.u32 %0, %1, %2, %3;" : "=r"(extracted) : "r"(low), "r"(y % 40), "r"(y / 64 % 40));
    asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(inserted) : "r"(low), "r"(high), "r"(y % 40), "r"(y / 64 % 40));
    asm("bfind.s32 %0, %1;" : "=r"(found) : "r"(low));
    int signed_part;
    asm("bfe.s32 %0, %1, %2, %3;" : "=r"(signed_part) : "r"(high), "r"(y % 32), "r"(y / 32 % 32));
    unsigned long long results[] = {
        __brev(low), __brevll(x), static_cast<unsigned>(__clz(low >> (y % 32))), static_cast<unsigned>(__clzll(x >> (y % 64))),
        static_cast<unsigned>(__ffs(low << (y % 32))), static_cast<unsigned>(__ffsll(x << (y % 64))),
        static_cast<unsigned>(__popc(low)), static_cast<unsigned>(__popcll(x)),
        __funnelshift_l(low, high, y), __funnelshift_r(low, high, y), __funnelshift_lc(low, high, y % 64),
        __funnelshift_rc(low, high, y % 64), __byte_perm(low, high, y), static_cast<unsigned>(__dp4a(static_cast<int>(low), static_cast<int>(high), static_cast<int>(y))),
        __dp4a(low, high, y), static_cast<unsigned>(__dp2a_lo(static_cast<int>(low), static_cast<int>(high), static_cast<int>(y))),
        __dp2a_hi(low, high, y), extracted, inserted, found, static_cast<unsigned>(signed_part),
        (low & high) | (~low & y), low ^ high ^ y, x << (y % 64), x >> (y % 64),
        static_cast<unsigned long long>(static_cast<long long>(x) >> (y % 64)), static_cast<unsigned>(static_cast<int>(low) >> (y % 32)),
    };
    for (int k = 0; k < 27; ++k) out[27 * i + k] = results[k];
}

// Doubles and floats: all that is exactly rounded, in every rounding that has an intrinsic.
extern "C" __global__ void exact_floats(const double *a, const double *b, double *out, float *out32) {
    unsigned i = place();
    double x = a[i], y = b[i];
    double results[] = {
        __dadd_rn(x, y), __dadd_rz(x, y), __dadd_ru(x, y), __dadd_rd(x, y), __dmul_rn(x, y), __dmul_rz(x, y),
        __dmul_ru(x, y), __dmul_rd(x, y), __fma_rn(x, y, x), __fma_rz(x, y, x), __fma_ru(x, y, x), __fma_rd(x, y, x),
        x / y, __ddiv_rz(x, y), __ddiv_ru(x, y), __ddiv_rd(x, y), sqrt(fabs(x)), __dsqrt_ru(fabs(x)), __drcp_rd(y),
        floor(x), ceil(x), trunc(x), rint(x), fmin(x, y), fmax(x, y), copysign(x, y), static_cast<double>(static_cast<long long>(x)),
        static_cast<double>(static_cast<unsigned>(fabs(y))), static_cast<double>(static_cast<float>(x)), x > y ? 1.0 : -1.0,
    };
    for (int k = 0; k < 30; ++k) out[30 * i + k] = results[k];
    float p = x, q = y;
    float singles[] = {
        __fadd_rn(p, q), __fadd_rz(p, q), __fadd_ru(p, q), __fadd_rd(p, q), __fmul_rn(p, q), __fmul_rz(p, q), __fmul_ru(p, q),
        __fmul_rd(p, q), __fmaf_rn(p, q, p), __fmaf_rz(p, q, p), __fmaf_ru(p, q, p), __fmaf_rd(p, q, p), __fdiv_rn(p, q),
        __fdiv_rz(p, q), __fdiv_ru(p, q), __fdiv_rd(p, q), __fsqrt_rn(fabsf(p)), __fsqrt_rd(fabsf(p)), __frcp_ru(q),
        floorf(p), ceilf(p), truncf(p), rintf(p), fminf(p, q), fmaxf(p, q), copysignf(p, q), __saturatef(p),
        __int2float_rz(__float2int_ru(p)), __uint2float_rd(__float2uint_rn(fabsf(q))), __ll2float_ru(__double2ll_rd(x)),
    };
    for (int k = 0; k < 30; ++k) out32[30 * i + k] = singles[k];
}

// Functions of one float that are approximated.
extern "C" __global__ void approximations(const float *in, float *out) {
    unsigned i = place();
    float x = in[i];
    float results[] = {
        expf(x), __expf(x), exp2f(x), logf(x), __logf(x), log2f(x), rsqrtf(x), sinf(x), cosf(x), __sinf(x), __cosf(x),
        tanhf(x), powf(x, 1.75f), __fdividef(1.0f, x), erff(x), cbrtf(x), atan2f(x, 2.0f), sqrtf(x), tanf(x), log1pf(x),
    };
    for (int k = 0; k < 20; ++k) out[20 * i + k] = results[k];
}

extern "C" __global__ void approximations_of_doubles(const double *in, double *out) {
    unsigned i = place();
    double x = in[i];
    double results[] = {exp(x), log(x), sin(x), cos(x), rsqrt(x), pow(x, 0.75), tanh(x), atan(x)};
    for (int k = 0; k < 8; ++k) out[8 * i + k] = results[k];
}

// Every number of 16 bits as half and bfloat16, to float and back with each rounding, and their arithmetic.
extern "C" __global__ void halves(const float *in, unsigned short *out) {
    unsigned i = place();
    float x = in[2 * i], y = in[2 * i + 1];
    __half a = __float2half_rn(x), b = __float2half_rn(y);
    __half2 pair = __floats2half2_rn(x, y), other = __floats2half2_rn(y, x);
    __half2 sum = __hadd2(pair, other), mixed = __hfma2(pair, other, pair);
    unsigned short results[] = {
        __half_as_ushort(a), __half_as_ushort(__float2half_rz(x)), __half_as_ushort(__float2half_ru(x)),
        __half_as_ushort(__float2half_rd(x)), __half_as_ushort(__hadd(a, b)), __half_as_ushort(__hmul(a, b)),
        __half_as_ushort(__hfma(a, b, a)), __half_as_ushort(__hsub(a, b)), __half_as_ushort(__low2half(sum)),
        __half_as_ushort(__high2half(mixed)), __half_as_ushort(__hmax(a, b)), __half_as_ushort(__hneg(a)),
        static_cast<unsigned short>(__hlt(a, b)), static_cast<unsigned short>(__half2int_rz(b)),
        __half_as_ushort(__int2half_rn(static_cast<int>(i) * 37 - 3000)), __half_as_ushort(__double2half(static_cast<double>(x))),
    };
    for (int k = 0; k < 16; ++k) out[16 * i + k] = results[k];
}

extern "C" __global__ void bfloats(const float *in, unsigned short *out, float *back) {
    unsigned i = place();
    float x = in[2 * i], y = in[2 * i + 1];
    __nv_bfloat16 a = __float2bfloat16_rn(x), b = __float2bfloat16_rn(y);
    __nv_bfloat162 pair = __floats2bfloat162_rn(x, y), other = __floats2bfloat162_rn(y, x);
    __nv_bfloat162 sum = __hadd2(pair, other), mixed = __hfma2(pair, other, pair);
    unsigned short results[] = {
        __bfloat16_as_ushort(a), __bfloat16_as_ushort(__float2bfloat16_rz(x)), __bfloat16_as_ushort(__float2bfloat16_ru(x)),
        __bfloat16_as_ushort(__float2bfloat16_rd(x)), __bfloat16_as_ushort(__hadd(a, b)), __bfloat16_as_ushort(__hmul(a, b)),
        __bfloat16_as_ushort(__hfma(a, b, a)), __bfloat16_as_ushort(__low2bfloat16(sum)),
        __bfloat16_as_ushort(__high2bfloat16(mixed)), __bfloat16_as_ushort(__hmin(a, b)),
        static_cast<unsigned short>(__hge(a, b)), __bfloat16_as_ushort(__int2bfloat16_rn(static_cast<int>(i) * 37 - 3000)),
    };
    for (int k = 0; k < 12; ++k) out[12 * i + k] = results[k];
    back[2 * i] = __bfloat162float(a);
    back[2 * i + 1] = __half2float(__ushort_as_half(static_cast<unsigned short>(i * 16 + 5)));
}

// To both formats of eight bits and back to half, saturating, in pairs.
extern "C" __global__ void eighths(const float *in, unsigned short *packed, unsigned short *halves) {
    unsigned i = place();
    float2 pair = make_float2(in[2 * i], in[2 * i + 1]);
    unsigned short e4m3 = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
    unsigned short e5m2 = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E5M2);
    packed[2 * i] = e4m3;
    packed[2 * i + 1] = e5m2;
    __half2_raw from_e4m3 = __nv_cvt_fp8x2_to_halfraw2(static_cast<unsigned short>(i * 257), __NV_E4M3);
    __half2_raw from_e5m2 = __nv_cvt_fp8x2_to_halfraw2(e5m2, __NV_E5M2);
    halves[4 * i] = from_e4m3.x;
    halves[4 * i + 1] = from_e4m3.y;
    halves[4 * i + 2] = from_e5m2.x;
    halves[4 * i + 3] = from_e5m2.y;
}

// Ten rounds of Philox 4x32, and a linear congruence that skips ahead to each thread.
extern "C" __global__ void random_numbers(uint4 *philox, unsigned long long *congruent, uint2 key) {
    unsigned i = place();
    uint4 counter = make_uint4(i, 0, 7, 0);
    for (int round = 0; round < 10; ++round) {
        unsigned high0 = __umulhi(0xD2511F53, counter.x), low0 = 0xD2511F53 * counter.x;
        unsigned high1 = __umulhi(0xCD9E8D57, counter.z), low1 = 0xCD9E8D57 * counter.z;
        counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key.x += 0x9E3779B9, key.y += 0xBB67AE85;
    }
    philox[i] = counter;
    unsigned long long multiplier = 6364136223846793005ull, increment = 1442695040888963407ull, state = 42;
    for (unsigned skip = i; skip > 0; skip /= 2) {
        if (skip & 1) state = state * multiplier + increment;
        increment *= multiplier + 1;
        multiplier *= multiplier;
    }
    congruent[i] = state;
}

__device__ unsigned crc_table[256];

// A table in global memory that one launch fills in and the next one uses.
extern "C" __global__ void fill_crc_table() {
    unsigned value = threadIdx.x;
    for (int bit = 0; bit < 8; ++bit) value = value & 1 ? value >> 1 ^ 0xEDB88320 : value >> 1;
    crc_table[threadIdx.x] = value;
}

extern "C" __global__ void crc32(const unsigned char *in, unsigned *out, unsigned length) {
    unsigned i = place(), crc = ~0u;
    const unsigned char *mine = in + i * length;
    for (unsigned k = 0; k < length; ++k) crc = crc >> 8 ^ crc_table[(crc ^ mine[k]) & 255];
    out[i] = ~crc;
}

// Radix 2, in place in shared memory; twiddles from a table of the host, products and sums in the order written.
extern "C" __global__ void fft(float2 *values, const float2 *twiddles, unsigned bits) {
    extern __shared__ float2 work[];
    unsigned n = 1u << bits, me = threadIdx.x;
    for (unsigned i = me; i < n; i += blockDim.x) work[__brev(i) >> (32 - bits)] = values[blockIdx.x * n + i];
    for (unsigned half = 1; half < n; half *= 2) {
        __syncthreads();
        unsigned within = me & (half - 1), low = 2 * me - within, high = low + half;
        float2 factor = twiddles[within * (n / 2 / half)], a = work[low], b = work[high];
        float real = __fsub_rn(__fmul_rn(b.x, factor.x), __fmul_rn(b.y, factor.y));
        float imaginary = __fadd_rn(__fmul_rn(b.x, factor.y), __fmul_rn(b.y, factor.x));
        work[low] = make_float2(a.x + real, a.y + imaginary);
        work[high] = make_float2(a.x - real, a.y - imaginary);
    }
    __syncthreads();
    for (unsigned i = me; i < n; i += blockDim.x) values[blockIdx.x * n + i] = work[i];
}
