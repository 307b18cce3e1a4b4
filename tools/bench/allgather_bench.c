/* SPDX-License-Identifier: Apache-2.0 */
/* The counterpart of exchange_bench.cpp: MPI_Allgather of the same bytes, in place. Prints each rank's times. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char** argv) {
  int rank, size, i, p, warmups = 20; /* as in exchange_bench.cpp */
  char* rest;
  if (argc != 3) return 2;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (rest = argv[2]; *rest;) {
    const long bytes = strtol(rest, &rest, 10);
    char* blocks = malloc((size_t)bytes * (size_t)size + 1);
    if (*rest == ',') ++rest;
    memset(blocks, rank, (size_t)bytes * (size_t)size);
    for (i = -warmups; i < atoi(argv[1]); ++i) {
      double took, slowest;
      MPI_Barrier(MPI_COMM_WORLD);
      took = MPI_Wtime();
      MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, blocks, (int)bytes, MPI_CHAR, MPI_COMM_WORLD);
      took = MPI_Wtime() - took;
      MPI_Reduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
      if (i >= 0 && rank == 0) printf("%ld %.1f\n", bytes, slowest * 1e6);
    }
    for (p = 0; p < size; ++p) {
      if (blocks[(size_t)p * (size_t)bytes] != p) MPI_Abort(MPI_COMM_WORLD, 1);
    }
    free(blocks);
    warmups = 2;
  }
  MPI_Finalize();
  return 0;
}
