"""Our side of a comparison: a net in a loop over tensors, in a Model, and in a job of two workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from peers import drawn, expected
from peers.modules import formulas, images, sequences, training
from peers.nets import NETS, Net
from support.trained import saved_at, train_group

from singa_dask import ClusterTopology, Job, Model, Module, autograd, convert, shard, updaters
from singa_dask.layers import RecordInput
from singa_dask.loops.distopt import DistOpt
from singa_dask.tensors.tensor import Tensor
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare

MADE = {**images.NETS, **sequences.NETS, **formulas.NETS, **training.NETS}
ANSWERS = ("y", "t")  # data that only losses read
DIFFERENTIATED = ("pinn", "gradient_penalty")  # gradients for inputs, also before training
RULES = {"SGD": "SGD", "Adam": "Adam", "AdamW": "AdamW", "Adagrad": "AdaGrad", "Adamax": "AdamMax"}
Arrays = Mapping[str, np.ndarray]


class Trained(NamedTuple):
    """The losses of each step, and by PyTorch's names the parameters after the last one. gradients: of the first step
    of a job, where the state of its updater tells them."""

    losses: Sequence[float]
    state: Arrays
    gradients: Arrays


def loop(name: str) -> Trained:
    """A loop over tensors, in the type of the default device."""
    entry, net, data = NETS[name], MADE[name](), batches(name)
    autograd.training = name in DIFFERENTIATED
    net(*tensors(data, 0))  # makes the parameters
    draw(name, net, net)
    opt, losses = DistOpt(rule(entry)), []
    one_step = {"gan": adversarial, "accumulation": accumulated}.get(name, plainly)
    autograd.training = True
    try:
        for step in range(drawn.STEPS):
            losses.append(one_step(net, tensors(data, step), opt))
    finally:
        autograd.training = False
    with opt.averaged() if "ema" in entry.update else nullcontext():
        return Trained(losses, as_theirs(net, net), {})


def plainly(net: Any, batch: list[Tensor], opt: DistOpt) -> float:
    loss = total(net(*batch))
    opt.backward_and_update(loss)
    return loss.item()


def accumulated(net: Any, batch: list[Tensor], opt: DistOpt) -> float:
    """An update by the mean of the gradients of two halves."""
    losses, sums = [], {}
    for half in zip(*(autograd.split(x, 0, 2) for x in batch), strict=True):
        loss = net(*half)
        losses.append(loss.item())
        for param, gradient in autograd.backward(loss):
            before = sums.get(param.name, (param, 0))[1]
            sums[param.name] = param, before + gradient.to_numpy() / 2
    for param, gradient in sums.values():
        opt.update(param, Tensor.of(gradient))
    return sum(losses) / 2


def adversarial(net: Any, batch: list[Tensor], opt: DistOpt) -> float:
    """The critic and the generator in turns; a rule treats each parameter by itself, so that one serves both."""
    x, noise = batch
    for names, loss in (
        (("judge", "logit"), lambda: net(x, noise)),
        (("first", "second"), lambda: net.generated(noise)),
    ):
        value = loss()
        for param, gradient in autograd.backward(value):
            if param.name.startswith(names):
                opt.update(param, gradient)
    return value.item()


def total(losses: Any) -> Any:
    return reduce(add, losses) if isinstance(losses, tuple) else losses


def model(name: str) -> Trained:
    entry, net, data = NETS[name], MADE[name](), batches(name)
    inputs = [RecordInput(key, **_described(key, of)) for key, of in entry.data.items()]
    made = Model(as_list(net(*inputs)), dtype=np.float64)
    draw(name, made, net)
    opt, losses = DistOpt(rule(entry), made), []
    for step in range(drawn.STEPS):
        loss = made({key: rows(array[step]) for key, array in data.items()})
        opt.backward_and_update(loss)
        losses.append(float(loss))
    with opt.averaged() if "ema" in entry.update else nullcontext():
        return Trained(losses, as_theirs(made, net), {})


def job(name: str, folder: Path) -> Trained:
    """Under AllReduce with two workers, which are threads here."""
    entry, net, data = NETS[name], MADE[name](), batches(name)
    inputs = written(entry, data, folder / "shards")
    made = Job(
        name=name,
        layers=as_list(net(*inputs)),
        updater=rule(entry),
        train_steps=drawn.STEPS,
        disp_freq=1,
        checkpoint_after=1,
        checkpoint_freq=drawn.STEPS - 1,  # after the first step and the last
        cluster=ClusterTopology.allreduce(2),
    )
    prepared = prepare(made)
    same = Model(prepared.job.neuralnet)
    draw(name, same, net)
    start = checkpoints.Checkpoint(step=0, seed=0, job="", parameters=same.state_dict())
    prepared.job.checkpoint_path[:] = [str(checkpoints.save(start, folder / "start.h5"))]
    _, events = train_group(prepared, folder / "run")
    losses = [summed(event["metrics"]) for event in events if event["kind"] == "metrics"]
    first, last = saved_at(folder / "run", 1), saved_at(folder / "run", drawn.STEPS)
    return Trained(losses, as_theirs(same, net, last.trained), gradients(entry, same, net, first.updater))


def written(entry: Net, data: Arrays, folder: Path) -> list[RecordInput]:
    """Shards of all mini-batches, in order, and the input layers that read them."""
    joined = {key: np.concatenate(array) for key, array in data.items()}
    given: dict[str, Any] = {"path": str(folder), "batchsize": len(next(iter(data.values()))[0]), "shuffle": False}
    answers = {key: array for key, array in joined.items() if key in ANSWERS}
    features = {key: rows(array) for key, array in joined.items() if key not in ANSWERS}
    classes = [key for key, array in answers.items() if array.dtype.kind == "i"]
    names = {key: list(map(str, range(entry.data[key].high))) for key in classes}  # also of those that do not occur
    channels = {key: "last" if entry.data[key].image else "none" for key in features}
    shard(features, answers or None, folder, shuffle=False, channels=channels, labels=classes, classes=names)
    inputs = []
    for key, of in entry.data.items():
        own = {"column": next(iter(features)), "label": key} if key in ANSWERS else {"column": key, "has_label": False}
        inputs.append(RecordInput(key, **own, **given, **({} if key in ANSWERS else _steps(of))))
    return inputs


def batches(name: str) -> dict[str, np.ndarray]:
    """Images with their channels last."""
    found = {}
    for key, of in NETS[name].data.items():
        array = drawn.batches(name, key, of)[:, list(NETS[name].rows) or slice(None)]
        found[key] = np.ascontiguousarray(np.moveaxis(array, 2, -1)) if of.image else array
    return found


def tensors(data: Arrays, step: int) -> list[Tensor]:
    """Images have their channels second."""
    return [Tensor.of(np.moveaxis(array[step], -1, 1) if array.ndim == 5 else array[step]) for array in data.values()]


def rows(array: np.ndarray) -> np.ndarray:
    """One number a sample as a feature."""
    return array[:, None] if array.ndim == 1 else array


def rule(entry: Net) -> updaters.Updater:
    settings = dict(entry.update)
    kind = "Nesterov" if settings.pop("nesterov", False) else RULES[settings.pop("rule")]
    settings.pop("rule", None)
    if "eps" in settings:
        settings["delta"] = settings.pop("eps")
    if "ema" in settings:
        settings["ema_decay"] = settings.pop("ema")
    scales = settings.pop("scale", {}).items()
    settings["group"] = [{"match": match.replace(".", "_"), "lr_scale": scale} for match, scale in scales]
    return getattr(updaters, kind)(**settings)


def draw(name: str, model: Model | Module, net: Module) -> None:
    """Give a model, or the net itself, its initial parameters."""
    names, wanted = getattr(net, "there", {}), {each.name for each in expected.kept(name, "state")}
    shapes = {key: array.shape for key, array in convert.to_torch(model, names=names).items()}
    read = {key: shape for key, shape in shapes.items() if key in wanted or "bias_hh" in key}
    convert.from_torch(model, {key: drawn.initial(name, key, shape) for key, shape in read.items()}, names=names)


def as_theirs(model: Model | Module, net: Module, state: Mapping[str, Any] | None = None) -> Arrays:
    """The parameters of a model, or of the net itself, or a state of it, by PyTorch's names."""
    if state is not None:
        model.load_state_dict({**model.state_dict(), **{key: np.asarray(array) for key, array in state.items()}})
    return convert.to_torch(model, names=getattr(net, "there", {}))


