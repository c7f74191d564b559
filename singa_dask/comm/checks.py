"""Checks of the arguments of a collective: MPI itself would read or write past the end of an array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from singa_dask.errors import ClusterError


def check_flat(name: str, array: np.ndarray, size: int | None = None) -> None:
    """Raise ValueError unless `array` is a contiguous vector, of `size` elements where that is given."""
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(
            f"{name} must be a contiguous vector. Received: shape {array.shape}, strides {array.strides}."
        )
    if size is not None and array.size != size:
        raise ValueError(f"{name} must have {size} elements. Received: {array.size}.")


def check_counts(counts: Sequence[int], size: int) -> None:
    """Raise ValueError unless there is one count of at least 0 for each of `size` ranks."""
    if len(counts) != size or any(n < 0 for n in counts):
        raise ValueError(f"counts must be {size} numbers of at least 0, one per rank. Received: {list(counts)}.")


def check_root(root: int, size: int) -> None:
    """Raise ValueError unless `root` is one of `size` ranks."""
    if not 0 <= root < size:
        raise ValueError(f"root must be a rank from 0 to {size - 1}. Received: {root}.")


def check_target(recv: np.ndarray | None, root: int, counts: Sequence[int]) -> np.ndarray:
    """The root's array of a gather. Raise ValueError unless it has room for what all ranks send."""
    if recv is None:
        raise ValueError(f"recv must be an array on the root, rank {root}. Received: None.")
    check_flat("recv", recv, sum(counts))
    return recv


def check_parts(
    send: np.ndarray, send_counts: Sequence[int], recv: np.ndarray, recv_counts: Sequence[int], size: int
) -> None:
    """Raise ValueError unless these are valid arguments of an all_to_all between `size` ranks."""
    for name, array, counts in (("send", send, send_counts), ("recv", recv, recv_counts)):
        check_counts(counts, size)
        check_flat(name, array, sum(counts))
    if send.dtype != recv.dtype:
        raise ValueError(f"send and recv must have the same dtype. Received: {send.dtype} and {recv.dtype}.")
    if np.may_share_memory(send, recv):
        raise ValueError("send and recv must not overlap. Received: two views of the same memory.")


def check_met(sender: int, sent: int, receiver: int, expected: int) -> None:
    """Raise ClusterError unless the receiver expects as many elements as the sender sends it."""
    if sent != expected:
        raise ClusterError(
            f"rank {receiver}, all_to_all: recv_counts[{sender}] must be what rank {sender} sends here, "
            f"{sent} elements. Received: {expected}."
        )
