"""What the driver tells the page Training of Dask's dashboard about its run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed.utils import format_dashboard_link

from singa_dask.cluster.addresses import host_of
from singa_dask.cluster.remote import ask_scheduler
from singa_dask.dashboard.plugin import PAGE, TOPIC, follow

if TYPE_CHECKING:
    from singa_dask.training.prepare import Prepared

_FOLLOWED_S, _TOLD_S = 10.0, 5.0


class Watched:
    """A run that the page shows, if the scheduler has a dashboard. The run neither fails nor waits because of it.

    topic: of the run's events. say: tells the user where the page is, or in one line why there is none.
    """

    def __init__(
        self, client: Any, topic: str, prepared: Prepared, workspace: Path, say: Callable[[str], None]
    ) -> None:
        self._client, self._topic, self._port = client, topic, 0
        job, strategy = prepared.job, prepared.topology.strategy.name.lower()
        about = {"job": job.name, "strategy": strategy, "steps": job.train_steps, "workspace": str(workspace)}
        try:
            run = {"topic": topic, "client": client.id, **about}
            self._port = ask_scheduler(client, lambda: client._run_on_scheduler(follow, run), _FOLLOWED_S)
            if self._port:
                say(f"watch the run: {_link(client, self._port)}")
        except Exception as error:  # whatever it is, training does not need the page
            way = "The page needs singa_dask on the machine of the scheduler."
            say(f"the Dask dashboard does not show this run: {type(error).__name__}: {error}. {way}")

    def tell(self, kind: str, **about: Any) -> None:
        """Tell the page of an event, in the background."""
        if self._port:
            with suppress(RuntimeError):  # the client's event loop is closed
                self._client.loop.add_callback(self._send, {"run": self._topic, "kind": kind, **about})

    def over(self, summary: Mapping[str, Any]) -> None:
        """Tell the page how the run ended, before the client is closed."""
        event = {"run": self._topic, "kind": "over", "status": summary["status"], "result": summary["error"] or ""}
        if self._port and self._client.status == "running":
            with suppress(Exception):
                self._client.sync(self._send, event, callback_timeout=_TOLD_S)

    async def _send(self, event: dict[str, Any]) -> None:
        with suppress(Exception):  # a lost scheduler is noticed elsewhere
            await asyncio.wait_for(self._client.scheduler.log_event(topic=TOPIC, msg=event), _TOLD_S)


def _link(client: Any, port: int) -> str:
    """The address of the page, as Dask's setting `distributed.dashboard.link` has it."""
    host = host_of(client.scheduler.address)
    link = getattr(client.cluster, "dashboard_link", "") or format_dashboard_link(host, port)
    head, status, tail = link.rpartition("/status")
    return f"{head}/{PAGE}" if status and not tail else link
