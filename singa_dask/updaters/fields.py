"""Fields of messages: keyword arguments into them, numbers out of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from singa_dask.errors import ConfigError, Problem


def as_written(value: float) -> float:
    """The number that the job's author wrote: messages keep float32, in which 0.1 reads back as 0.10000000149.

    >>> as_written(np.float32(0.1).item())
    0.1
    """
    return float(str(np.float32(value)))


def assign(message: Any, field: str, value: Any, key: str) -> None:
    """Set a field of a message; a list, for a repeated one. Raises ConfigError, naming `key`, for another type."""
    try:
        if message.DESCRIPTOR.fields_by_name[field].is_repeated:
            getattr(message, field).extend(value)
        else:
            setattr(message, field, value)
    except (TypeError, ValueError) as error:
        raise ConfigError(Problem(key, str(error), received=f"{field}={value!r}")) from error
