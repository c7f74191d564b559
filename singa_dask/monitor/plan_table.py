"""A plan as text: the candidates, what is split, what limits the step, and what to take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import StringIO

from rich.table import Table
from rich.text import Text

from singa_dask.job import ClusterTopology, job_to_text
from singa_dask.job.job_pb2 import JobProto
from singa_dask.output.console import Console
from singa_dask.planning.advise import EXTRAPOLATED, Advice, admits, counts, name, rate, strategy
from singa_dask.planning.limits import LayerAdvice, percent
from singa_dask.planning.partition import GAIN
from singa_dask.planning.prediction import Candidate, Machines, Prediction
from singa_dask.training.memory import format_nbytes

WIDTH = 100
BEST = 3  # candidates that are shown besides one per strategy and number of workers
SHORT = {"transitions": "sending"}
TIME = "time, %"
LEAST = 0.04  # of the step: smaller parts are not shown
REST = 0.005  # of what a worker sends: less is not listed
LEGEND = {
    "dim 0": "each worker takes some of the rows",
    "dim 1": "each worker takes some of the features",
    "auto": "chosen for each layer",
    "as in job": "the job's own",
    "kHalf": "sent as float16",
    "kTopK": "only the largest gradients are sent",
    "one behind": "a group computes on while it waits for its servers",
    "bucket": "elements that are exchanged at once",
}


def plan_text(advice: Advice, job: str, *, every: bool = False, width: int = WIDTH) -> str:
    """All of it, without colours."""
    console = Console(file=StringIO(), width=width)
    print_plan(console, advice, job, every=every)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def plan_html(advice: Advice, job: str) -> str:
    """For notebooks."""
    console = Console(file=StringIO(), record=True, width=WIDTH, force_jupyter=False)
    print_plan(console, advice, job)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def print_plan(console: Console, advice: Advice, job: str, *, every: bool = False) -> None:
    """Print a plan. every: all candidates instead of the best ones."""
    shown = list(advice.predictions) if every else rows_of(advice)
    console.print(Text(f"{job}: predictions for {describe(advice.machines, advice.memory.host)}\n"), style="italic")
    console.print(plan_table(advice, shown, job))
    for line in footnotes(advice, shown):
        console.print(Text(line, style="dim"))
    console.print()
    for line in layer_lines(advice):
        console.print(Text(line))
    console.print(Text(f"\n{advice.limit}\n"))
    console.print(Text("Recommended: ", style="bold") + Text(advice.reason))


def rows_of(advice: Advice) -> list[Prediction]:
    """One worker, the best of each strategy, the best that are admitted, of each number of workers too."""
    fitting = sorted(filter(advice.fits, advice.predictions), key=lambda each: -each.samples_per_s)
    admitted = [each for each in fitting if admits(each.candidate, advice.allow)]
    kept = [advice.base, advice.recommended]
    kept += list({name(each.candidate): each for each in reversed(admitted)}.values())[-BEST:]
    kept += _firsts(fitting, lambda topology: topology.strategy)
    kept += _firsts(admitted, lambda topology: topology.nworkers)
    return [each for each in advice.predictions if any(each is one for one in kept)]


def _firsts(predictions: Sequence[Prediction], key: Callable[[ClusterTopology], object]) -> list[Prediction]:
    """The first one with each key."""
    return list({key(each.candidate.topology): each for each in reversed(predictions)}.values())


def plan_table(advice: Advice, shown: Sequence[Prediction], job: str) -> Table:
    """The predictions, the recommended one marked."""
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    columns = {heading: [cell(each) for each in shown] for heading, cell in _columns(advice).items()}
    if not any(map(_asynchronous, shown)):
        del columns["stale"]
    for heading, cells in columns.items():
        if any(cells):
            right = heading in ("samples/s", "ms", "sent", "memory", "stale")
            table.add_column(heading, justify="right" if right else "left", no_wrap=heading != TIME)
    for i, each in enumerate(shown):
        row = [cells[i] for cells in columns.values() if any(cells)]
        table.add_row(*row, style="bold" if each is advice.recommended else "")
    return table


def _columns(advice: Advice) -> dict[str, Callable[[Prediction], str]]:
    return {
        "  strategy": lambda each: f"{'>' if each is advice.recommended else ' '} {strategy(each.candidate.topology)}",
        "workers": lambda each: workers(each.candidate.topology),
        "settings": lambda each: f"{partition(each.candidate)} {settings(each.candidate.topology)}".strip(),
        "samples/s": lambda each: rate(each, "~"),
        "ms": lambda each: milliseconds(each.step_s),
        "stale": stale,
        "sent": lambda each: format_nbytes(each.sent) if each.sent else "",
        "memory": lambda each: format_nbytes(each.memory) + ("" if advice.fits(each) else "!"),
        TIME: where,
    }


def settings(topology: ClusterTopology) -> str:
    """What distinguishes a candidate from others with as many workers and servers."""
    parts = [topology.codec] * (topology.codec != "kFull") + ["one behind"] * topology.one_behind
    parts += [f"bucket {topology.bucket_size >> 20}M"] * (topology.bucket_size != ClusterTopology.bucket_size)
    return ", ".join(parts)


def workers(topology: ClusterTopology) -> str:
    """Groups x workers + separate servers.

    >>> workers(ClusterTopology.downpour(2, 2, 1)), workers(ClusterTopology.allreduce(4))
    ('2x2+1', '4')
    """
    groups, size = topology.nworker_groups, topology.nworkers_per_group
    text = f"{groups}x{size}" if groups > 1 else str(size)
    return f"{text}+{topology.nservers}" if topology.server_worker_separate else text


def partition(candidate: Candidate) -> str:
    """A partition's name; none for groups of one worker, which divide nothing."""
    if candidate.partition == "job":
        return "as in job"
    return candidate.partition if candidate.topology.nworkers_per_group > 1 else ""


