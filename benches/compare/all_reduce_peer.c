/* MPI ranks on hosts of their own: an all-reduce alone, of few rounds, as `congruent perf all-reduce` has them. */
#include "sample.h"
#include <mpi.h>

enum { WARM = 20, ROUNDS = 200 };

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    read_arguments(argc, argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &pes);
    float *in = malloc(max_bytes), *out = malloc(max_bytes);
    if (pes < 2 || !in || !out) MPI_Abort(MPI_COMM_WORLD, 2);
    for (size_t i = 0; i < max_bytes / sizeof *in; i++) in[i] = i % 7, out[i] = 0;
    for (int r = 0; r < repeats; r++) {
        for (size_t bytes = 1 << 10; bytes <= max_bytes; bytes *= 4) {
            const int count = bytes / sizeof *in;
            double start = 0;
            for (int i = -WARM; i < ROUNDS; i++) {
                if (i == 0) {
                    MPI_Barrier(MPI_COMM_WORLD);
                    start = now_ns();
                }
                MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            }
            double ns = (now_ns() - start) / ROUNDS;
            MPI_Allreduce(MPI_IN_PLACE, &ns, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            if (out[count - 1] != pes * in[count - 1]) MPI_Abort(MPI_COMM_WORLD, 3);
            if (rank == 0) emit("all_reduce", bytes, ns);
        }
    }
    MPI_Finalize();
    return 0;
}