def gradients(entry: Net, model: Model, net: Module, states: Mapping[str, Mapping[str, Any]]) -> Arrays:
    """The gradients of the first step, from what momentum keeps of them."""
    if entry.update["rule"] != "SGD" or entry.update.keys() & {"scale", "weight_decay", "nesterov"}:
        return {}
    velocity = {key: np.asarray(array) / -entry.update["lr"] for key, array in states["velocity"].items()}
    return as_theirs(model, net, velocity)


def summed(metrics: Mapping[str, Any]) -> float:
    return sum(value for key, value in metrics.items() if key.rpartition(".")[2] == "loss")


def as_list(losses: Any) -> list[Any]:
    return list(losses) if isinstance(losses, tuple) else [losses]


def _described(key: str, of: drawn.Data) -> dict[str, Any]:
    """The settings of an input layer without shards."""
    shape = list(of.shape) or [1]
    if key not in ANSWERS:
        return {"shape": shape[1:] or [1], **_steps(of)} if of.steps else {"shape": shape}
    if of.kind != "integers":
        return {"shape": [1], "target_shape": shape}
    return {"shape": [1], **({"label_shape": shape} if of.shape else {})}


def _steps(of: drawn.Data) -> dict[str, int]:
    return {"time_steps": of.shape[0]} if of.steps else {}