def stale(prediction: Prediction) -> str:
    """Of how many updates ago the parameters of a gradient are, or that every group trains copies of them."""
    return "copies" if prediction.candidate.topology.nserver_groups > 1 else f"{prediction.staleness:.3g}"


def _asynchronous(prediction: Prediction) -> bool:
    return not prediction.candidate.topology.strategy.synchronous


def milliseconds(seconds: float) -> str:
    """
    >>> milliseconds(0.00724), milliseconds(1.5)
    ('7.24', '1,500')
    """
    ms = 1e3 * seconds
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def where(prediction: Prediction) -> str:
    """The two largest parts of a step."""
    parts = sorted(prediction.parts.items(), key=lambda item: -item[1])[:2]
    shares = [(SHORT.get(name, name), seconds / prediction.step_s) for name, seconds in parts]
    return ", ".join(f"{name} {100 * share:.0f}" for name, share in shares if share >= LEAST)


def describe(machines: Machines, memory: float | None) -> str:
    """The machines in words."""
    each = f"{machines.cores:g} core{'s' * (machines.cores > 1)}"
    each += f" and {format_nbytes(memory)} of memory" if memory is not None else ""
    if machines.hosts == 1:
        where = f"one host with {each}"
    else:
        packed = machines.workers_per_host
        on_each = "" if packed is None else f", {packed} worker{'s' * (packed > 1)} on each"
        where = f"{'' if machines.hosts is None else f'{machines.hosts} '}hosts with {each}{on_each}"
    network = [f"{machines.bandwidth / 1e9:g} Gbit/s"] if machines.bandwidth else []
    network += [f"{machines.latency * 1e6:g} us"] if machines.latency else []
    there = "; this cluster is not there, nothing was measured on it" if machines.imagined else ""
    return ", ".join([where, *network]) + there


def footnotes(advice: Advice, shown: Sequence[Prediction]) -> Iterator[str]:
    """What the table's words and signs mean."""
    batch = round(advice.base.samples_per_s * advice.base.step_s)
    yield f"A mini-batch has {batch:,} samples. The workers of a group divide it; each group takes its own."
    yield "workers: groups x workers + servers. ms: of a step, time: its largest parts. memory: of a worker."
    used = " ".join(f"{partition(each.candidate)} {settings(each.candidate.topology)}" for each in shown)
    if meanings := [f"{word}: {meaning}" for word, meaning in LEGEND.items() if word in used]:
        yield f"{'; '.join(meanings)}."
    shared = ", as if workers did not share memory" * any(each.shares for each in shown)
    yield f"sent: by a worker, and the server beside it, per step{shared}."
    if any(map(_asynchronous, shown)):
        yield "stale: updates by others between reading the parameters and applying the gradient."
        yield "copies: each group trains a copy of the parameters, and neighbouring servers mix the copies."
    if any(each.extrapolated > EXTRAPOLATED for each in shown):
        share = percent(EXTRAPOLATED)
        yield f"~ more than {share} of the step was estimated from other shapes, numbers of rows or threads."
    if any(not advice.fits(each) for each in shown):
        yield "! more than the hosts have."
    if len(shown) < len(advice.predictions):
        yield f"{len(advice.predictions) - len(shown)} other candidates are left out; --all shows them."


