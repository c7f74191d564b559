"""Checks of the net's graph: names, sources, circles, phases, shared parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from singa_dask.errors import nearest
from singa_dask.job.energy import without_feedback
from singa_dask.job.findings import Findings
from singa_dask.job.job_pb2 import AlgProto, LayerProto, LayerType, Phase
from singa_dask.job.layer_facts import ENERGY, LOSSES, parameter_roles, type_name
from singa_dask.job.paths import Path, layers_of
from singa_dask.job.phases import runs_in
from singa_dask.job.unroll import Times, connections, faults, plain


class _Node(NamedTuple):
    path: Path
    layer: LayerProto


def check_graph(findings: Findings, phases: Sequence[int]) -> None:
    """The graph of each of these phases, and the parameters that layers share."""
    paths = [path for path, _ in layers_of(findings.job)]  # in the order of `plain`
    nodes = [_Node(path, layer) for path, layer in zip(paths, plain(findings.job.neuralnet).layer, strict=True)]
    _check_sources_exist(findings, nodes)
    for phase in phases:
        present = [node for node in nodes if runs_in(node.layer, phase)]
        _check_names(findings, present)
        _check_unrolling(findings, present)
        _check_sources_run(findings, nodes, present, phase)
        _check_circles(findings, present)
        _check_ends(findings, present, phase)
    _check_sharing(findings, nodes)


def _check_sources_exist(findings: Findings, nodes: Sequence[_Node]) -> None:
    names = {node.layer.name for node in nodes}
    for path, layer in nodes:
        for i, source in enumerate(layer.srclayers):
            if source not in names:
                hint = nearest(source, names - {layer.name, ""})
                findings.add((*path, "srclayers", i), "no layer has this name", source, hint)
        dynamic = layer.rnn_dummy_conf.dynamic_srclayer
        if dynamic and dynamic not in names:
            where = (*path, "rnn_dummy_conf", "dynamic_srclayer")
            findings.add(where, "no layer has this name", dynamic, nearest(dynamic, names - {layer.name, ""}))


def _check_names(findings: Findings, present: Sequence[_Node]) -> None:
    """Names are unique within a phase; SINGA's jobs have one "data" for training and another for tests."""
    seen = set()
    for path, layer in present:
        if layer.name in seen:
            hint = "Rename one, or let each run in phases of its own (include: kTrain, include: kTest)."
            findings.add((*path, "name"), "another layer of the same phase has this name", layer.name, hint)
        seen.add(layer.name)


def _check_sources_run(findings: Findings, nodes: Sequence[_Node], present: Sequence[_Node], phase: int) -> None:
    names = {node.layer.name for node in nodes}
    running = {node.layer.name for node in present}
    for path, layer in present:
        for i, source in enumerate(layer.srclayers):
            if source in names and source not in running:
                name = Phase.Name(phase)
                message = f"does not run in phase {name}, in which {layer.name!r} reads it"
                hint = f"Leave {layer.name!r} out of the phase too (exclude: {name}), or let {source!r} in."
                findings.add((*path, "srclayers", i), message, source, hint)


def _check_unrolling(findings: Findings, present: Sequence[_Node]) -> None:
    """The time steps that layers read of each other exist."""
    times = Times.of(layer for _, layer in present)
    for path, layer in present:
        for fault in faults(layer, times):
            findings.add((*path, fault.field), fault.message, fault.received, fault.hint)


def _check_circles(findings: Findings, present: Sequence[_Node]) -> None:
    by_name = {node.layer.name: node for node in reversed(present)}
    onward = without_feedback(node.layer for node in by_name.values())
    for circle in _circles({layer.name: _same_step_sources(layer) for layer in onward}):
        start = min(range(len(circle)), key=lambda i: by_name[circle[i]].path)
        ordered = [*circle[start:], *circle[:start]]
        way = " -> ".join([*ordered, ordered[0]])
        findings.add((*by_name[ordered[0]].path, "srclayers"), "these layers feed each other in a circle", way)


def _same_step_sources(layer: LayerProto) -> tuple[str, ...]:
    """The sources that are not read at an earlier time step."""
    times = Times(dict.fromkeys(layer.srclayers, layer.unroll_len), {})
    return tuple(connection.source for connection in connections(layer, times) if not connection.delayed)


