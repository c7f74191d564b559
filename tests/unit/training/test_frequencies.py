"""When events fire."""

from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.training.frequencies import due, evaluations_due


def test_singas_rule():
    assert [s for s in range(12) if due(s, 3, 2)] == [2, 5, 8, 11]
    assert [s for s in range(12) if due(s, 0, 0)] == []
    assert [s for s in range(5) if due(s, 2, 0)] == [0, 2, 4]


def test_evaluations_need_a_frequency_and_run_at_the_end():
    job = JobProto(train_steps=10, test_freq=4, validate_freq=5, validate_steps=2)
    assert evaluations_due(job, 4) == [Phase.kTest]
    assert evaluations_due(job, 5) == [Phase.kVal]
    assert evaluations_due(job, 10) == [Phase.kVal, Phase.kTest]
    job.test_freq = 0
    assert evaluations_due(job, 0) == [Phase.kVal]
    assert evaluations_due(job, 10) == [Phase.kVal]
