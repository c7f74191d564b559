"""Every kernel of GpuOps against the base."""

import pytest
from support.op_cases import CASES, compare


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", CASES)
def test_gpu_computes_what_the_base_computes(name, gpu):
    compare(name, gpu)
