"""Requests to a run from outside: a worker group joins, a worker group leaves, the run stops.

A run listens on a topic of its Dask scheduler, where `singa-dask join`, `leave` and `stop` send their requests.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from singa_dask.cluster.remote import unsubscribe
from singa_dask.errors import ClusterError
from singa_dask.supervision.events import Event, JoinAsked, LeaveAsked, StopAsked

if TYPE_CHECKING:
    from distributed import Client

TOPIC = "singa-dask-control"
_ANSWER_S = 10.0
# A join waits for a status request of all Dask workers, of which some may not answer.
_DONE_S = 30.0
_WHO_S = 2.0
_OTHERS_S = 0.5
_LOOK_S = 0.05


# A client has one handler per topic, and may have several runs.
_receivers: WeakKeyDictionary[Client, list[Callable[[Any], Any]]] = WeakKeyDictionary()


@contextmanager
def listening(
    client: Client, name: str, workspace: str, post: Callable[[Event | Callable[[], None]], None]
) -> Iterator[None]:
    """Take requests to a run while the context is open. post: of its Supervisor."""

    def receive(stamped: tuple[float, dict[str, Any]]) -> Any:
        message = stamped[1]
        if "reply" not in message or not {None, name, workspace} & {*message.get("run", [None])}:
            return None

        def reply(text: str) -> Any:
            return client.log_event(message["reply"], {"run": name, "workspace": workspace, "answer": text})

        match message:
            case {"op": "join"}:
                post(JoinAsked(reply))
            case {"op": "leave", "group": int(group)}:
                post(LeaveAsked(reply, group))
            case {"op": "stop"}:
                post(StopAsked("singa-dask stop"))
                post(lambda: reply(f"{name} ({workspace}) was asked to stop"))
            case {"op": "who"}:
                return reply("")  # at once, however busy the run is
            case _:  # whoever asks must not end the run
                post(lambda: reply(f"refused: not a request: {message}"))
        return None

    receivers = _receivers.setdefault(client, [])
    receivers.append(receive)
    client.subscribe_topic(TOPIC, partial(_receive, receivers))
    try:
        yield
    finally:
        receivers.remove(receive)
        if not receivers:
            unsubscribe(client, TOPIC)


async def _receive(receivers: list[Callable[[Any], Any]], stamped: tuple[float, dict[str, Any]]) -> None:
    """Pass a message on to every run. In the client's event loop, where its calls are coroutines."""
    for receive in [*receivers]:
        if (answering := receive(stamped)) is not None:
            await answering


def active_runs(client: Client) -> set[str]:
    """The workspaces of the runs on the client's cluster that answer."""
    return {answer["workspace"] for answer in _answers(client, {"op": "who"}, first_s=_WHO_S)}


def ask_run(client: Client, op: str, run: str | None = None, **more: Any) -> str:
    """Ask the run (its job's name or workspace; None: the only one) on the client's cluster for something.

    op: "join", "leave" or "stop". Returns the run's answer. Raises ClusterError if there is no such run, if there are
    several, or if it refuses.
    """
    names = [None] if run is None else [run, str(Path(run).absolute())]
    runs = _answers(client, {"op": "who", "run": names}, first_s=_ANSWER_S)
    found = ", ".join(f"{answer['run']} ({answer['workspace']})" for answer in runs)
    if not runs:
        named = f" of the name {run}" if run else ""
        raise ClusterError(
            f"no run{named} is under way on this Dask cluster, or it does not answer. `singa-dask runs` lists runs; "
            "--scheduler names another cluster."
        )
    if len(runs) > 1:
        raise ClusterError(f"several runs are under way: {found}. Name one by its folder.")
    answers = _answers(client, {"op": op, "run": [runs[0]["workspace"]], **more}, first_s=_DONE_S)
    if not answers:
        raise ClusterError(
            f"the run {found} has not answered within {_DONE_S:g} s. Its driver is busy or stopped: ask again."
        )
    said: str = answers[0]["answer"]
    if said.startswith("refused"):
        raise ClusterError(f"{found}: {said}")
    return said


def _answers(client: Client, message: dict[str, Any], first_s: float) -> list[dict[str, Any]]:
    """All answers to a message: the first within `first_s`, the others soon after.

    They are fetched from the scheduler, which keeps them: a subscription travels on another connection than the
    message and may arrive after the first answer.
    """
    reply = f"{TOPIC}-{uuid.uuid4().hex[:12]}"
    client.log_event(TOPIC, {**message, "reply": reply})
    deadline = time.monotonic() + first_s
    answers: list[dict[str, Any]] = []
    while time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        came = [said for _, said in client.get_events(reply)]
        if came and message["op"] != "who":
            return came
        if len(came) > len(answers):
            answers, deadline = came, time.monotonic() + _OTHERS_S
    return answers
