"""Which PyTorch module a layer is, where names do not tell."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from singa_dask.convert.parts import Part, joined, names_there
from singa_dask.convert.table import Form
from singa_dask.errors import ConfigError, Problem
from singa_dask.layers.partition import Shape

SHOWN = 4


class Placed(NamedTuple):
    """A layer, the form that its parameters have in PyTorch, and the name of the module there."""

    part: Part
    form: Form
    module: str

    @classmethod
    def of(cls, part: Part, module: str, shapes: Mapping[str, Shape]) -> Placed:
        """In the form of which most tensors are there. shapes: of the tensors that there are."""
        forms = part.forms
        return cls(part, max(forms, key=lambda form: _there(part, form, module, shapes)), module)

    def missing(self, arrays: Collection[str], shapes: Mapping[str, Shape]) -> list[str]:
        """The tensors that are not there, of parameters without a value. arrays: names of those that have one."""
        rows = [row for row in self.form if any(self.part.params[r].owner.name not in arrays for r in row.roles)]
        return [name for row in rows for name in names_there(row, self.module) if name and name not in shapes]


def matched(placed: Sequence[Placed], shapes: Mapping[str, Shape], *, in_order: bool) -> list[Placed]:
    """The layers; those without tensors and given names at the modules that fit them alone, or in order.

    Raises ConfigError where several fit, and where the order does not.
    """
    used = {name for part, form, module in placed for name in part.tensors(form, module)}
    free = {name: shape for name, shape in shapes.items() if name not in used}
    lost = [each for each in placed if each.module == each.part.name and not _there(*each, shapes)]
    fitting = {each.part.name: _fitting(each.part, free) for each in lost}
    if in_order:
        modules = list(dict.fromkeys(name for name in _modules(free, fitting)))
        chosen = dict(zip(fitting, modules, strict=False))
        odd = next((name for name in fitting if chosen.get(name) not in fitting[name]), None)
        if odd or len(modules) != len(fitting):
            message = f"{len(fitting)} layers and {len(modules)} modules of PyTorch do not fit in their order"
            received = f"layer {odd!r} at module {chosen.get(odd)!r}" if odd else some(modules)
            raise ConfigError(Problem("names", message, received, _HINT))
    else:
        chosen = {name: modules[0] for name, modules in fitting.items() if modules}
        for modules in fitting.values():
            rivals = [other for other in fitting if set(fitting[other]) & set(modules)]
            if len(modules) > 1 or len(rivals) > 1:
                message = f"layers {some(rivals)} and modules {some(modules)} of PyTorch have the same shapes"
                raise ConfigError(Problem("state", f"does not tell which layer is which: {message}", hint=_HINT))
    return [
        Placed.of(each.part, chosen[each.part.name], shapes) if each.part.name in chosen else each for each in placed
    ]


_HINT = 'Give names={"layer": "module"}, or names="order" if the net has them in the order of the state.'


def some(names: Iterable[Any]) -> str:
    """The first of these, and how many more there are."""
    every = [*names]
    more = f", and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ", ".join(map(str, islice(every, SHOWN))) + more


def _there(part: Part, form: Form, module: str, shapes: Mapping[str, Shape]) -> int:
    """How many of the tensors are there; of two forms with one tensor, that of its shape counts more."""
    return sum((name in shapes) + (shapes.get(name) == shape) for name, shape in part.tensors(form, module).items())


def _fitting(part: Part, free: Mapping[str, Shape]) -> list[str]:
    """The modules of which all tensors that the layer needs are free and have its shapes."""
    found = []
    for form in part.forms:
        (first, *_) = part.tensors(form, "") or ("",)
        for name in free:
            module = name.removesuffix(first).removesuffix(".") if first else name
            wanted = part.tensors(form, module)
            if joined(module, first) == name and all(free.get(each) == shape for each, shape in wanted.items()):
                found.append(module)
    return list(dict.fromkeys(found))


def _modules(free: Mapping[str, Shape], fitting: Mapping[str, Sequence[str]]) -> list[str]:
    """The modules that fit any layer, in the order of the state."""
    places = {
        module: next(i for i, name in enumerate(free) if name.startswith(module))
        for each in fitting.values()
        for module in each
    }
    return sorted(places, key=lambda module: places[module])
