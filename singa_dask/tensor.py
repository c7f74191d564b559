"""Arrays on a device, for training loops of one's own. The names are Apache SINGA's."""

from __future__ import annotations

import itertools
from numbers import Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from singa_dask.device import Device, get_default_device
from singa_dask.errors import DataError

if TYPE_CHECKING:
    from singa_dask.autograd.tape import Call
    from singa_dask.layers.param import Param

float32, int32 = np.float32, np.int32
_draw = np.random.default_rng(0)
_numbers = itertools.count(1)


class Tensor:
    """An array on a device.

    Images are (B, C, H, W), as in SINGA: `copy_from_numpy` takes this order, and `to_numpy` gives it. Other arrays of
    three or more axes have their channels second too. array: as layers compute with it, channels last. data: the same,
    for collective operations, which work in place. requires_grad: whether a parameter was used to compute it.
    stores_grad: whether it is a parameter itself: `autograd.backward` gives its gradient, and optimisers update it.
    call: the layer's call that made it; place: among its outputs. param: what has its array, of a parameter.

    a + b, a - b, a * b, a / b and -a are layers' calls: see singa_dask.layers.Add. A number has as many rows as a
    tensor. a @ b: of matrices.
    """

    param: Param | None = None
    place: int = 0
    __array_ufunc__ = None  # so that NumPy's numbers leave a + b to the tensor

    def __init__(
        self,
        shape: tuple[int, ...] = (),
        device: Device | None = None,
        dtype: Any = float32,
        data: Any = None,
        requires_grad: bool = False,
        stores_grad: bool = False,
    ) -> None:
        self.device = device or get_default_device()
        given = None if data is None else np.asarray(data)
        shape = given.shape if given is not None else tuple(shape)
        self.call: Call | None = None
        self.requires_grad = requires_grad
        self._array = self.device.ops.zeros(_channels_last(shape), dtype)
        if given is not None:
            self.copy_from_numpy(given)
        self.stores_grad = stores_grad

    @classmethod
    def of(cls, array: Any, device: Device | None = None) -> Self:
        """A tensor of an array that is laid out as layers compute with it; floats become float32."""
        device = device or get_default_device()
        array = np.asarray(array) if not hasattr(array, "__cuda_array_interface__") else array
        dtype = device.ops.dtype if array.dtype.kind == "f" else array.dtype
        array = _held(array, dtype) if isinstance(array, np.ndarray) else array
        return cls.made(device.ops.asarray(array, dtype), device, None, requires_grad=False)

    @classmethod
    def made(cls, array: Any, device: Device, call: Any, *, requires_grad: bool, place: int = 0) -> Self:
        """The output of a layer's call."""
        tensor = cls.__new__(cls)
        tensor.array, tensor.device, tensor.call, tensor.requires_grad = array, device, call, requires_grad
        tensor.place = place
        return tensor

    @property
    def array(self) -> Any:
        return self._array if self.param is None else self.param.value

    @array.setter
    def array(self, value: Any) -> None:
        if self.param is None:
            self._array = value
        elif value is not self.param.value:
            self.param.value[...] = value

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
        return _channels_first(self.array.shape)

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
        values = np.ascontiguousarray(_moved(_held(array, self.array.dtype), 1, -1))
        self.array[...] = self.device.ops.asarray(values, self.array.dtype)

    def set_value(self, value: float) -> None:
        """Make all elements equal to a number. Raises DataError if the type of the tensor cannot hold it."""
        self.copy_from_numpy(np.full(self.shape, value))

    def gaussian(self, mean: float, std: float) -> None:
        """Draw all elements from a normal distribution; see autograd.set_seed."""
        self.copy_from_numpy(_draw.normal(mean, std, self.shape))

    def uniform(self, low: float, high: float) -> None:
        """Draw all elements between two numbers; see autograd.set_seed."""
        self.copy_from_numpy(_draw.uniform(low, high, self.shape))

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
        return np.array(_moved(self.device.ops.to_host(self.array), -1, 1))

    def item(self) -> float:
        """The value of a tensor of one element."""
        return float(self.device.ops.to_host(self.array).reshape(-1)[0])

    def __float__(self) -> float:
        return self.item()

    def __itruediv__(self, number: Any) -> Any:
        if self.call is not None:  # its layer's backward pass needs it as it is
            return self / number
        self.array /= number
        return self

    def __imul__(self, number: Any) -> Any:
        if self.call is not None:
            return self * number
        self.array *= number
        return self

    def __add__(self, other: Any) -> Tensor:
        return self._combined("add", self, other)

    def __radd__(self, other: Any) -> Tensor:
        return self._combined("add", other, self)

    def __sub__(self, other: Any) -> Tensor:
        return self._combined("sub", self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return self._combined("sub", other, self)

    def __mul__(self, other: Any) -> Tensor:
        return self._combined("mul", self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return self._combined("mul", other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return self._combined("div", self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return self._combined("div", other, self)

    def __neg__(self) -> Tensor:
        return self * -1

    def __matmul__(self, other: Any) -> Tensor:
        return self._combined("matmul", self, other) if isinstance(other, Tensor) else NotImplemented

    def _combined(self, function: str, *operands: Any) -> Any:
        """A function of singa_dask.autograd of two operands, one of which is this tensor."""
        from singa_dask import autograd

        found = [self._with_rows(each) if isinstance(each, Real) else each for each in operands]
        if not all(isinstance(each, Tensor) for each in found):
            return NotImplemented
        return getattr(autograd, function)(*found)

    def _with_rows(self, number: Real) -> Tensor:
        """A number in every row."""
        ops = self.device.ops
        array = ops.empty((len(self.array), *(1,) * (self.array.ndim > 1)))
        array[...] = number
        return Tensor.made(array, self.device, None, requires_grad=False)

    def __len__(self) -> int:
        return len(self.array)

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

    @property
    def shape(self) -> tuple[int, ...]:
        return self.param.shape

    def copy_from_numpy(self, array: Any) -> None:
        """Take the values of an array of the same shape. Raises DataError for another shape."""
        array = np.asarray(array)
        if array.shape != self.shape:
            raise DataError(f"parameter {self.name!r} has shape {self.shape}. Received: {array.shape}.")
        self.param.value[...] = self.device.ops.asarray(array, self.param.value.dtype)

    def to_numpy(self) -> np.ndarray:
        """A copy on the host."""
        return np.array(self.device.ops.to_host(self.param.value))


def from_numpy(array: Any) -> Tensor:
    """A tensor of a NumPy array, on the default device."""
    array = np.asarray(array)
    return Tensor(array.shape, dtype=float32 if array.dtype.kind == "f" else array.dtype, data=array)


def to_numpy(tensor: Tensor) -> np.ndarray:
    """A copy of a tensor on the host."""
    return tensor.to_numpy()


def _param(array: Any, device: Device) -> Param:
    """A parameter that is no layer's. Raises DataError for another type than that of the device's layers."""
    from singa_dask.job.job_pb2 import ParamProto
    from singa_dask.layers.param import Param

    if array.dtype != device.ops.dtype:
        raise DataError(f"stores_grad: a parameter must be of {np.dtype(device.ops.dtype)}. Received: {array.dtype}.")
    param = Param(ParamProto(), f"tensor{next(_numbers)}", array.shape, 1, 1)
    param.bind(array, device.ops.zeros(array.shape, array.dtype))
    return param


def set_seed(number: int) -> None:
    """Seed what tensors draw from now on, and number those that are parameters from 1 again."""
    global _draw, _numbers
    _draw, _numbers = np.random.default_rng(number), itertools.count(1)


def _held(array: np.ndarray, dtype: Any) -> np.ndarray:
    """The values in this type: floats may be rounded. Raises DataError for values that it cannot hold."""
    dtype = np.dtype(dtype)
    if array.dtype.kind not in "biuf":
        raise DataError(f"tensors hold real numbers. Received: an array of {array.dtype}.")
    if np.can_cast(array.dtype, dtype):
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        held = array.astype(dtype)
    same = held == array if dtype.kind in "biu" else np.isfinite(held) | ~np.isfinite(array)
    if not same.all():
        received = array.reshape(-1)[int(np.argmin(same))]
        raise DataError(f"a tensor of {dtype} cannot hold all values. Received: {received} ({array.dtype}).")
    return held


def _channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) < 3 else (shape[0], *shape[2:], shape[1])


def _channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) < 3 else (shape[0], shape[-1], *shape[1:-1])


def _moved(array: np.ndarray, start: int, stop: int) -> np.ndarray:
    return array if array.ndim < 3 else np.moveaxis(array, start, stop)
