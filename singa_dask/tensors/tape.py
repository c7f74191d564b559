"""Gradients over a graph of calls.

A call is what a layer or a function has computed from tensors, its sources. Its outputs remember it, so that a graph
lives as long as what was computed. Parameters are sources like all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from singa_dask.errors import TrainingError
from singa_dask.functions.elementwise import add
from singa_dask.functions.reductions import fitted
from singa_dask.ops.arrays import address_of

if TYPE_CHECKING:
    from singa_dask.layers.param import Param
    from singa_dask.tensors.tensor import Tensor

_numbers = count()
Key = tuple[int, int]


class Call:
    """One call: its sources, and the shapes of its outputs. number: grows from call to call. params: those among its
    sources, and their tensors. done: whether its gradients have gone back, where that is possible only once; it has
    then forgotten its sources. line: of the user who made it."""

    line = ""
    done = False

    def __init__(self, sources: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> None:
        self.number = next(_numbers)
        self.sources, self.shapes = tuple(sources), tuple(shapes)
        self._versions = [source.versions[0] for source in sources]
        self.params = {each.param: each for each in sources if each.param is not None and each.requires_grad}

    @property
    def rows(self) -> int | None:
        """Of the mini-batch, if it knows them."""
        return None

    def check_sources(self) -> None:
        """Raise TrainingError if a source has changed since."""
        for source, version in zip(self.sources, self._versions, strict=True):
            if source.versions[0] != version:
                what = f"parameter {source.param.name!r}" if source.param is not None else repr(source)
                raise TrainingError(
                    f"{what} was changed after {self!r} had read it, so its gradients would be wrong. Go backward "
                    f"before you change it, or compute the loss again.{self.line and f' ({self.line})'}"
                )

    # What a kind of call implements:

    def backward(self, dy: Sequence[Any]) -> Sequence[Any]:
        """The gradients of the sources, arrays, from those of the outputs, of which one may be None. None for a source
        that gets none, or for a parameter whose gradient it has written itself."""
        raise NotImplementedError

    def backward_in_functions(self, dy: Sequence[Any]) -> Sequence[Any]:
        """As `backward`, of tensors: what it computes is remembered, for further gradients."""
        raise NotImplementedError


class Tape:
    """The calls from which tensors were computed, in order; of those in `until`, none. toward: only the calls over
    which gradients go back to these. params: those that were read. tensors: the tensor of each. Raises TrainingError
    if gradients have gone back over one of the calls."""

    def __init__(
        self, outputs: Sequence[Tensor], until: Sequence[Tensor] = (), toward: Sequence[Tensor] | None = None
    ) -> None:
        ends = {_key(tensor) for tensor in until}
        found: dict[int, Call] = {}
        stack = [output.call for output in outputs]
        while stack:
            call = stack.pop()
            if call is not None and call.number not in found:
                found[call.number] = call
                stack += [source.call for source in call.sources if source.requires_grad and _key(source) not in ends]
        if any(call.done for call in found.values()):
            raise TrainingError(
                "a part of this loss has gone backward already. Add losses that share a part, and go backward from "
                "their sum; or compute the loss again."
            )
        self.outputs = outputs
        self.calls = [found[number] for number in sorted(found)]
        if toward is not None:
            wanted, leads = {_key(tensor) for tensor in toward}, set[Call | None]()
            for call in self.calls:
                if any(_key(source) in wanted or source.call in leads for source in call.sources):
                    leads.add(call)
            self.calls = [call for call in self.calls if call in leads]
        self.tensors: dict[Param, Tensor] = {}
        for call in self.calls:
            for param, tensor in call.params.items():
                self.tensors.setdefault(param, tensor)
        self.params = list(self.tensors)
        self._gradients: dict[Key, Any] = {}
        self._in_functions = False

    @property
    def sources(self) -> set[int]:
        """The ids of the tensors that the calls read, as far as gradients go back to them."""
        return {id(source) for call in self.calls for source in call.sources if source.requires_grad}

    @cached_property
    def rows(self) -> int:
        """Of the mini-batch: those of the last call that knows them, or else of the first input."""
        for call in reversed(self.calls):
            if call.rows is not None:
                return call.rows
        inputs = (source for call in self.calls for source in call.sources if source.param is None and source.shape)
        return next(map(len, inputs), 1)

    def backward(
        self, given: Sequence[Any], *, share: float = 1.0, keep: Sequence[Tensor] = (), in_functions: bool = False
    ) -> Iterator[Param]:
        """Go backward from gradients of the outputs. Yields each parameter as soon as its gradient is complete: the
        last layer's first.

        share: by which changes of running statistics are multiplied. keep: tensors whose gradients are wanted.
        in_functions: gradients are tensors, remembered for further gradients, those of parameters too; see
        `gradient_of`.
        Raises TrainingError if a source of one of the calls has changed.
        """
        waiting = Counter(param for call in self.calls for param in call.params)
        kept = {_key(tensor) for tensor in keep}
        for param in self.params:
            param.start_step()
        self._gradients.clear()
        self._in_functions = in_functions
        self._add(self.outputs, given)
        for call in reversed(self.calls):
            dy = [self._taken((id(call), place), kept) for place in range(len(call.shapes))]
            if any(each is not None for each in dy):
                call.check_sources()
                sources = call.sources
                self._add(sources, call.backward_in_functions(dy) if in_functions else call.backward(dy))
            for param in call.params:
                waiting[param] -= 1
                if not waiting[param] and not in_functions:
                    param.complete()
                    if param.statistic and share != 1:
                        param.grad[...] *= share
                    yield param

    def gradient_of(self, tensor: Tensor) -> Any:
        """The gradient of a tensor that was to be kept, or of a parameter; None where there is none."""
        found = self._gradients.get(_key(tensor))
        own = found is None and not self._in_functions and tensor.param in self.tensors
        return tensor.param.grad if own and tensor.param is not None else found

    def _taken(self, key: Key, kept: set[Key]) -> Any:
        if key not in kept:
            return self._gradients.pop(key, None)
        found = self._gradients.get(key)
        return found.copy("K") if isinstance(found, np.ndarray) else found  # a call may overwrite it

    def _add(self, tensors: Sequence[Tensor], gradients: Sequence[Any]) -> None:
        """Add to the gradients of tensors. No two then share memory, as calls may overwrite theirs."""
        found = [
            pair for pair in zip(tensors, gradients, strict=True) if pair[1] is not None and pair[0].requires_grad
        ]
        seen: set[int] = set()
        for tensor, gradient in found:
            if gradient.shape != tensor.shape:
                gradient = fitted(gradient, tensor.shape)
            if self._in_functions:
                self._sum(_key(tensor), gradient)
                continue
            if gradient.dtype != tensor.dtype:
                gradient = gradient.astype(tensor.dtype)
            if tensor.param is None:
                address = address_of(gradient) if len(found) > 1 else 0
                shared = address in seen or not getattr(gradient.flags, "writeable", True)
                self._sum(_key(tensor), gradient.copy("K") if shared else gradient)
                seen.add(address)
            elif tensor.param.claim():
                tensor.param.grad += gradient
            else:
                tensor.param.grad[...] = gradient

    def _sum(self, key: Key, gradient: Any) -> None:
        before = self._gradients.get(key)
        if before is not None and self._in_functions:
            before = add(before, gradient)
        elif before is not None:
            before += gradient
        self._gradients[key] = gradient if before is None else before


def gradients_in_functions(y: Tensor, dy: Any, sources: Sequence[Tensor]) -> list[Any]:
    """The gradients of the sources from which y was computed by functions: tensors, remembered for further gradients;
    None for one that gets none."""
    tape = Tape([y], until=sources)
    for _ in tape.backward([dy], keep=sources, in_functions=True):
        pass
    return [tape.gradient_of(source) for source in sources]


def _key(tensor: Tensor) -> Key:
    """Of its gradient: the call that made it and its place, or the parameter, or itself."""
    if tensor.call is not None:
        return id(tensor.call), tensor.place
    return id(tensor if tensor.param is None else tensor.param), -1