def layer_lines(advice: Advice) -> Iterator[str]:
    """A line per layer with parameters: whether it is split, and what it sends or would send."""
    if not advice.layers:
        alone = "one worker" if advice.recommended.candidate.topology.nworkers == 1 else "groups of one worker"
        yield f"No layer is split: the recommended candidate has {alone}."
        return
    split = [layer.layer for layer in advice.layers if layer.split]
    if split:
        yield f"Split over the workers of a group: {', '.join(split)}."
    else:
        yield "No layer is split over the workers of a group."
    chosen = advice.recommended
    sends = "would send in a step without shared memory" if chosen.shares else "sends in a step"
    yield f"What a worker {sends}, by layer with its number of parameters:"
    widest = max(len(layer.layer) for layer in advice.layers)
    digits = max(len(f"{layer.parameters:,}") for layer in advice.layers)
    for layer in advice.layers:
        yield f"  {layer.layer:<{widest}}  {layer.parameters:>{digits},}  {_sends(layer)}"
    activations = sum(layer.activations for layer in advice.layers if layer.split)
    gradients = sum(layer.gradients for layer in advice.layers if not layer.split)
    if (rest := chosen.activations - activations) > REST * chosen.sent:
        yield f"  and {format_nbytes(rest)} of activations at layers without parameters"
    if (rest := chosen.sent - chosen.activations - gradients) > REST * chosen.sent:
        servers = "" if chosen.candidate.topology.in_process_servers else " to servers"
        yield f"  and {format_nbytes(rest)} of gradients{servers}"


def _sends(layer: LayerAdvice) -> str:
    gradients = f"{format_nbytes(layer.gradients)} of gradients"
    activations = f"{format_nbytes(layer.activations)} of activations"
    if layer.split:
        by = "output features" if layer.partition == "features" else layer.partition
        return f"split by {by}: {activations} instead of {gradients}"
    if layer.gradients > layer.activations:
        if not layer.chosen:
            return f"not split: {gradients} ({activations} if it were split)"
        return f"not split: {gradients}; splitting ({activations}) gains < {percent(GAIN)}"
    return f"not split: {gradients} instead of {activations}"


def expectation(prediction: Prediction) -> str:
    """What was chosen and what is expected of it, in a line."""
    candidate = prediction.candidate
    rough = " (not all of it measured)" if prediction.extrapolated > EXTRAPOLATED else ""
    parts = [strategy(candidate.topology), counts(candidate), partition(candidate), settings(candidate.topology)]
    expected = (
        f"{prediction.samples_per_s:,.0f} samples/s expected{rough}, {milliseconds(prediction.step_s)} ms a step"
    )
    return f"{', '.join(filter(None, parts))}: {expected}"


def instructions(candidate: Candidate, job: str, *, here: bool) -> str:
    """How to train as a candidate says. job: what the command line names it. here: on the cluster that is there."""
    only = JobProto()
    only.cluster.CopyFrom(candidate.topology.to_proto())
    only.cluster.SetInParent()
    change = {"dim 0": "partition_dim=0", "dim 1": "partition_dim=1", "auto": "partition=auto"}
    split = candidate.topology.nworkers_per_group > 1 and candidate.partition in change
    setting = f" --set neuralnet.{change[candidate.partition]}" if split else ""
    lines = [f"To train like this, save the following as a file: singa-dask train {job} --cluster FILE{setting}"]
    if here:
        lines.insert(0, f"To train with the recommendation: singa-dask train {job} --cluster auto")
        lines[1] = f"The same without choosing again: singa-dask train {job} --cluster FILE{setting}, and in FILE:"
    return "\n".join([*lines, job_to_text(only).rstrip()])
