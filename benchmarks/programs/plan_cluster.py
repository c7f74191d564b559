"""Program: the driver of a Dask cluster, which profiles it and trains jobs on it as a user would.

The first line on standard input is the plan: {"workers": N} for a cluster of its own on this machine, or
{"workers": N, "host": ADDRESS} for a scheduler at this address, to which somebody else brings the workers; it says
{"scheduler": ADDRESS} before they come, and {"ready": N} when they are there. Then every line is answered by one:

    {"do": "profile", "budget_s": S, "known": text}   {"profile": text}: the machine, besides what is known
    {"do": "layers", "trials": [...], "budget_s": S}  {"profile": text}: the layers, updaters and codecs of jobs
    {"do": "train", "job": ..., "folder": PATH}       {"rows": of metrics.jsonl, "wall_s": of the run}

or by {"error": why}. A trial is {"job": ..., "concurrency": processes at once, "threads": of each}, and measured for S
seconds. Jobs are messages in hexadecimal.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster

from singa_dask import train
from singa_dask.cluster import local_cluster
from singa_dask.cluster.dask_settings import SETTINGS
from singa_dask.job.job_pb2 import JobProto
from singa_dask.monitor.progress import Display
from singa_dask.planning.profile import Profile
from singa_dask.profiling.cluster import profile_cluster
from singa_dask.profiling.jobs import lacks_own, measure_jobs, measure_own

COMING_S = 60.0
OWN_S = 0.4  # of a job's updater and codec


@contextmanager
def cluster(plan: Mapping[str, Any]) -> Iterator[Client]:
    """The cluster of this plan, once all its workers are there."""
    if "host" not in plan:
        with local_cluster(plan["workers"]) as client:
            yield client
        return
    with (
        dask.config.set(SETTINGS),
        LocalCluster(n_workers=0, host=plan["host"], dashboard_address=None, silence_logs=logging.CRITICAL) as empty,
        Client(empty) as client,
    ):
        say({"scheduler": empty.scheduler_address})
        client.wait_for_workers(plan["workers"], COMING_S)
        yield client


def answer(client: Client, told: Mapping[str, Any]) -> dict[str, Any]:
    """What a line is answered by."""
    match told["do"]:
        case "profile":
            known = Profile.from_json(told["known"]) if "known" in told else None
            return {"profile": profile_cluster(client, budget_s=told["budget_s"], known=known).to_json()}
        case "layers":
            return {"profile": layers(client, told["trials"], told["budget_s"]).to_json()}
    return run(client, job_of(told), Path(told["folder"]))


def layers(client: Client, trials: Sequence[Mapping[str, Any]], budget_s: float) -> Profile:
    """The layers, updaters and codecs of the jobs of these trials, each of them measured once."""
    found = Profile()
    for trial in sorted(trials, key=lambda trial: trial["concurrency"]):
        job, concurrency, threads = job_of(trial), trial["concurrency"], trial["threads"]
        found.merge(
            measure_jobs(client, [job], concurrencies=[concurrency], threads=threads, known=found, budget_s=budget_s)
        )
        if any(lacks_own(job, found, concurrency)):
            own = {"concurrency": concurrency, "threads": threads, "budget_s": OWN_S, "code": None}
            found.merge(measure_own(client, job, found, **own))
    return found


def job_of(told: Mapping[str, Any]) -> JobProto:
    return JobProto.FromString(bytes.fromhex(told["job"]))


def run(client: Client, job: JobProto, folder: Path) -> dict[str, Any]:
    """Train a job."""
    began = time.perf_counter()
    train(job, client, workspace=folder, max_restarts=0, display=Display(), curves=False)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {"rows": rows, "wall_s": time.perf_counter() - began}


def say(line: Mapping[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def main() -> None:
    plan = json.loads(sys.stdin.readline())
    with cluster(plan) as client, suppress(BrokenPipeError):  # nobody listens any more
        say({"ready": plan["workers"]})
        for line in sys.stdin:
            try:
                found = answer(client, json.loads(line))
            except Exception as error:  # a point that fails is a row too
                found = {"error": f"{type(error).__name__}: {error}"}
            say(found)


if __name__ == "__main__":
    main()
