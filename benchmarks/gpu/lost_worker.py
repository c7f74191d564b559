"""Two workers share GPU 0 by NCCL, and one of them is killed: the run goes on, and ends well.

restarted: from which step. It is the start if there was no time to make a checkpoint in memory.
Needs shared_gpu/ on PYTHONPATH, and NCCL's settings for ranks of different hosts (first_run.py).
"""

from __future__ import annotations

import json
from pathlib import Path

import click
from faults import EXAMPLES, Case, trained

CASE = Case(
    "worker on a GPU",
    "allreduce",
    more=("gpu=[0,0]", "cluster.nworkers_per_group=2", "cluster.nservers_per_group=2", "test_freq=50"),
)


@click.command()
@click.option("--steps", default=400, show_default=True)
@click.option("--json", "out", type=click.Path(path_type=Path), required=True, help="Write the figures to this file.")
def main(steps: int, out: Path) -> None:
    """Kill one of two workers at half of the steps."""
    row, result = trained(CASE, EXAMPLES / "digits" / "job.conf", steps, hit=True)
    del row["parameters"]
    if result is not None:
        row |= {name: result.summary[name] for name in ("test", "restarted")}
        row["operations"] = result.summary["groups"][0]["operations"]
    text = json.dumps(row, indent=1)
    print(text)
    out.write_text(text + "\n")
    if row["failed"]:
        raise SystemExit(row["failed"])
    if not row["restarts"]:
        raise SystemExit("no worker was replaced")
    if "device reduce_scatter" not in row["operations"]:
        raise SystemExit("the workers did not use NCCL")


if __name__ == "__main__":
    main()
