/* MPI ranks: messages between two, and barrier and collectives of any number. */
#include "sample.h"
#include <mpi.h>
#include <string.h>

static int rank;

static double slower(double ns) {
    MPI_Allreduce(MPI_IN_PLACE, &ns, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return ns;
}

static double send_recv(void *buffer, int bytes) {
    const int n = rounds(bytes), other = 1 - rank;
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = now_ns();
    for (int i = 0; i < n; i++) {
        if (rank == 0) {
            MPI_Send(buffer, bytes, MPI_BYTE, other, 0, MPI_COMM_WORLD);
            MPI_Recv(buffer, bytes, MPI_BYTE, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(buffer, bytes, MPI_BYTE, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(buffer, bytes, MPI_BYTE, other, 0, MPI_COMM_WORLD);
        }
    }
    return slower((now_ns() - start) / n / 2);
}

/* The collectives, each on buffers of which the larger has so many bytes. */
typedef void collective(float *in, float *out, size_t bytes);

static void barrier(float *in, float *out, size_t bytes) {
    (void)in, (void)out, (void)bytes;
    MPI_Barrier(MPI_COMM_WORLD);
}

static void all_reduce(float *in, float *out, size_t bytes) {
    MPI_Allreduce(in, out, bytes / sizeof *in, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* MPI's broadcast has one buffer. */
static void broadcast(float *in, float *out, size_t bytes) {
    (void)in;
    MPI_Bcast(out, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
}

static void all_gather(float *in, float *out, size_t bytes) {
    MPI_Allgather(in, bytes / pes, MPI_BYTE, out, bytes / pes, MPI_BYTE, MPI_COMM_WORLD);
}

static void reduce_scatter(float *in, float *out, size_t bytes) {
    MPI_Reduce_scatter_block(in, out, bytes / pes / sizeof *in, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_to_all(float *in, float *out, size_t bytes) {
    MPI_Alltoall(in, bytes / pes, MPI_BYTE, out, bytes / pes, MPI_BYTE, MPI_COMM_WORLD);
}

static double time_of(collective *work, float *in, float *out, size_t bytes) {
    const int n = rounds(bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = now_ns();
    for (int i = 0; i < n; i++) work(in, out, bytes);
    return slower((now_ns() - start) / n);
}

/* What goes with a token: its experts and weights. */
struct message {
    int32_t experts[TOP_K];
    float weights[TOP_K];
    uint16_t numbers[HIDDEN];
};

static int32_t experts[MOE_TOKENS][TOP_K];
static float weights[MOE_TOKENS][TOP_K];
static uint16_t tokens[MOE_TOKENS][HIDDEN], sums[MOE_TOKENS][HIDDEN];
static struct message *sent, *received;
static uint16_t (*answers)[HIDDEN], (*answered)[HIDDEN];
/* How many rows go to each rank and come from it, and where they begin. */
static int *going, *coming, *going_at, *coming_at, *in_bytes;
/* Which row of those sent a choice is in, or -1: the row of an earlier choice has it, too. */
static int row_of[MOE_TOKENS][TOP_K];

static float wide(uint16_t number) {
    const uint32_t bits = (uint32_t)number << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

static uint16_t narrow(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static int owner(int expert) { return expert * pes / EXPERTS; }

static int add_up(const int *counts, int *starts) {
    int all = 0;
    for (int i = 0; i < pes; i++) starts[i] = all, all += counts[i];
    return all;
}

/* So many rows of so many bytes each, from whoever has them to whom they are for. */
static void exchange(const void *from, int *counts, int *starts, void *to, int *to_counts, int *to_starts, int bytes) {
    int *all[] = {counts, starts, to_counts, to_starts};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < pes; j++) in_bytes[i * pes + j] = all[i][j] * bytes;
    MPI_Alltoallv(from, in_bytes, in_bytes + pes, MPI_BYTE, to, in_bytes + 2 * pes, in_bytes + 3 * pes, MPI_BYTE,
                  MPI_COMM_WORLD);
}

static void moe(float *in, float *out, size_t bytes) {
    (void)in, (void)out, (void)bytes;
    /* Slots are counted, then where each rank's begin is known. */
    memset(going, 0, pes * sizeof *going);
    for (int token = 0; token < MOE_TOKENS; token++)
        for (int k = 0; k < TOP_K; k++) {
            int earlier = 0;
            while (owner(experts[token][earlier]) != owner(experts[token][k])) earlier++;
            row_of[token][k] = earlier < k ? -1 : going[owner(experts[token][k])]++;
        }
    MPI_Alltoall(going, 1, MPI_INT, coming, 1, MPI_INT, MPI_COMM_WORLD);
    add_up(going, going_at);
    const int rows = add_up(coming, coming_at);
    for (int token = 0; token < MOE_TOKENS; token++)
        for (int k = 0; k < TOP_K; k++) {
            if (row_of[token][k] < 0) continue;
            struct message *to = &sent[row_of[token][k] += going_at[owner(experts[token][k])]];
            memcpy(to->experts, experts[token], sizeof to->experts);
            memcpy(to->weights, weights[token], sizeof to->weights);
            memcpy(to->numbers, tokens[token], sizeof to->numbers);
        }
    exchange(sent, going, going_at, received, coming, coming_at, sizeof *sent);
    for (int row = 0; row < rows; row++) {
        const struct message *of = &received[row];
        float mine[TOP_K];
        int n = 0;
        for (int k = 0; k < TOP_K; k++)
            if (owner(of->experts[k]) == rank) mine[n++] = of->weights[k];
        for (int i = 0; i < HIDDEN; i++) {
            float sum = 0;
            for (int k = 0; k < n; k++) sum += mine[k] * wide(of->numbers[i]);
            answers[row][i] = narrow(sum);
        }
    }
    exchange(answers, coming, coming_at, answered, going, going_at, sizeof *answers);
    for (int token = 0; token < MOE_TOKENS; token++) {
        const uint16_t *came[TOP_K];
        int n = 0;
        for (int k = 0; k < TOP_K; k++)
            if (row_of[token][k] >= 0) came[n++] = answered[row_of[token][k]];
        for (int i = 0; i < HIDDEN; i++) {
            float sum = 0;
            for (int k = 0; k < n; k++) sum += wide(came[k][i]);
            sums[token][i] = narrow(sum);
        }
    }
}

static void *room(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory) MPI_Abort(MPI_COMM_WORLD, 2);
    return memory;
}

static void make_tokens(void) {
    const size_t rows = (size_t)pes * MOE_TOKENS;
    sent = room(rows * sizeof *sent), received = room(rows * sizeof *received);
    answers = room(rows * sizeof *answers), answered = room(rows * sizeof *answered);
    going = room(8 * pes * sizeof *going), coming = going + pes, going_at = going + 2 * pes, coming_at = going + 3 * pes;
    in_bytes = going + 4 * pes;
    for (int token = 0; token < MOE_TOKENS; token++) {
        for (int k = 0; k < TOP_K; k++)
            experts[token][k] = expert_of(rank, token, k), weights[token][k] = weight_of(rank, token, k);
        for (int i = 0; i < HIDDEN; i++) tokens[token][i] = narrow(number_of(rank, token, i));
    }
}

/* Each sum is of few numbers that are rounded, so it is near to the product with all weights. */
static void check_sums(void) {
    for (int token = 0; token < MOE_TOKENS; token++)
        for (int i = 0; i < HIDDEN; i++) {
            float all = 0;
            for (int k = 0; k < TOP_K; k++) all += weights[token][k];
            const float is = wide(sums[token][i]), expected = all * wide(tokens[token][i]);
            if (is < 0.98f * expected || is > 1.02f * expected) MPI_Abort(MPI_COMM_WORLD, 3);
        }
}

/* One repeat; the first one warms caches, connections and pages, and is not told. */
static void repeat(float *in, float *out, int told) {
    static const struct {
        const char *name;
        collective *work;
    } moves[] = {{"broadcast", broadcast}, {"all_gather", all_gather}, {"reduce_scatter", reduce_scatter},
                 {"all_to_all", all_to_all}};
    told = told && rank == 0;
    if (pes == 2) {
        const double message = send_recv(out, 8);
        if (told) emit("send_recv", 8, message);
    }
    const double meeting = time_of(barrier, in, out, 0);
    if (told) emit("barrier", 0, meeting);
    /* With two PEs every fourth power of two, with more what is promised. */
    for (size_t bytes = pes == 2 ? 4 : 1 << 10; bytes <= max_bytes; bytes *= pes == 2 ? 4 : 1024) {
        if (pes > 2 && bytes > 1 << 20) break;
        const double ns = time_of(all_reduce, in, out, bytes);
        if (out[bytes / sizeof *out - 1] != pes * in[bytes / sizeof *in - 1]) MPI_Abort(MPI_COMM_WORLD, 3);
        if (told) emit("all_reduce", bytes, ns);
    }
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++) {
        for (size_t bytes = 1 << 10; bytes <= max_bytes && bytes <= 4 << 20; bytes *= 64) {
            const double ns = time_of(moves[i].work, in, out, bytes);
            if (told) emit(moves[i].name, bytes, ns);
        }
    }
    const size_t bytes = sizeof tokens;
    const double ns = time_of(moe, in, out, bytes);
    check_sums();
    if (told) emit("moe", bytes, ns);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    read_arguments(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &pes);
    float *in = malloc(max_bytes), *out = malloc(max_bytes);
    if (pes < 2 || !in || !out) MPI_Abort(MPI_COMM_WORLD, 2);
    for (size_t i = 0; i < max_bytes / sizeof *in; i++) in[i] = i % 7, out[i] = 0;
    make_tokens();
    for (int r = 0; r <= repeats; r++) repeat(in, out, r > 0);
    MPI_Finalize();
    return 0;
}