def _circles(sources: dict[str, tuple[str, ...]]) -> Iterator[list[str]]:
    """The circles of a graph, name -> names it reads; each in the order of the data's flow, none sharing a layer."""
    stuck = _stuck(sources)
    while stuck:
        walk = [next(iter(stuck))]
        while walk.count(walk[-1]) == 1:
            walk.append(next(b for b in stuck[walk[-1]] if b in stuck))
        circle = walk[walk.index(walk[-1]) + 1 :]
        yield circle[::-1]
        stuck = _stuck({name: before for name, before in stuck.items() if name not in circle})


def _stuck(sources: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """What remains of the graph once all layers are taken out that only wait for layers taken out (Kahn 1962)."""
    waits = {name: sum(b in sources for b in before) for name, before in sources.items()}
    readers: dict[str, list[str]] = {name: [] for name in sources}
    for name, before in sources.items():
        for b in before:
            readers.get(b, []).append(name)
    free = [name for name, count in waits.items() if count == 0]
    for name in free:  # grows while it is walked
        for reader in readers[name]:
            waits[reader] -= 1
            if waits[reader] == 0:
                free.append(reader)
    taken = set(free)
    return {name: before for name, before in sources.items() if name not in taken}


def _check_ends(findings: Findings, present: Sequence[_Node], phase: int) -> None:
    """A phase needs data, and training what its algorithm trains. A user's layer may be anything."""
    types = {type_name(node.layer) for node in present}
    where: Path = ("neuralnet",)
    read = [node for node in present if not node.layer.srclayers and node.layer.type != LayerType.kDummy]
    if "kUserLayer" not in types and not read:
        hint = 'Add one of type kRecordInput: store_conf { path: "dataset:digits/train" batchsize: 64 }.'
        findings.add(where, f"no layer reads data in phase {Phase.Name(phase)}", hint=hint)
    if phase != Phase.kTrain:
        return
    for path, layer in present:
        if layer.type == LayerType.kRNNDummy and not layer.srclayers:
            message, hint = "feeds a net with what it gave out, and cannot train it", "Use kCharRNN; sample with this."
            findings.add((*path, "type"), message, "kRNNDummy", hint)
    alg = findings.job.train_one_batch.alg
    if alg == AlgProto.kCD and not types >= ENERGY:
        hint = "Add a kRBMVis and a kRBMHid that read each other."
        findings.add(where, "no RBM runs in phase kTrain, and alg: kCD trains nothing else", hint=hint)
    back_propagates = alg in (AlgProto.kBP, AlgProto.kBPTT)
    if back_propagates and types & ENERGY:
        hint = "Use train_one_batch { alg: kCD }, or layers of type kInnerProduct with the RBM's parameters."
        name = AlgProto.AlgType.Name(alg)
        findings.add(where, f"an RBM runs in phase kTrain, and alg: {name} cannot train it", hint=hint)
    elif back_propagates and not types & (LOSSES | {"kUserLayer"}):
        hint = "Add one of type kSoftmaxLoss or kEuclideanLoss."
        findings.add(where, "no loss layer runs in phase kTrain, so there is nothing to learn from", hint=hint)


def _check_sharing(findings: Findings, nodes: Sequence[_Node]) -> None:
    """share_from names a parameter that has a value of its own."""
    owners, open_prefixes, sharers = _parameters(nodes)
    for path, target, own_name in sharers:
        if target == own_name:
            findings.add(path, "a parameter cannot share with itself", target)
        elif target in owners:
            owner = owners[target]
            if owner:
                findings.add(path, f"{target!r} itself shares another parameter's value", target, f"Name {owner!r}.")
        elif not target.startswith(open_prefixes):
            hint = nearest(target, owners.keys() - {own_name})
            findings.add(path, "no parameter has this name", target, hint)


def _parameters(nodes: Sequence[_Node]) -> tuple[dict[str, str], tuple[str, ...], list[tuple[Path, str, str]]]:
    """Parameter name -> the one it shares from or ""; prefixes of names only a layer's class knows; who shares."""
    owners: dict[str, str] = {}
    prefixes: list[str] = []
    sharers: list[tuple[Path, str, str]] = []
    for path, layer in nodes:
        roles = parameter_roles(layer)
        if roles is None:
            prefixes.append(f"{layer.name}_")
        count = len(layer.param) if roles is None else max(len(roles), len(layer.param))
        for i in range(count):
            param = layer.param[i] if i < len(layer.param) else None
            role = roles[i] if roles and i < len(roles) else ""
            name = (param.name if param else "") or (f"{layer.name}_{role}" if role else "")
            target = param.share_from if param else ""
            if name:
                owners[name] = target
            if target:
                sharers.append(((*path, "param", i, "share_from"), target, name))
    return owners, tuple(prefixes), sharers
