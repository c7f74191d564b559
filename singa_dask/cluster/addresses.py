"""Addresses of Dask workers: their hosts, and their order."""

from __future__ import annotations

import re
from urllib.parse import urlsplit


def host_of(address: str) -> str:
    """The host in a Dask address.

    >>> host_of("tcp://10.0.0.7:4321"), host_of("tls://[::1]:99")
    ('10.0.0.7', '::1')
    """
    return urlsplit(address).hostname or address


def natural(text: str) -> list[tuple[int, str]]:
    """A sort key that puts port 9999 before 10000."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]
