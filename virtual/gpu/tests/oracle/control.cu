// Control flow: loops that lanes leave at different times, switches, calls through pointers, recursion, local memory.

// Steps until one is reached, at most `limit`.
extern "C" __global__ void collatz(const unsigned long long *in, unsigned *steps, unsigned limit, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long value = in[i];
    unsigned taken = 0;
    while (value != 1) {
        if (taken == limit) {
            taken = ~0u;
            break;
        }
        value = value % 2 ? 3 * value + 1 : value / 2;
        ++taken;
    }
    steps[i] = taken;
}

// A machine with a stack, one program for each thread: numbers below 100 are pushed, others are operations.
extern "C" __global__ void stack_machine(const unsigned char *programs, int *results, unsigned length) {
    unsigned me = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned char *program = programs + me * length;
    int stack[16];
    int depth = 0;
    for (unsigned at = 0; at < length; ++at) {
        unsigned char code = program[at];
        if (code < 100) {
            stack[depth++ & 15] = code;
            continue;
        }
        int top = stack[(depth - 1) & 15], second = stack[(depth - 2) & 15];
        switch (code) {
        case 100: stack[(--depth - 1) & 15] = second + top; break;
        case 101: stack[(--depth - 1) & 15] = second - top; break;
        case 102: stack[(--depth - 1) & 15] = second * top; break;
        case 103: stack[(--depth - 1) & 15] = top == 0 ? 0 : second / top; break;
        case 104: stack[depth++ & 15] = top; break;
        case 105: stack[(depth - 1) & 15] = second, stack[(depth - 2) & 15] = top; break;
        case 106: stack[(depth - 1) & 15] = -top; break;
        case 107: stack[(--depth - 1) & 15] = second << (top & 7); break;
        case 108: results[me] = top; return;
        default: --depth;
        }
        if (depth < 2) stack[depth++ & 15] = 1, stack[depth++ & 15] = 2;
    }
    results[me] = stack[(depth - 1) & 15] + 1000;
}

using Operation = int (*)(int, int);
__device__ __noinline__ int sum_of(int a, int b) { return a + b; }
__device__ __noinline__ int difference_of(int a, int b) { return a - b; }
__device__ __noinline__ int product_of(int a, int b) { return a * b; }
__device__ __noinline__ int larger_of(int a, int b) { return a > b ? a : b; }
__device__ Operation operations[4] = {sum_of, difference_of, product_of, larger_of};

// Lanes call different functions through a table.
extern "C" __global__ void calls_by_table(const int *a, const int *b, int *out) {
    unsigned i = threadIdx.x;
    int value = operations[i % 4](a[i], b[i]);
    if (i % 3 == 0) value = operations[(i / 4) % 4](value, i);
    out[i] = value;
}

__device__ __noinline__ unsigned ackermann(unsigned m, unsigned n) {
    if (m == 0) return n + 1;
    if (n == 0) return ackermann(m - 1, 1);
    return ackermann(m - 1, ackermann(m, n - 1));
}

// Deep recursion, of another depth in each lane.
extern "C" __global__ void recursion(unsigned *out) {
    out[threadIdx.x] = ackermann(threadIdx.x % 3, threadIdx.x / 3);
}

// How many ways there are to put `n` queens with the first of them in a column of this thread's: a stack in local memory.
extern "C" __global__ void queens(unsigned n, unsigned *total) {
    if (threadIdx.x >= n) return;
    unsigned full = (1u << n) - 1, found = 0;
    unsigned columns[12], left[12], right[12], open[12];
    int row = 1;
    columns[1] = 1u << threadIdx.x;
    left[1] = columns[1] << 1;
    right[1] = columns[1] >> 1;
    open[1] = full & ~(columns[1] | left[1] | right[1]);
    while (row > 0) {
        if (open[row] == 0) {
            --row;
            continue;
        }
        unsigned queen = open[row] & -open[row];
        open[row] ^= queen;
        if (row + 1 == n) {
            ++found;
            continue;
        }
        columns[row + 1] = columns[row] | queen;
        left[row + 1] = (left[row] | queen) << 1;
        right[row + 1] = (right[row] | queen) >> 1;
        ++row;
        open[row] = full & ~(columns[row] | left[row] | right[row]);
    }
    atomicAdd(total, found);
}

