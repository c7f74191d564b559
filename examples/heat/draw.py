"""Draw what the trained U-Net predicts for new samples, beside the solution.

python examples/heat/draw.py runs/heat-allreduce --out fields.png
"""

from __future__ import annotations

from pathlib import Path

import click
import matplotlib.pyplot as plt
from generate import samples

from singa_dask import load_model


@click.command()
@click.argument("run", type=click.Path(exists=True, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=Path("fields.png"), show_default=True)
@click.option("--seed", default=1, show_default=True, help="The data have seed 0.")
def main(run: Path, out: Path, seed: int) -> None:
    """Draw three samples: temperature at time 0, conductivity, temperature at time T, and its prediction."""
    x, later = samples(3, 32, 0.01, seed)
    predicted = load_model(run).predict(x).reshape(later.shape)
    figure, axes = plt.subplots(3, 5, figsize=(7.5, 4.4), layout="constrained")
    titles = ("time 0", "conductivity", "time T", "predicted", "error x 10")
    for row, *fields in zip(axes, x[:, 0], x[:, 1], later, predicted, 10 * (predicted - later), strict=True):
        largest = abs(fields[2]).max()
        for axis, title, field in zip(row, titles, fields, strict=True):
            limits = (0, 1) if title == "conductivity" else (-1, 1) if title == "time 0" else (-largest, largest)
            axis.imshow(field, cmap="gray" if title == "conductivity" else "coolwarm", vmin=limits[0], vmax=limits[1])
            axis.set_axis_off()
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=9)
    figure.savefig(out, dpi=80)
    error = ((predicted - later) ** 2).mean() / later.var()
    print(f"{out}: the mean squared error of these samples is {error:.1%} of the variance")


if __name__ == "__main__":
    main()
