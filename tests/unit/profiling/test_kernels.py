import pytest

from singa_dask.planning.profile import Profile, rule_name
from singa_dask.planning.work import worker_step
from singa_dask.profiling import kernels
from singa_dask.profiling.grid import grid_jobs
from singa_dask.profiling.kernels import CODINGS, RULES, measure_kernels
from singa_dask.updaters import SGD


@pytest.fixture
def small(monkeypatch):
    """Sizes and steps that take no time."""
    for name, value in {
        "SIZES": (100, 1000),
        "CODED_SIZES": (100, 1000),
        "SAMPLES": 256,
        "VALUES": 4,
        "LOADED_ROWS": (2, 64),
        "RULES": RULES[:1],
    }.items():
        monkeypatch.setattr(kernels, name, value)


def test_a_profile_has_every_curve_of_one_process(small):
    rules, codings = (SGD(lr=0.1).proto,), (("kHalf", None), ("kTopK", 0.05))
    profile = measure_kernels(concurrency=2, seconds=0.05, rules=rules, codings=codings, grid=False)
    sizes = {name: [point.size for point in curve.points] for name, curve in profile.curves.items()}
    assert sizes == {
        "update kSGD 2": [100, 1000],
        "sum 2": [400, 4000],
        "encode kHalf - 2": [100, 1000],
        "decode kHalf - 2": [100, 1000],
        "encode kTopK 0.05 2": [100, 1000],
        "decode kTopK 0.05 2": [100, 1000],
        "load 2": [8, 256],
    }
    assert all(point.seconds > 0 for curve in profile.curves.values() for point in curve.points)
    assert Profile.from_json(profile.to_json()) == profile


def test_layers_of_the_grid_are_measured_once_each(small, monkeypatch):
    (job, *_) = grid_jobs()
    monkeypatch.setattr(kernels, "grid_jobs", lambda: [job, job])
    monkeypatch.setattr(kernels, "measure_layers", lambda job, **_: [sample(call.work) for call in calls])
    calls, sample = worker_step(job).forward, lambda work: kernels.LayerSample(work, 1.0, 2.0)
    profile = measure_kernels(seconds=0.02, rules=(), codings=())
    assert [s.work for s in profile.layers] == list(dict.fromkeys(call.work for call in calls))


def test_the_grid_has_layers_of_every_usual_kind():
    kinds = {call.work.kind.split()[0] for job in grid_jobs() for call in worker_step(job).forward}
    usual = "InnerProduct Convolution Pooling LRN BatchNorm ReLU Dropout SoftmaxLoss Add Sub Mul Div Max Reshape "
    usual += "GlobalPooling Attention GELU SiLU GroupNorm LayerNorm RNN GRU LSTM OneHot Sigmoid Tanh STanh"
    assert set(usual.split()) < kinds


def test_all_rules_and_lossy_codecs_are_measured_by_default():
    assert {rule_name(rule) for rule in RULES} >= {"kSGD", "kAdam", "kRMSProp"}
    assert {name for name, _ in CODINGS} == {"kHalf", "kBFloat16", "kPartial", "kTopK"}


def test_a_rule_of_the_user_has_the_name_of_its_class():
    rule = SGD(lr=0.1).proto
    rule.ClearField("type")
    rule.user_type = "mine:Rule"
    assert rule_name(rule) == "mine:Rule"