// Iterations until a point leaves the circle; the point is computed in the order written, without contraction.
extern "C" __global__ void mandelbrot(unsigned short *out, unsigned width, unsigned height, unsigned limit) {
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float real = __fadd_rn(__fmul_rn(x, 3.0f / 64), -2.0f), imaginary = __fadd_rn(__fmul_rn(y, 2.5f / 48), -1.25f);
    float a = 0, b = 0;
    unsigned count = 0;
    for (; count < limit; ++count) {
        float aa = __fmul_rn(a, a), bb = __fmul_rn(b, b);
        if (__fadd_rn(aa, bb) > 4.0f) break;
        b = __fadd_rn(__fmul_rn(__fmul_rn(2.0f, a), b), imaginary);
        a = __fadd_rn(__fsub_rn(aa, bb), real);
    }
    out[y * width + x] = count;
}

// Nested loops that lanes leave by breaks, continues and early returns; odd warps go another way than even ones.
extern "C" __global__ void mazes(const int *in, int *out, int n) {
    int me = blockIdx.x * blockDim.x + threadIdx.x, sum = 0;
    out[me] = -1;
    if ((threadIdx.x / 32) % 2 == 1 && in[me] < 0) return;
    for (int i = 0; i < n; ++i) {
        if (in[(me + i) % n] % 7 == 3) continue;
        for (int j = i; j < n; ++j) {
            int value = in[(i * j + me) % n];
            if (value % 11 == 0) break;
            if (value == 77) {
                out[me] = sum;
                return;
            }
            do {
                sum += value & 3;
                value /= 2;
            } while (value > 8 && sum % 5 != 0);
        }
        if (sum > 2000) goto done;
    }
    sum = -sum;
done:
    out[me] = sum;
}

// Which of the cells 0 to 80 of a nine by nine board are filled in by trying digits in their order; a local stack of moves.
extern "C" __global__ void sudoku(const unsigned char *boards, unsigned char *solved, unsigned *tries) {
    unsigned char cells[81], open[81];
    unsigned short rows[9] = {}, columns[9] = {}, squares[9] = {};
    const unsigned char *board = boards + threadIdx.x * 81;
    int holes = 0;
    for (int i = 0; i < 81; ++i) {
        cells[i] = board[i];
        unsigned short bit = 1 << cells[i];
        if (cells[i] == 0) {
            open[holes++] = i;
        } else {
            rows[i / 9] |= bit, columns[i % 9] |= bit, squares[i / 27 * 3 + i % 9 / 3] |= bit;
        }
    }
    unsigned tried = 0;
    for (int at = 0; at >= 0 && at < holes;) {
        int i = open[at], row = i / 9, column = i % 9, square = row / 3 * 3 + column / 3;
        if (cells[i] != 0) {
            unsigned short bit = 1 << cells[i];
            rows[row] ^= bit, columns[column] ^= bit, squares[square] ^= bit;
        }
        unsigned short used = rows[row] | columns[column] | squares[square];
        do ++cells[i], ++tried;
        while (cells[i] < 10 && used >> cells[i] & 1);
        if (cells[i] == 10) {
            cells[i] = 0;
            --at;
        } else {
            unsigned short bit = 1 << cells[i];
            rows[row] |= bit, columns[column] |= bit, squares[square] |= bit;
            ++at;
        }
    }
    for (int i = 0; i < 81; ++i) solved[threadIdx.x * 81 + i] = cells[i];
    tries[threadIdx.x] = tried;
}
