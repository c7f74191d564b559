"""Made data: the 2-D heat equation on a square plate whose conductivity varies.

    python examples/heat/generate.py --out heat.h5
    singa-dask shard hdf5 --source heat.h5 --x x --target temperature --channels first --test 0.2 --out shards/heat

    du/dt = div(k grad u),   no flux through the edges

A sample: x (2, N, N) is the temperature at time 0 and the conductivity k; temperature (N, N) is that at time T. The
plate has side 1 and N x N cells. Discs of random places, radii and temperatures lie on it at time 0. k is 1, and less
in discs of another material. Finite volumes with harmonic means of k between cells, explicit Euler steps.
"""

from __future__ import annotations

from pathlib import Path

import click
import h5py
import numpy as np

STEPS_OF_LIMIT = 0.8  # the time step, as a share of the largest one that is stable


def discs(draw: np.random.Generator, samples: int, cells: int, count: int, background: float, low: float, high: float):
    """Fields (samples, cells, cells) of `background` with discs, whose values are uniform in [low, high)."""
    at = (np.arange(cells) + 0.5) / cells
    fields = np.full((samples, cells, cells), background)
    for _ in range(count):
        row, column = draw.random((2, samples, 1, 1))
        radius = draw.uniform(0.05, 0.2, (samples, 1, 1))
        inside = (at[:, None] - row) ** 2 + (at - column) ** 2 < radius**2
        fields = np.where(inside, draw.uniform(low, high, (samples, 1, 1)), fields)
    return fields


def solve(temperature: np.ndarray, conductivity: np.ndarray, time: float) -> np.ndarray:
    """The temperature after `time`. Both fields: (samples, N, N)."""
    u, k, width = temperature.copy(), conductivity, 1 / temperature.shape[-1]
    steps = int(np.ceil(time / (STEPS_OF_LIMIT * width**2 / (4 * k.max()))))
    rate = time / steps / width**2
    between = [2 * a * b / (a + b) * rate for a, b in ((k[:, 1:], k[:, :-1]), (k[:, :, 1:], k[:, :, :-1]))]
    for _ in range(steps):
        down, right = between[0] * np.diff(u, axis=1), between[1] * np.diff(u, axis=2)
        u[:, :-1] += down
        u[:, 1:] -= down
        u[:, :, :-1] += right
        u[:, :, 1:] -= right
    return u


def samples(count: int, cells: int, time: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """x (count, 2, cells, cells) and temperature (count, cells, cells), in float32."""
    draw = np.random.default_rng(seed)
    start = discs(draw, count, cells, 6, 0.0, -1.0, 1.0)
    conductivity = discs(draw, count, cells, 5, 1.0, 0.02, 0.2)
    x = np.stack([start, conductivity], axis=1)
    return x.astype(np.float32), solve(start, conductivity, time).astype(np.float32)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="An HDF5 file.")
@click.option("--samples", "count", default=4000, show_default=True)
@click.option("--cells", default=32, show_default=True, help="N, per side.")
@click.option("--time", default=0.01, show_default=True, help="T.")
@click.option("--seed", default=0, show_default=True)
def main(out: Path, count: int, cells: int, time: float, seed: int) -> None:
    """Write samples of the heat equation to an HDF5 file."""
    x, temperature = samples(count, cells, time, seed)
    with h5py.File(out, "w") as file:
        file.create_dataset("x", data=x, chunks=(min(count, 100), *x.shape[1:]), compression="gzip")
        file["temperature"] = temperature
    still = np.mean((x[:, 0] - temperature) ** 2) / temperature.var()
    print(f"{out}: {count} samples; variance of the temperature {temperature.var():.4f}")
    print(f"predicting that nothing changes has {still:.0%} of the variance as its mean squared error")


if __name__ == "__main__":
    main()
