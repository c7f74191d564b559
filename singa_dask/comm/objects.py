"""Python objects between the ranks of one group, which trust each other: pickled."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from singa_dask.comm.communicator import Communicator, part_of


def all_gather_objects(comm: Communicator, own: Any) -> list[Any]:
    """Every rank's object, by rank. Collective."""
    image = _image(own)
    sizes = comm.all_gather_number(image.size).tolist()
    images = np.empty(sum(sizes), np.uint8)
    images[part_of(comm.rank, sizes)] = image
    comm.all_gather(images, sizes)
    return [pickle.loads(images[part_of(rank, sizes)].tobytes()) for rank in range(comm.size)]


def broadcast_object(comm: Communicator, own: Any) -> Any:
    """The first rank's object, on every rank. Collective."""
    image = _image(own if comm.rank == 0 else None)
    size = np.array([image.size])
    comm.broadcast(size)
    image = image if comm.rank == 0 else np.empty(int(size[0]), np.uint8)
    comm.broadcast(image)
    return pickle.loads(image.tobytes())


def _image(own: Any) -> np.ndarray:
    return np.frombuffer(pickle.dumps(own, pickle.HIGHEST_PROTOCOL), np.uint8).copy()
