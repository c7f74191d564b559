"""Gradients of what was computed from tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from singa_dask.errors import ConfigError, DataError, Problem, TrainingError
from singa_dask.tensors.state import group_of
from singa_dask.tensors.tape import Tape
from singa_dask.tensors.tensor import Tensor


def tape_of(loss: Any) -> Tape:
    """The calls from which a loss was computed. Raises ConfigError if it is no tensor of one element that remembers
    them, TrainingError if it depends on no parameter."""
    if not isinstance(loss, Tensor) or loss.call is None:
        hint = (
            "Give it what a loss or a function returns for tensors, with autograd.training = True before the forward "
            "pass. A Model goes backward in DistOpt alone: gradient accumulation and alternating optimizers are for "
            "loops over tensors."
        )
        raise ConfigError(Problem("loss", "has nothing to go backward over", repr(loss), hint))
    if loss.array.size != 1:
        hint = "Take its mean: autograd.mean(loss)."
        raise ConfigError(Problem("loss", "must have one element", f"shape {loss.shape}", hint))
    tape = Tape([loss])
    if not tape.params:
        raise TrainingError(
            "the loss depends on no parameter, so that nothing would be trained. Parameters are those of layers, and "
            "tensors that were made with stores_grad=True; detach and no_grad cut them off."
        )
    return tape


def ones(tensor: Tensor) -> Any:
    """An array of the shape of a tensor."""
    return tensor.device.ops.xp.ones(tensor.shape, tensor.dtype)


def backward(loss: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The parameters from which a loss was computed, each with its gradient. Tensors that were made with
    stores_grad=True are parameters too.

    A pair comes as soon as its gradient is complete: the last layer's first. The gradient is valid until the next
    backward pass. Raises ConfigError for what is no loss, TrainingError if it depends on no parameter, if a part of it
    has gone backward already, or if a tensor or a parameter has changed since it was read.
    """
    tape, group = tape_of(loss), group_of.get()(loss.device.ops)
    ranks = 1 if group is None else group.size  # each has a part of what running statistics change by
    for param in tape.backward([ones(loss)], share=ranks):
        yield tape.tensors[param], Tensor.made(param.grad, loss.device, None, requires_grad=False)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    *,
    create_graph: bool = False,
) -> Any:
    """The gradients of outputs, summed, for inputs: tensors with requires_grad, what was computed from them, or
    parameters. A list of inputs gives a list.

    grad_outputs: a factor for each element of each output; 1 by default. create_graph: whether the gradients are
    remembered, for gradients of them; then all must have been computed by functions, or by layers that are such
    (InnerProduct and activations). Raises DataError for an input on which the outputs do not depend, otherwise as
    `backward`.
    """
    every: list[Any] = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    alone = not isinstance(inputs, list | tuple)
    wanted: list[Any] = [inputs] if alone else list(inputs)
    factors = list(grad_outputs) if isinstance(grad_outputs, list | tuple) else [grad_outputs] * len(every)
    for node in (each for each in [*every, *wanted] if hasattr(each, "_grad_nodes")):
        found = node._grad_nodes(every, wanted, factors, create_graph=create_graph)
        return found[0] if alone else found
    if any(not isinstance(each, Tensor) or each.call is None for each in every):
        hint = "Compute it from tensors with requires_grad=True, with autograd.training = True."
        raise ConfigError(Problem("grad", "an output has nothing to go backward over", repr(every), hint))
    start = [Tensor.made(ones(each), each.device, None, requires_grad=False) for each in every]
    start = [one if factor is None else one * factor for one, factor in zip(start, factors, strict=True)]
    tape = Tape(every, toward=wanted)
    for _ in tape.backward(
        start if create_graph else [each.array for each in start], keep=wanted, in_functions=create_graph
    ):
        pass
    found = [_found(tape, each, i) for i, each in enumerate(wanted)]
    return found[0] if alone else found


def _found(tape: Tape, tensor: Tensor, number: int) -> Tensor:
    gradient = tape.gradient_of(tensor)
    if gradient is None:
        hint = "Make it with requires_grad=True before it is used."
        raise DataError(f"grad: the outputs do not depend on input {number}, {tensor!r}. {hint}")
    if isinstance(gradient, Tensor):
        return gradient
    return Tensor.made(gradient.copy(), tensor.device, None, requires_grad=False)
