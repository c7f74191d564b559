"""Words from outside to a run: a worker group joins, a worker group leaves.

A run listens on a topic of its Dask scheduler; `singa-dask join` and `singa-dask leave` speak there.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from singa_dask.errors import ClusterError

if TYPE_CHECKING:
    from distributed import Client

TOPIC = "singa-dask-control"
_ANSWER_S = 10.0
_OTHERS_S = 0.5
_LOOK_S = 0.05


class Controlled(Protocol):
    """What a run lets others do with it."""

    def wish(self, action: Callable[[], None]) -> None:
        """Have `action` called by the thread that watches the run."""

    def join(self) -> str:
        """Add a worker group; says what came of it, "refused: ..." where it cannot."""

    def leave(self, number: int) -> str:
        """Let a worker group end; says what came of it."""


@contextmanager
def listening(client: Client, name: str, workspace: str, run: Controlled) -> Iterator[None]:
    """Let others have a say in `run` as long as the context is open."""

    def receive(stamped: tuple[float, dict[str, Any]]) -> None:
        message = stamped[1]
        if message.get("run") in (None, name, workspace):
            run.wish(lambda: answer(message))

    def answer(message: dict[str, Any]) -> None:
        said = {"run": name, "workspace": workspace}
        try:
            if message["op"] == "join":
                said["answer"] = run.join()
            elif message["op"] == "leave":
                said["answer"] = run.leave(int(message["group"]))
        except Exception as error:  # whoever asks must not end the run
            said["answer"] = f"refused: {error}"
        client.log_event(message["reply"], said)

    client.subscribe_topic(TOPIC, receive)
    try:
        yield
    finally:
        client.unsubscribe_topic(TOPIC)


def ask_run(client: Client, op: str, run: str | None = None, **more: Any) -> str:
    """Ask the run (its job's name or workspace; None: the only one) on the client's cluster for "join" or "leave".

    Returns what it says. Raises ClusterError where there is no such run, several, or it refuses.
    """
    runs = _answers(client, {"op": "who", "run": run}, first_s=_ANSWER_S)
    found = ", ".join(f"{answer['run']} ({answer['workspace']})" for answer in runs)
    if not runs:
        named = f" of the name {run}" if run else ""
        raise ClusterError(f"no run{named} is under way on this Dask cluster, or it does not answer.")
    if len(runs) > 1:
        raise ClusterError(f"several runs are under way: {found}. Say which: --run WORKSPACE.")
    answers = _answers(client, {"op": op, "run": runs[0]["workspace"], **more}, first_s=_ANSWER_S)
    if not answers:
        raise ClusterError(f"the run {found} has not answered within {_ANSWER_S:g} s.")
    said: str = answers[0]["answer"]
    if said.startswith("refused"):
        raise ClusterError(f"{found}: {said}")
    return said


def _answers(client: Client, message: dict[str, Any], first_s: float) -> list[dict[str, Any]]:
    """All answers to a message: the first within `first_s`, the others soon after.

    The scheduler keeps them, so they are fetched: a subscription goes by another connection than the message, and may
    come later than the first answer.
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
