"""A training step of twelve nets: what it launches, waits for, uploads and allocates, and that it computes what the
CPU does.

Counted on the emulation, under the real CuPy.
"""

import numpy as np
import pytest
from support.counted_steps import ADAMW, parameters_of, replica_of, spent, steps_of

ROWS = 2  # launches depend on them only where columns of convolutions are too many to be kept
# Launches, products among them; allocations; uploads. Every step waits once, for one download.
BUDGETS = {
    "mlp-64": (42, 4, 2),
    "mnist-cnn": (27, 4, 2),
    "cifar10-cnn": (40, 6, 2),
    "resnet20-64": (246, 88, 2),
    "transformer-12": (179, 80, 1),
    f"transformer-12{ADAMW}": (186, 86, 1),
    "gru-512": (232, 14, 1),
    "lstm-256": (229, 10, 1),
    "vgg": (53, 4, 2),
    "unet-16": (90, 3, 2),
    "conv1d-64": (27, 6, 2),
    "conv3d-8": (25, 4, 2),
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", BUDGETS)
def test_a_step_keeps_to_its_budget_and_computes_what_the_cpu_does(name, emulated):
    replica, data = replica_of(name, "gpu", ROWS)
    losses = list(steps_of(replica, data, range(2)))
    emulated.counts()
    losses += steps_of(replica, data, range(2, 3))
    counts = emulated.counts()
    found = spent(counts)
    used = found["launches"], found["allocations"], found["uploads"]
    assert all(own <= most for own, most in zip(used, BUDGETS[name], strict=True)), (used, counts)
    assert (found["waits"], found["downloads"]) == (1, 1)
    on_cpu, data = replica_of(name, "cpu", ROWS)
    np.testing.assert_allclose(losses, list(steps_of(on_cpu, data, range(3))), rtol=2e-6)
    np.testing.assert_allclose(parameters_of(replica), parameters_of(on_cpu), atol=2e-5)


@pytest.mark.parametrize("name", ["mnist-cnn", "resnet20-64"])
def test_adamw_and_clip_norm_add_ten_launches_at_most(name, emulated):
    replica, data = replica_of(f"{name}{ADAMW}", "gpu", ROWS)
    list(steps_of(replica, data, range(1)))
    emulated.counts()
    list(steps_of(replica, data, range(1, 2)))
    found = spent(emulated.counts())
    assert found["launches"] <= BUDGETS[name][0] + 10 and found["waits"] == 1
