"""Checks of the net's graph: names, sources, cycles, phases, shared parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from singa_dask.errors import nearest
from singa_dask.job.energy import without_feedback
from singa_dask.job.findings import Findings
from singa_dask.job.job_pb2 import AlgProto, LayerProto, LayerType, Phase
from singa_dask.job.layer_types import ENERGY, LOSSES, parameter_roles, type_name
from singa_dask.job.paths import Path, layers_of
from singa_dask.job.phases import runs_in
from singa_dask.job.unroll import Times, connections, faults, plain
from singa_dask.job.wiring import WiringFault, circle_fault, circles, faults_in_phase, unknown_sources


class _Node(NamedTuple):
    path: Path
    layer: LayerProto


def check_graph(findings: Findings, phases: Sequence[int]) -> None:
    """Check the graph of each phase, and shared parameters."""
    paths = [path for path, _ in layers_of(findings.job)]  # in the order of `plain`
    nodes = [_Node(path, layer) for path, layer in zip(paths, plain(findings.job.neuralnet).layer, strict=True)]
    layers = [node.layer for node in nodes]

    def add(faults: Iterable[WiringFault]) -> None:
        for fault in faults:
            findings.add((*paths[fault.layer], *fault.path), fault.message, fault.received, fault.hint)

    add(unknown_sources(layers))
    for phase in phases:
        present = [node for node in nodes if runs_in(node.layer, phase)]
        add(faults_in_phase(layers, phase))
        _check_unrolling(findings, present)
        add(_circles(layers, phase))
        _check_ends(findings, present, phase)
    _check_sharing(findings, nodes)


def _check_unrolling(findings: Findings, present: Sequence[_Node]) -> None:
    """Check that every time step that a layer reads exists."""
    times = Times.of(layer for _, layer in present)
    for path, layer in present:
        if layer.type == LayerType.kReverse and findings.job.train_one_batch.alg == AlgProto.kBPTT:
            message = "is not for kBPTT: the next mini-batch continues a sequence at its end, not at its start"
            findings.add((*path, "type"), message, "kReverse", "Write train_one_batch { alg: kBP }.")
        for fault in faults(layer, times):
            findings.add((*path, fault.field), fault.message, fault.received, fault.hint)


def _circles(layers: Sequence[LayerProto], phase: int) -> Iterator[WiringFault]:
    order = {layer.name: i for i, layer in reversed(list(enumerate(layers))) if runs_in(layer, phase)}
    onward = without_feedback(layers[i] for i in order.values())
    for circle in circles({layer.name: _same_step_sources(layer) for layer in onward}):
        yield circle_fault(circle, order)


def _same_step_sources(layer: LayerProto) -> tuple[str, ...]:
    """The sources read at the same time step."""
    times = Times(dict.fromkeys(layer.srclayers, layer.unroll_len), {})
    return tuple(connection.source for connection in connections(layer, times) if not connection.delayed)


def _check_ends(findings: Findings, present: Sequence[_Node], phase: int) -> None:
    """Check that a phase has data, and training something to train. A user's layer may be either."""
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
            message = "feeds a net its own output, which cannot train it"
            hint = "Train with a kCharRNN. `singa-dask sample` reads a job with this layer."
            findings.add((*path, "type"), message, "kRNNDummy", hint)
    alg = findings.job.train_one_batch.alg
    if alg == AlgProto.kCD and not types >= ENERGY:
        hint = "Add a kRBMVis and a kRBMHid that read each other."
        findings.add(where, "alg: kCD trains RBMs only, and none runs in phase kTrain", hint=hint)
    back_propagates = alg in (AlgProto.kBP, AlgProto.kBPTT)
    if back_propagates and types & ENERGY:
        hint = "Use train_one_batch { alg: kCD }, or kInnerProduct layers with the RBM's parameters."
        name = AlgProto.AlgType.Name(alg)
        findings.add(where, f"alg: {name} cannot train the RBM that runs in phase kTrain", hint=hint)
    elif back_propagates and not types & (LOSSES | {"kUserLayer"}):
        hint = "Add one of type kSoftmaxLoss or kEuclideanLoss."
        findings.add(where, "no loss layer runs in phase kTrain", hint=hint)


def _check_sharing(findings: Findings, nodes: Sequence[_Node]) -> None:
    """Check that share_from names a parameter that does not share itself."""
    names = {layer.name for _, layer in nodes}
    for path, layer in nodes:
        if layer.share_params and layer.share_params not in names - {layer.name}:
            hint = nearest(layer.share_params, names - {layer.name})
            findings.add((*path, "share_params"), "no other layer has this name", layer.share_params, hint)
    owners, open_prefixes, sharers = _parameters(nodes)
    for path, target, own_name in sharers:
        if target == own_name:
            findings.add(path, "a parameter cannot share with itself", target)
        elif target in owners:
            owner = owners[target]
            if owner:
                findings.add(path, f"{target!r} shares another parameter itself", target, f"Name {owner!r}.")
        elif not target.startswith(open_prefixes):
            hint = nearest(target, owners.keys() - {own_name})
            findings.add(path, "no parameter has this name", target, hint)


def _parameters(nodes: Sequence[_Node]) -> tuple[dict[str, str], tuple[str, ...], list[tuple[Path, str, str]]]:
    """Parameter name -> share_from or ""; prefixes of names that only the class knows; who shares."""
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
