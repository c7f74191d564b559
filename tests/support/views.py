"""Dask workers on another machine, which lacks what this one has."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import distributed  # noqa: F401  its configuration is there where there is a client


@contextmanager
def without(path: Path) -> Iterator[None]:
    """While the context is open there is nothing at a path, if there was anything."""
    away = path.with_name(f"{path.name}.away")
    there = path.exists()
    if there:
        path.rename(away)
    try:
        yield
    finally:
        if there:
            away.rename(path)


BEFORE = os.getpid, asyncio.to_thread  # what workers are asked before they look


class OtherMachine:
    """A client, whose workers do not find a path. address: of the only worker, None for those of the client."""

    def __init__(self, client: Any, path: Path, address: str | None = None) -> None:
        self._client, self._path, self._address = client, path, address
        self.asked: list[Sequence[str] | None] = []
        self.subscribe_topic = getattr(client, "subscribe_topic", None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def run(self, function: Callable[..., Any], *args: Any, workers: Any = None, **options: Any) -> dict[str, Any]:
        if function in BEFORE:
            return {}
        self.asked.append(workers)
        with without(self._path):
            if self._address is None:
                return self._client.run(function, *args, workers=workers, **options)
            return {self._address: function(*args)}


class Here:
    """A client whose workers see what this process sees, if they answer. topics: who hears of each; asked: whom `run`
    has asked."""

    def __init__(self) -> None:
        self.topics: dict[str, Callable[..., Any]] = {}
        self.asked: list[list[str]] = []
        self.silent = False
        self.subscribe_topic, self.unsubscribe_topic = self.topics.__setitem__, self.topics.pop

    def run(self, function: Callable[..., Any], *args: Any, workers: Sequence[str], **options: Any) -> dict[str, Any]:
        if self.silent:
            raise TimeoutError
        if function in BEFORE:
            return {}
        self.asked.append(sorted(workers))
        return {address: function(*args) for address in workers}
