#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exchange among local ranks over tandem's tcp transport, beside Open MPI's MPI_Allgather of the same bytes over TCP.

Both run by turns, so that whatever else the machine does meets both. Each number is the median over all repeats of all
turns of the slowest rank's time; a ratio above 1 means that tandem is faster.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
MPI_FLAGS = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--oversubscribe", "--allow-run-as-root"]
MIB = 1 << 20


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exchange_bench", help="the built program, build/tools/bench/exchange_bench")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--mib", type=float, nargs="+", default=[1, 4, 16, 64], help="per rank")
    parser.add_argument("--turns", type=int, default=6, help="of each program (6)")
    parser.add_argument("--repeats", type=int, default=5, help="within a turn (5)")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of the tcp transport")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there as well")
    return parser.parse_args()


def finish(process, what):
    out, err = process.communicate(timeout=300)
    if process.returncode != 0:
        sys.exit(f"{what} failed with {process.returncode}:\n{err}")
    return [(int(b), float(us)) for b, us in (line.split() for line in out.splitlines())]


def start(command):
    return subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_mpi(program, ranks, repeats, sizes):
    return finish(start(["mpirun", *MPI_FLAGS, "-np", ranks, program, repeats, sizes]), "MPI_Allgather")


def run_tandem(program, ranks, repeats, sizes, options):
    with tempfile.TemporaryDirectory() as directory:
        processes = [start([program, r, ranks, directory, repeats, sizes, *options]) for r in range(ranks)]
        per_rank = [finish(p, f"rank {r} of the exchange") for r, p in enumerate(processes)]
    return [(same[0][0], max(us for _, us in same)) for same in zip(*per_rank)]


def measure(arguments, allgather, ranks):
    """Microseconds of every repeat: {"tandem": {bytes: [...]}, "mpi": {bytes: [...]}}."""
    sizes = [int(m * MIB) for m in arguments.mib]
    text = ",".join(map(str, sizes))
    times = {"tandem": {b: [] for b in sizes}, "mpi": {b: [] for b in sizes}}
    for _ in range(arguments.turns):
        for size, us in run_tandem(arguments.exchange_bench, ranks, arguments.repeats, text, arguments.option):
            times["tandem"][size].append(us)
        for size, us in run_mpi(allgather, ranks, arguments.repeats, text):
            times["mpi"][size].append(us)
    return times


def main():
    arguments = parse_arguments()
    missing = [tool for tool in ("mpirun", "mpicc") if not shutil.which(tool)]
    if missing:
        print(f"SKIPPED: {' and '.join(missing)} not found. Install Open MPI to compare with it.", file=sys.stderr)
        return
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        allgather = pathlib.Path(directory) / "allgather_bench"
        subprocess.run(["mpicc", "-O2", "-o", allgather, HERE / "allgather_bench.c"], check=True)
        print(f"{'ranks':>5} {'MiB/rank':>9} {'tandem us':>11} {'MPI us':>11} {'MPI/tandem':>11} {'tandem GB/s in':>15}")
        for ranks in arguments.ranks:
            times = measure(arguments, allgather, ranks)
            for size, ours in times["tandem"].items():
                tandem, mpi = statistics.median(ours), statistics.median(times["mpi"][size])
                rate = size * (ranks - 1) / tandem / 1e3
                print(f"{ranks:>5} {size / MIB:>9g} {tandem:>11.0f} {mpi:>11.0f} {mpi / tandem:>11.2f} {rate:>15.2f}",
                      flush=True)
                rows.append({"ranks": ranks, "bytes": size, "tandem_us": tandem, "mpi_us": mpi, "ratio": mpi / tandem,
                             "samples": len(ours)})
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps({"mpi_flags": MPI_FLAGS, "results": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
