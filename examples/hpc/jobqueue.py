"""Dask workers as jobs of a batch system, with dask-jobqueue: `python examples/hpc/jobqueue.py JOB [CLUSTER]`.

Each Dask worker has a nanny, so lost workers are replaced. MPI starts inside the workers, so the MPI library must be
of the MPICH family (MPICH, Intel MPI, MVAPICH, Cray MPI). Run this script on a login node, or in a separate job.
"""

from __future__ import annotations

import argparse
import signal
import sys

from dask_jobqueue import SLURMCluster

from singa_dask import Job, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("job")
    parser.add_argument("cluster", nargs="?")
    parser.add_argument("--interface", help="network interface for Dask and MPI, for example ib0")
    parser.add_argument("--queue")
    parser.add_argument("--cores-per-worker", type=int, default=4)
    parser.add_argument("--walltime", default="04:00:00")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--show", action="store_true", help="print the job script of a worker without submitting it")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the end of a job is a Ctrl-C: the run saves and ends

    job = Job.from_file(args.job, cluster=args.cluster)
    slurm = SLURMCluster(
        n_workers=0,
        queue=args.queue,
        # Dask needs one thread for loading tasks; the cores are for the rank.
        cores=1,
        job_cpu=args.cores_per_worker,
        processes=1,
        memory="16GB",
        walltime=args.walltime,
        interface=args.interface,
        worker_extra_args=["--memory-limit", "0"],
        scheduler_options={"dashboard_address": ":0"},
    )
    with slurm:
        if args.show:
            print(slurm.job_script())
            return
        # Unlike scale(jobs=...), this submits another job in place of one that was lost or cancelled.
        slurm.adapt(minimum_jobs=job.topology.nprocesses, maximum_jobs=job.topology.nprocesses)
        with slurm.get_client() as client:
            # The batch system decides when workers start.
            client.wait_for_workers(job.topology.nprocesses, timeout=3600)
            result = train(job, client, resume=args.resume)
    print(result)
    sys.exit(130 if result.interrupted else 0)


if __name__ == "__main__":
    main()
