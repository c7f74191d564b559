"""To what the operands of matrix products are rounded: the names of JobProto.Compute."""

from __future__ import annotations

from singa_dask.errors import ConfigError, Problem, nearest

COMPUTE = ("kFloat32", "kTF32", "kBFloat16")


def check_compute(compute: str, obstacle: str) -> None:
    """Raise ConfigError for an unknown name, and where there is an obstacle to this one."""
    if compute not in COMPUTE:
        raise ConfigError(Problem("compute", "there is no such type", repr(compute), nearest(compute, COMPUTE)))
    if obstacle:
        raise ConfigError(Problem("compute", obstacle, compute, "Choose kFloat32, or leave compute out."))
