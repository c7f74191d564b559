"""The sentences that users read about a run, one for each code of its state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from singa_dask.errors import ClusterError, DriverUnreachable
from singa_dask.supervision.facts import Cause, Code, Fact


class GroupLost(ClusterError):
    """A process of the run died or went silent, and its groups are not formed again."""


class NoReplacement(ClusterError):
    """Nothing can take the place of a process that was lost."""


def _given_up(cause: str, step: int, times: int, **_: Any) -> str:
    often = f"{times} time{'s' * (times > 1)}"
    tried = f" The group was restarted {often} without progress (max_restarts)." if times else ""
    return f"{cause} (step {step}).{tried}"


def _restarted(whom: str, cause: str, step: int, attempt: int, most: int, everybody: bool, way: str) -> str:
    of = "" if everybody else f" of {whom or 'the servers'}"
    return f"{cause} (step {step}). Restart {attempt} of {most}{of}, {way}."


def _no_step(ago_s: float, step: int | None) -> str:
    return f"has made no step for {ago_s:.0f} s" + ("" if step is None else f", since step {step}")


def _stands_still(rank: int, on: Any, ago_s: float, step: int | None, at: str, **_: Any) -> str:
    return f"rank {rank} on {on} {_no_step(ago_s, step)}: it is in {at}"


def _stood_still(ago_s: float, step: int | None, at: str, **_: Any) -> str:
    return f"{_no_step(ago_s, step)}, and is in {at}"


def _dealt_anew(now: int, before: int, step: int, **_: Any) -> str:
    groups, former = f"{now} worker group{'s' * (now > 1)}", f"{before} worker group{'s' * (before > 1)}"
    return (
        f"{groups} instead of {former}: the training data are assigned anew, and each group goes on with "
        f"mini-batch {step} of its own share"
    )


def _stopping(by: str, **_: Any) -> str:
    return f"{by}: stopping after this step (press Ctrl-C {'again ' * (by == 'Ctrl-C')}to abort)"


# {whom}: the names of the members, {cause}: the sentence of the cause, others: figures of the fact.
SENTENCES: dict[Code, str | Callable[..., str]] = {
    Code.SERVERS_DIED: "{whom}: the process of {where} died or is stopped",
    Code.SERVERS_GONE: "{whom}: server group {servers} is lost, and what it had left in memory",
    Code.NOT_TAKEN_IN: "{whom} could not take in {added}",
    Code.NOT_SHRUNK: "{whom} cannot go on with fewer workers",
    Code.RESIZED_IN_VAIN: "{undone}: {cause}",
    Code.DRIVER_LOST: "its driver was lost",
    Code.NO_REPLACEMENT: "Dask workers were lost ({lost}): {missing} must be replaced, and {free} are free after "
    "{after_s:g} s. Start more.",
    Code.GIVEN_UP: _given_up,
    Code.RESTARTED: _restarted,
    Code.WITH_EVERYTHING: "with everything that it had acknowledged",
    Code.FROM_SERVERS: "from the servers' parameters",
    Code.FROM_NEIGHBOUR: "from the parameters of a neighbouring server group",
    Code.FROM_RANKS: "from the state that its processes have left in memory",
    Code.FROM_CHECKPOINT: "from step {step}",
    Code.FROM_CHECKPOINT_IN_MEMORY: "from step {step} in memory",
    Code.ENDS_HERE: "{cause}. The run is being stopped, so it ends here.",
    Code.NOT_JOINED: "{whom} could not join: {cause}",
    Code.LEFT: "{whom} left: {cause}",
    Code.LEFT_OUT: "{whom} is left out, and the others go on: {cause} `singa-dask join` adds a group.",
    Code.NOT_BACK: "{whom} does not come back: {cause}",
    Code.EXCHANGE_FAILED: "the last exchange between server groups failed: {cause}",
    Code.REPLICA_LOST: "{whom} has no replica of server {rank} now, as its nanny does not answer or has no memory",
    Code.STANDS_STILL: _stands_still,
    Code.STOOD_STILL: _stood_still,
    Code.SHRUNK: "{whom} goes on with {count} of {whole} workers",
    Code.COMPLETE: "{whom} goes on with all {whole} workers",
    Code.COLOCATED: "{whom} goes on in other processes of the run until there are free ones",
    Code.OWN_PROCESSES: "{whom} goes on in {where}, which had no work",
    Code.UNKEPT: "{whom} leaves no copies in memory, as its processes have no nannies or too little memory: "
    "after its loss, updates that no other server group has are lost",
    Code.REPLICATED: "servers keep replicas on other hosts; cluster.server_replicas: 0 trains without them",
    Code.BEGINS_IN_MEMORY: "the run continues from step {step}, which is in memory",
    Code.TAKEN_OVER: "{whom}: back from memory, with everything acknowledged under the lost driver",
    Code.NOT_TAKEN_OVER: "the memory of the lost driver's servers {cause}. The run continues from step {step}.",
    Code.MISFIT: "is of another topology, net, updater or data",
    Code.TORN: "is not whole: {torn}",
    Code.GONE: "is not whole: it is gone, or has no parameters yet",
    Code.FEWER: "has fewer updates than the newest checkpoint",
    Code.ONLY_IN_MEMORY: "there is no checkpoint: the run continues from the memory of its Dask workers, if they "
    "still have it, else from step 0",
    Code.PASSED_OVER: "passed over: {cause}",
    Code.DEALT_ANEW: _dealt_anew,
    Code.OTHER_CLUSTER: "resumed with another cluster. Before: {before}. Now: {now}.",
    Code.OTHER_CODE: "your code differs from that in the checkpoint: {names}. The run goes on with it as it is now.",
    Code.OTHER_EVALUATED: "the {phase} data differ from those before step {step}, so their metrics are not comparable",
    Code.STOPPING: _stopping,
    Code.JOINS: "{whom} joins on {where}",
    Code.LEAVES: "{whom} leaves after its step",
    Code.SYNCHRONOUS: "refused: one worker group is synchronous, and cannot take in another; downpour and hogwild can",
    Code.ENDING: "refused: the run is ending",
    Code.TOO_FEW_FREE: "refused: {needed} free Dask workers are needed, {there} are there; start more and join again",
    Code.NOT_AT_WORK: "refused: there is no worker group {group} at work; the output of the run names those that are",
    Code.LEAD_STAYS: "refused: worker group 0 tests and saves for the whole run; stop the run instead",
    Code.BEING_FORMED: "refused: {whom} is being formed; ask again in a moment",
}


def sentence(said: Cause) -> str:
    """What a user reads."""
    if not isinstance(said, Fact):
        return str(said)
    words = SENTENCES[said.code]
    figures = {name: _in_words(of) for name, of in said.figures.items()}
    write = words.format if isinstance(words, str) else words
    return write(whom=" and ".join(said.whom), cause=sentence(said.cause), **figures)


def _in_words(figure: Any) -> Any:
    if isinstance(figure, Fact):
        return sentence(figure)
    return ", ".join(map(_in_words, figure)) if isinstance(figure, tuple) else figure


def error(said: Fact | BaseException, history: Iterable[str]) -> BaseException:
    """What ends a run. An error of the cluster tells what happened before, unless its cause is known."""
    kind = NoReplacement if isinstance(said, Fact) and said.code is Code.NO_REPLACEMENT else GroupLost
    raised = kind(sentence(said)) if isinstance(said, Fact) else said
    if isinstance(raised, ClusterError) and not isinstance(raised, DriverUnreachable):
        raised.add_note("What happened before, the latest last:\n" + "\n".join(history))
    return raised
