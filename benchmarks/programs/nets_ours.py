"""One training step of a net of tools/nets.py in a Model, or in a loop over tensors."""

from __future__ import annotations

import sys
import time

from threadpoolctl import threadpool_limits
from tools.contest import serve
from tools.modules import NETS, model_of, tensors_of
from tools.nets import CASES
from tools.workloads import LEARNING_RATE, MOMENTUM, WARM_UP

from singa_dask import DistOpt, autograd
from singa_dask.updaters import SGD


def main(name: str, way: str) -> None:
    """way: model or loop."""
    rule = SGD(lr=LEARNING_RATE, momentum=MOMENTUM)
    model = model_of(name)
    if way == "model":
        opt, data = DistOpt(rule, model), CASES[name].data()

        def step() -> float:
            loss = model(data)
            opt.backward_and_update(loss)
            return float(loss)

    else:
        net, opt, batch = NETS[name](), DistOpt(rule), tensors_of(name)
        net(*batch)
        net.load_state_dict(model.state_dict())
        autograd.training = True

        def step() -> float:
            loss = net(*batch)
            opt.backward_and_update(loss)
            return float(loss)

    with threadpool_limits(1):
        serve(step, [step() for _ in range(WARM_UP)], clock=time.process_time)


if __name__ == "__main__":
    main(*sys.argv[1:])
