"""The job: what to train, and how training is distributed. Pure data: needs neither MPI nor a GPU.

A job file (`load_job`) and Python (`Job`) build the same protobuf message, with SINGA's field names.
"""

from singa_dask.job.checks import check_job
from singa_dask.job.job_pb2 import JobProto
from singa_dask.job.locate import locate_problems
from singa_dask.job.overrides import apply_overrides
from singa_dask.job.phases import active_phases, graph_phase, reads_data, runs_in
from singa_dask.job.spec import Job
from singa_dask.job.text import job_to_text, load_job, read_job
from singa_dask.job.topology import ClusterTopology, Strategy

__all__ = [
    "ClusterTopology",
    "Job",
    "JobProto",
    "Strategy",
    "active_phases",
    "apply_overrides",
    "check_job",
    "graph_phase",
    "job_to_text",
    "load_job",
    "locate_problems",
    "read_job",
    "reads_data",
    "runs_in",
]
