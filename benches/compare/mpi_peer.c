/* Two MPI ranks: messages, barrier and all-reduce. */
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

static double barrier(void) {
    const int n = rounds(0);
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = now_ns();
    for (int i = 0; i < n; i++) MPI_Barrier(MPI_COMM_WORLD);
    return slower((now_ns() - start) / n);
}

static double all_reduce(const float *in, float *out, size_t bytes) {
    const int n = rounds(bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = now_ns();
    for (int i = 0; i < n; i++) MPI_Allreduce(in, out, bytes / sizeof *in, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return slower((now_ns() - start) / n);
}

int main(int argc, char **argv) {
    int size;
    MPI_Init(&argc, &argv);
    read_arguments(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    float *in = malloc(max_bytes), *out = malloc(max_bytes);
    if (size != 2 || !in || !out) MPI_Abort(MPI_COMM_WORLD, 2);
    for (size_t i = 0; i < max_bytes / sizeof *in; i++) in[i] = i % 7, out[i] = 0;

    /* The first repeat warms caches, connections and pages, and is not told. */
    for (int r = 0; r <= repeats; r++) {
        const double message = send_recv(out, 8), meeting = barrier();
        if (rank == 0 && r > 0) emit("send_recv", 8, message), emit("barrier", 0, meeting);
        for (size_t bytes = 4; bytes <= max_bytes; bytes *= 4) {
            const double ns = all_reduce(in, out, bytes);
            if (out[bytes / sizeof *out - 1] != 2 * in[bytes / sizeof *in - 1]) MPI_Abort(MPI_COMM_WORLD, 3);
            if (rank == 0 && r > 0) emit("all_reduce", bytes, ns);
        }
    }
    MPI_Finalize();
    return 0;
}
