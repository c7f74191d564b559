"""Numbers out of the fields of messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


def as_written(value: float) -> float:
    """The number that the job's author wrote: messages keep float32, in which 0.1 reads back as 0.10000000149.

    >>> as_written(np.float32(0.1).item())
    0.1
    """
    return float(str(np.float32(value)))


def numbers(message: Any) -> SimpleNamespace:
    """The fields of a message that are single numbers, by name, as written."""
    fields = [field for field in message.DESCRIPTOR.fields if not isinstance(field.default_value, list)]
    values = {field.name: getattr(message, field.name) for field in fields}
    return SimpleNamespace(**{k: as_written(v) if isinstance(v, float) else v for k, v in values.items()})
