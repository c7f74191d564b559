"""Numbers out of the fields of messages."""

from __future__ import annotations

import numpy as np


def as_written(value: float) -> float:
    """The number that the job's author wrote: messages keep float32, in which 0.1 reads back as 0.10000000149.

    >>> as_written(np.float32(0.1).item())
    0.1
    """
    return float(str(np.float32(value)))
