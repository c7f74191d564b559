"""Apache SINGA's Model, for nets that train themselves: `from singa_dask import model`.

singa_dask.Model is another class: it trains a list of layers in a loop over arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singa_dask.layers.base import Layer as Node
from singa_dask.layers.naming import calling
from singa_dask.loops.layer import Layer
from singa_dask.tensors.state import no_grad, state

__all__ = ["Model"]


class Model(Layer):
    """A module whose call is `train_one_batch` in training, and `forward` else.

        class Net(model.Model):
            def __init__(self):
                super().__init__()
                self.linear = layer.Linear(10)

            def forward(self, x):
                return self.linear(x)

            def train_one_batch(self, x, y):
                out = self.forward(x)
                loss = autograd.softmax_cross_entropy(out, y)
                self.optimizer(loss)
                return out, loss

        net = Net()
        net.optimizer = opt.SGD(lr=0.1)
        net.compile([tx], is_train=True)
        out, loss = net(tx, ty)

    In a Job and a singa_dask.Model it is the module of its `forward`.
    """

    def train_one_batch(self, *x: Any, **settings: Any) -> Any:
        """One step of training. To be implemented."""
        raise NotImplementedError(f"{type(self).__name__} needs a method train_one_batch(self, x, y)")

    def compile(
        self, inputs: Sequence[Any], is_train: bool = True, use_graph: bool = False, sequential: bool = False
    ) -> None:
        """Make the parameters, by a call of `forward` on these tensors. is_train: as for `train`.

        use_graph and sequential have no effect: there is one order of computation, and layers keep their memory.
        """
        self.eval()
        with no_grad():
            self(*inputs)
        self.train(is_train)

    def graph(self, mode: bool = True, sequential: bool = False) -> None:
        """Has no effect; see `compile`."""

    def __call__(self, *x: Any, **settings: Any) -> Any:
        if not state.training or any(isinstance(each, Node) for each in x):
            return super().__call__(*x, **settings)
        with calling(self):
            return self.train_one_batch(*x, **settings)
