/* MPI ranks: messages between two, and barrier and collectives of any number. */
#include "sample.h"
#include <mpi.h>

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
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    read_arguments(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &pes);
    float *in = malloc(max_bytes), *out = malloc(max_bytes);
    if (pes < 2 || !in || !out) MPI_Abort(MPI_COMM_WORLD, 2);
    for (size_t i = 0; i < max_bytes / sizeof *in; i++) in[i] = i % 7, out[i] = 0;
    for (int r = 0; r <= repeats; r++) repeat(in, out, r > 0);
    MPI_Finalize();
    return 0;
}
