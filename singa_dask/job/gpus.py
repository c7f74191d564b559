"""The field `gpu` of a job: device numbers, nothing for all GPUs that there are, or -1 alone for none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CPUS = -1


def on_cpus(listed: Sequence[int]) -> bool:
    """Whether a job with these numbers computes on CPUs, whatever GPUs there are."""
    return list(listed) == [CPUS]


def keep_empty(message: Any, field: str) -> None:
    """Let a list of GPUs that was set to [] say so: messages cannot tell an empty list from none."""
    if (message.DESCRIPTOR.name, field) == ("JobProto", "gpu") and not message.gpu:
        message.gpu.append(CPUS)
