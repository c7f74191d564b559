"""All areas, one after the other.

make bench                               # or: python benchmarks/all.py --json all.json
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from tools.contest import FOLDER
from tools.report import write

AREAS = (
    "step",
    "nets",
    "limits",
    "inside",
    "scaling",
    "exchange",
    "partition",
    "server",
    "loader",
    "startup",
    "predict",
    "plan",
    "accuracy",
    "published",
)


@click.command()
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write what each area writes, by area.")
def main(out: Path | None) -> None:
    """Run the benchmark of every area; one that fails does not keep the others from running."""
    figures, failed = {}, []
    with TemporaryDirectory() as folder:
        for area in AREAS:
            file = Path(folder) / f"{area}.json"
            click.secho(f"\n{area}", bold=True)
            if subprocess.run([sys.executable, str(FOLDER / f"{area}.py"), "--json", str(file)]).returncode:
                failed.append(area)
            if file.exists():
                figures[area] = json.loads(file.read_text())
    write(out, figures)
    if failed:
        raise click.ClickException(f"not all of these could be measured: {', '.join(failed)}; see above.")


if __name__ == "__main__":
    main()
