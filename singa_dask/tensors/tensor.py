"""Arrays on a device, for training loops of one's own. The names are Apache SINGA's."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from singa_dask.errors import ConfigError, DataError, Problem
from singa_dask.functions import (
    detach,
    einsum,
    equal,
    exp,
    greater,
    greater_equal,
    less,
    less_equal,
    log,
    not_equal,
    sigmoid,
    sign,
    softmax,
    sqrt,
    tanh,
    transpose,
)
from singa_dask.functions.operators import Operators, is_operand
from singa_dask.functions.primitive import Primitive
from singa_dask.functions.shapes import IMAGES, as_images
from singa_dask.tensors.device import Device, float_type, get_default_device, in_type
from singa_dask.tensors.state import caller, remembers, state
from singa_dask.tensors.tape import Call

if TYPE_CHECKING:
    from singa_dask.layers.param import Param

NO_NUMBERS = "has no numbers in forward, which runs once to build the net"
WRITE_FUNCTIONS = (
    "Write it with functions of layers; state of a layer of one's own is kept in loops over tensors alone."
)
float16, float32, float64, int32 = np.float16, np.float32, np.float64, np.int32
# Functions that SINGA has in this module too; others are in singa_dask.autograd.
__all__ = [
    "Parameter",
    "Tensor",
    "einsum",
    "eq",
    "exp",
    "float16",
    "float32",
    "float64",
    "from_numpy",
    "ge",
    "gt",
    "int32",
    "le",
    "log",
    "lt",
    "sigmoid",
    "sign",
    "softmax",
    "sqrt",
    "tanh",
    "to_numpy",
    "transpose",
]
eq, ge, gt, le, lt = equal, greater_equal, greater, less_equal, less


class Tensor(Operators):
    """An array on a device.

    array, data: the array, of the shape of the tensor. Images are (B, C, H, W), as in SINGA; in memory their channels
    are last. requires_grad: whether gradients are wanted for it, or for what it was computed from. stores_grad:
    whether it is a parameter: `autograd.backward` gives its gradient, and optimisers update it. call: what made it, if
    that is remembered; place: among its outputs. param: what has its array, of a parameter. versions: one number,
    which grows when the array changes; tensors that share memory share it.

    Operators and comparisons are functions of singa_dask.autograd, element by element.
    """

    param: Param | None = None
    place: int = 0

    def __init__(
        self,
        shape: tuple[int, ...] = (),
        device: Device | None = None,
        dtype: Any = None,
        data: Any = None,
        requires_grad: bool = False,
        stores_grad: bool = False,
    ) -> None:
        self.device = device or get_default_device()
        given = None if data is None else np.asarray(data)
        shape = given.shape if given is not None else tuple(shape)
        self.call: Call | None = None
        self.requires_grad = requires_grad
        self._versions = [0]
        last = (shape[0], *shape[2:], shape[1]) if len(shape) in IMAGES else shape
        self._array = as_images(self.device.ops.zeros(last, None if dtype is None else float_type(dtype)))
        if given is not None:
            self.copy_from_numpy(given)
        self.stores_grad = stores_grad

    @classmethod
    def of(cls, array: Any, device: Device | None = None) -> Self:
        """A tensor of an array, of the same shape; floats get the type of the device."""
        device = device or get_default_device()
        array = np.asarray(array) if not hasattr(array, "__cuda_array_interface__") else array
        dtype = device.ops.dtype if array.dtype.kind == "f" else array.dtype
        array = in_type(array, dtype) if isinstance(array, np.ndarray) else array
        return cls.made(device.ops.asarray(array, dtype), device, None, requires_grad=False)

    @classmethod
    def made(cls, array: Any, device: Device, call: Any, *, requires_grad: bool, place: int = 0) -> Self:
        """The output of a call."""
        tensor = cls.__new__(cls)
        tensor._array, tensor.device, tensor.call, tensor.requires_grad = array, device, call, requires_grad
        tensor.place = place
        tensor._versions = [0]
        return tensor

    @property
    def array(self) -> Any:
        return self._array if self.param is None else self.param.value

    @array.setter
    def array(self, value: Any) -> None:
        self.versions[0] += 1
        if self.param is None:
            self._array = value
        elif value is not self.param.value:
            self.param.value[...] = value

    @property
    def versions(self) -> list[int]:
        return self._versions if self.param is None else self.param.versions

    @property
    def stores_grad(self) -> bool:
        return self.param is not None

    @stores_grad.setter
    def stores_grad(self, wanted: bool) -> None:
        if wanted and self.param is None:
            self._check_given("stores_grad")
            param = _param(self._array, self.device)
            del self._array
            self.param = param
            self.requires_grad = True
        elif self.param is not None and not wanted:
            raise DataError("stores_grad: a parameter remains one. Make another tensor.")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def ndim(self) -> int:
        return self.array.ndim

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def data(self) -> Any:
        return self.array

    def size(self) -> int:
        """The number of elements."""
        return int(self.array.size)

    def copy_from_numpy(self, array: Any) -> None:
        """Take the values of an array of the same shape. Raises DataError for another shape, and for values that the
        type of the tensor cannot hold."""
        self._check_given("copy_from_numpy")
        array = np.asarray(array)
        if array.shape != self.shape:
            raise DataError(f"copy_from_numpy: the tensor has shape {self.shape}. Received: {array.shape}.")
        self.array[...] = self.device.ops.asarray(in_type(array, self.array.dtype), self.array.dtype)
        self.versions[0] += 1

    def set_value(self, value: float) -> None:
        """Make all elements equal to a number. Raises DataError if the type of the tensor cannot hold it."""
        self.copy_from_numpy(np.full(self.shape, value))

    def gaussian(self, mean: float, std: float) -> None:
        """Draw all elements from a normal distribution; see autograd.set_seed."""
        self.copy_from_numpy(state.draw.normal(mean, std, self.shape))

    def uniform(self, low: float, high: float) -> None:
        """Draw all elements between two numbers; see autograd.set_seed."""
        self.copy_from_numpy(state.draw.uniform(low, high, self.shape))

    def to_device(self, device: Device) -> None:
        """Move the tensor to a device. Raises DataError for the output of a layer and for a parameter of one."""
        self._check_given("to_device")
        before, self.device = self.device, device
        if (device.kind, device.id) == (before.kind, before.id):
            return
        array = device.ops.asarray(before.ops.to_host(self.array).copy(), self.array.dtype)
        if self.param is None:
            self.array = array
        else:
            self.param.bind(array, device.ops.zeros(array.shape, array.dtype))

    def _check_given(self, what: str) -> None:
        """Raise DataError for the output of a layer, which its backward pass needs as it is."""
        if self.call is not None or isinstance(self, Parameter):
            raise DataError(f"{what}: {self!r} belongs to a layer. Change the tensors on which the layer is called.")

    def to_numpy(self) -> np.ndarray:
        """A copy on the host."""
        self._check_values()
        return np.array(self.device.ops.to_host(self.array), order="C")

    def item(self) -> float:
        """The value of a tensor of one element."""
        self._check_values()
        return float(self.device.ops.to_host(self.array).reshape(-1)[0])

    def _check_values(self) -> None:
        """Raise ConfigError where a net is built."""
        if caller.get() == "forward":
            raise ConfigError(Problem("tensor", NO_NUMBERS, repr(self), WRITE_FUNCTIONS))

    def __float__(self) -> float:
        return self.item()

    def __itruediv__(self, number: Any) -> Any:  # type: ignore[misc]
        if self.call is not None:  # it is needed as it is
            return self / number
        self.array /= number
        return self

    def __imul__(self, number: Any) -> Any:  # type: ignore[misc]
        if self.call is not None:
            return self * number
        self.array *= number
        return self

    def as_type(self, dtype: Any) -> Tensor:
        """A tensor of the same values in another type. Raises DataError for values that it cannot hold."""
        return Tensor(device=self.device, dtype=dtype, data=self.to_numpy())

    def detach(self) -> Tensor:
        """The same array, without what it was computed from."""
        return detach(self)

    @property
    def T(self) -> Any:
        """The transpose."""
        return transpose(self)

    def __eq__(self, other: object) -> Any:
        return equal(self, other) if is_operand(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return not_equal(self, other) if is_operand(other) else NotImplemented

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        """The value of a tensor of one element. Raises DataError for others."""
        if self.array.size != 1:
            raise DataError(
                f"a tensor of shape {self.shape} is neither true nor false. Take any() or all() of its to_numpy()."
            )
        self._check_values()
        return bool(self.device.ops.to_host(self.array).reshape(-1)[0])

    def _recorded(self, primitive: Primitive, operands: Sequence[Any], settings: dict[str, Any]) -> Any:
        """The function of these operands, of which one is a tensor; beside a layer, a node of the net.

        Raises DataError if their shapes do not fit."""
        sources = [each for each in operands if isinstance(each, Tensor)]
        for each in operands if len(sources) < len(operands) else ():
            if hasattr(each, "_node_of"):
                return each._node_of(primitive, operands, settings)
        device, learns = sources[0].device, False
        for each in sources:
            learns = learns or (each.requires_grad and primitive.differentiable)
            if each.device is not device and each.device != device:
                found = ", ".join(dict.fromkeys(repr(each.device) for each in sources))
                raise DataError(f"{primitive}: the tensors must be on one device. Received: {found}.")
        arrays = [_array_of(each, device, real=primitive.real) for each in operands]
        with np.errstate(all="ignore"):
            y = primitive.computed(device.ops.xp, arrays, operands, settings)
        if not hasattr(y, "base"):
            y = np.asarray(y)
        traced = learns or (
            caller.get() == "forward" and any(each.requires_grad or each.call is not None for each in sources)
        )
        call = FunctionCall(primitive, operands, arrays, settings, y) if traced and remembers() else None
        made = Tensor.made(y, device, call, requires_grad=learns)
        if y.base is not None or y is arrays[0]:  # a view
            made._versions = sources[0].versions
        return made

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, {self.device!r})"


class Parameter(Tensor):
    """A parameter of a layer, in the layout in which the layer stores it. name: for example "conv_weight"."""

    param: Param

    def __init__(self, param: Param, device: Device) -> None:
        self.param, self.device, self.call, self.requires_grad = param, device, None, True

    @property
    def name(self) -> str:
        return self.param.name

    def copy_from_numpy(self, array: Any) -> None:
        """Take the values of an array of the same shape. Raises DataError for another shape."""
        array = np.asarray(array)
        if array.shape != self.shape:
            raise DataError(f"parameter {self.name!r} has shape {self.shape}. Received: {array.shape}.")
        self.param.value[...] = self.device.ops.asarray(array, self.param.value.dtype)
        self.versions[0] += 1


class FunctionCall(Call):
    """A call of a primitive. operands: as they were given; arrays: of them; y: what it made."""

    def __init__(
        self, primitive: Primitive, operands: Sequence[Any], arrays: Sequence[Any], settings: dict[str, Any], y: Any
    ) -> None:
        self._places = [i for i, each in enumerate(operands) if isinstance(each, Tensor)]
        super().__init__([operands[i] for i in self._places], [y.shape])
        self.primitive, self.operands, self._arrays, self.settings = primitive, operands, arrays, settings
        self._y = y

    def backward(self, dy: Sequence[Any]) -> Sequence[Any]:
        with np.errstate(all="ignore"):
            return self._gradients(dy[0], self._y, self._arrays)

    def backward_in_functions(self, dy: Sequence[Any]) -> Sequence[Any]:
        y = Tensor.made(self._y, self.sources[0].device, self, requires_grad=True)
        return self._gradients(dy[0], y, self.operands)

    def _gradients(self, dy: Any, y: Any, x: Sequence[Any]) -> list[Any]:
        found = []
        for i, source in zip(self._places, self.sources, strict=True):
            vjp = self.primitive.vjp(i) if source.requires_grad else None
            found.append(None if vjp is None else vjp(dy, y, *x, **self.settings))
        return found

    def __repr__(self) -> str:
        return repr(self.primitive)


def from_numpy(array: Any) -> Tensor:
    """A tensor of a NumPy array, on the default device, whose type floats get."""
    array = np.asarray(array)
    return Tensor(dtype=None if array.dtype.kind == "f" else array.dtype, data=array)


def to_numpy(tensor: Tensor) -> np.ndarray:
    """A copy of a tensor on the host."""
    return tensor.to_numpy()


def _param(array: Any, device: Device) -> Param:
    """A parameter that is no layer's. Raises DataError for another type than that of the device's layers."""
    from singa_dask.job.job_pb2 import ParamProto
    from singa_dask.layers.param import Param

    if array.dtype != device.ops.dtype:
        raise DataError(f"stores_grad: a parameter must be of {np.dtype(device.ops.dtype)}. Received: {array.dtype}.")
    param = Param(ParamProto(), f"tensor{next(state.numbers)}", array.shape, 1, 1)
    param.bind(array, device.ops.zeros(array.shape, array.dtype))
    return param


def _array_of(operand: Any, device: Device, *, real: bool) -> Any:
    """What a primitive computes with: the array of a tensor or of numbers, whole ones as real ones if `real`."""
    if isinstance(operand, Real | None):
        return operand if not isinstance(operand, np.generic) else operand.item()
    array = operand.array if isinstance(operand, Tensor) else device.ops.asarray(operand)
    kind = array.dtype.kind
    if (kind == "f" and not isinstance(operand, Tensor)) or (real and kind in "iu"):
        return array.astype(device.ops.dtype, copy=False)
    return array
