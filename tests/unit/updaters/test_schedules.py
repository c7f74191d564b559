"""Learning-rate schedules against SINGA's formulas, and those of its own."""

from math import cos, pi

import pytest
from google.protobuf import text_format

from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import LRGenProto
from singa_dask.updaters import Schedule, learning_rate, schedules

STEPS = [0, 1, 9, 10, 11, 99, 100, 12345]
CASES = [
    (schedules.Fixed(base_lr=0.3), lambda t: 0.3),
    (schedules.Step(base_lr=0.1, gamma=0.997, change_freq=10), lambda t: 0.1 * 0.997 ** (t // 10)),
    (
        schedules.Linear(base_lr=0.1, change_freq=100, final_lr=0.01),
        lambda t: (1 - t / 100) * 0.1 + t / 100 * 0.01 if t <= 100 else 0.01,
    ),
    (schedules.Exponential(base_lr=0.1, change_freq=1000), lambda t: 0.1 / 2 ** (t / 1000)),
    (schedules.Inverse(base_lr=0.01, gamma=1e-4, pow=0.75), lambda t: 0.01 * (1 + 1e-4 * t) ** -0.75),
    (schedules.InverseT(base_lr=0.1, final_lr=50), lambda t: 0.1 / (1 + t / 50)),
    (
        schedules.FixedStep(step=[10, 100], step_lr=[0.5, 0.25]),
        lambda t: 0.25 if t >= 100 else 0.5,
    ),
    (schedules.ReduceOnPlateau(base_lr=0.1, factor=0.5, patience=2, metric="validate.loss"), lambda t: 0.1),
    (
        schedules.Cosine(base_lr=0.1, change_freq=100, final_lr=0.02),
        lambda t: 0.02 + 0.04 * (1 + cos(pi * t / 100)) if t <= 100 else 0.02,
    ),
    (
        schedules.OneCycle(base_lr=0.8, change_freq=51, rise=0.2, div_factor=8, final_div_factor=10),
        lambda t: (
            0.1 + 0.35 * (1 - cos(pi * t / 9.2))
            if t <= 9.2
            else 0.01 + 0.395 * (1 + cos(pi * min((t - 9.2) / 40.8, 1)))
        ),
    ),
    (
        schedules.Sequential(
            schedule=[schedules.Fixed(0.3), schedules.Linear(0.2, change_freq=5, final_lr=0.1)], steps=9
        ),
        lambda t: 0.3 if t < 9 else 0.2 - min((t - 9) / 5, 1) * 0.1,
    ),
]
IDS = [type(schedule).__name__ for schedule, _ in CASES]


@pytest.mark.parametrize(("schedule", "formula"), CASES, ids=IDS)
def test_schedule_follows_its_formula(schedule, formula):
    assert [schedule(t) for t in STEPS] == pytest.approx([formula(t) for t in STEPS], rel=1e-12)


@pytest.mark.parametrize(("schedule", "formula"), CASES, ids=IDS)
def test_both_spellings_are_one_message(schedule, formula):
    text = text_format.MessageToString(schedule.proto)
    parsed = learning_rate(text_format.Parse(text, LRGenProto()))
    assert type(parsed) is type(schedule)
    assert parsed.proto == schedule.proto
    assert [parsed(t) for t in STEPS] == [schedule(t) for t in STEPS]


def test_a_schedule_has_no_memory():
    schedule = schedules.FixedStep(step=[0, 5, 7], step_lr=[0.1, 0.2, 0.3])
    assert [schedule(t) for t in (8, 0, 6, 5, 4)] == [0.3, 0.1, 0.2, 0.2, 0.1]


def test_defaults_are_singas():
    assert schedules.Fixed()(0) == 0.01
    assert schedules.Inverse(base_lr=0.1)(1000) == 0.1
    assert schedules.Step(base_lr=0.1, change_freq=1)(50) == 0.1


class WarmUp(Schedule):
    """A user's own: base_lr reached after four steps, or as many as it is told."""

    def prepare(self):
        super().prepare()
        self.steps = self.conf.get("steps", 4)

    def __call__(self, step):
        return self.base_lr * min((step + 1) / self.steps, 1)


def test_user_schedule_by_name():
    proto = WarmUp(base_lr=0.8).proto
    assert proto.type == LRGenProto.kUserChange
    assert proto.user_type.endswith("test_schedules:WarmUp")
    assert [learning_rate(proto)(t) for t in (0, 3, 9)] == [0.2, 0.8, 0.8]
    slower = WarmUp(base_lr=0.8, steps=8).proto
    assert slower.user_conf == '{"steps": 8}'
    assert [learning_rate(slower)(t) for t in (0, 3, 9)] == [0.1, 0.4, 0.8]


def plateau(**settings):
    return schedules.ReduceOnPlateau(base_lr=0.1, **settings)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: schedules.Step(base_lr=0.1), ["updater.learning_rate.step_conf.change_freq", "Step needs it"]),
        (lambda: schedules.Step(base_lr=0.1, change_freq=0), ["step_conf.change_freq", "at least 1", "0"]),
        (lambda: schedules.Step(chang_freq=5), ["Did you mean change_freq?"]),
        (lambda: schedules.FixedStep(step="five", step_lr=[0.1]), ["learning_rate.step", "integer", "'five'"]),
        (lambda: schedules.InverseT(final_lr=0), ["inverset_conf.final_lr", "above 0"]),
        (lambda: schedules.FixedStep(step=[1, 2], step_lr=[0.1]), ["2 step, 1 step_lr"]),
        (lambda: schedules.FixedStep(step=[5, 2], step_lr=[0.1, 0.2]), ["must increase", "[5, 2]"]),
        (
            lambda: schedules.Sequential(schedule=[schedules.Fixed()], steps=[5]),
            ["steps: must be one less", "1 steps"],
        ),
        (lambda: schedules.Sequential(schedule=[0.1]), ["learning_rate.schedule", "a mapping of its fields", "0.1"]),
        (
            lambda: schedules.Sequential(schedule=[{"type": "kFixed", "bas_lr": 1}]),
            ["learning_rate.schedule.bas_lr", "Did you mean base_lr?"],
        ),
        (lambda: schedules.Sequential(schedule=[schedules.Fixed()] * 2, steps=0), ["steps", "at least 1", "0"]),
        (lambda: schedules.OneCycle(change_freq=10, rise=0.1), ["onecycle_conf.rise", "more than 1 / change_freq"]),
        (lambda: schedules.Cosine(base_lr=0.1), ["cosine_conf.change_freq", "Cosine needs it"]),
        (lambda: schedules.Fixed(warmup_factor=1.0, warmup_steps=3), ["warmup_factor", "below 1"]),
        (lambda: plateau(factor=0.0), ["reduceonplateau_conf.factor", "above 0"]),
        (lambda: plateau(factor=1.0), ["reduceonplateau_conf.factor", "at least 0 and below 1"]),
        (lambda: plateau(min_lr=0.5), ["reduceonplateau_conf.min_lr", "at most base_lr, 0.1", "0.5"]),
        (lambda: WarmUp(steps=range(3)), ["learning_rate", "settings of a user class must be numbers", "steps"]),
        (lambda: learning_rate(LRGenProto(base_lr=0.1)), ["learning_rate.type", "no type", "kFixed"]),
        (lambda: learning_rate(LRGenProto(user_type="singa_dask.layers:ReLU")), ["subclass of Schedule"]),
    ],
)
def test_errors_name_key_value_and_way_out(make, words):
    with pytest.raises(ConfigError) as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)


SETTINGS = {
    schedules.Step: {"gamma": 0.5, "change_freq": 3},
    schedules.Linear: {"change_freq": 3, "final_lr": 0.01},
    schedules.Exponential: {"change_freq": 3},
    schedules.Inverse: {"gamma": 0.1, "pow": 0.5},
    schedules.InverseT: {"final_lr": 3.0},
    schedules.FixedStep: {"step": [0, 2], "step_lr": [0.1, 0.2]},
    schedules.Cosine: {"change_freq": 3},
    schedules.OneCycle: {"change_freq": 9},
    schedules.Sequential: {
        "schedule": [{"type": "kFixed", "base_lr": 0.5}, {"type": "kFixed", "base_lr": 0.25}],
        "steps": [10],
    },
}


@pytest.mark.parametrize("built_in", schedules.BY_TYPE.values())
def test_one_may_derive_from_every_schedule(built_in):
    own = type("Own", (built_in,), {"type": "kUserChange", "__module__": __name__})
    settings = SETTINGS.get(built_in, {})
    one, other = built_in(base_lr=0.1, **settings), learning_rate(own(base_lr=0.1, **settings).proto)
    assert type(other) is own and [one(t) for t in STEPS] == [other(t) for t in STEPS]
    if settings and built_in is not schedules.Inverse:
        with pytest.raises(ConfigError, match=r"needs it|needs one step_lr|must be one less"):
            own(base_lr=0.1)


def test_a_rate_is_reduced_by_a_factor_down_to_a_minimum():
    schedule = schedules.ReduceOnPlateau(base_lr=0.1, factor=0.5, min_lr=0.02)
    assert [schedule.reduced(7, n) for n in range(5)] == [0.1, 0.05, 0.025, 0.02, 0.02]
    assert schedules.ReduceOnPlateau(base_lr=0.1).reduced(7, 2) == pytest.approx(0.001)
    assert schedules.Step(base_lr=0.1, gamma=0.5, change_freq=10).reduced(10, 3) == 0.05, "others are not reduced"


@pytest.mark.parametrize(("schedule", "formula"), CASES, ids=IDS)
def test_a_warm_up_comes_before_any_schedule(schedule, formula):
    proto = LRGenProto(warmup_steps=8, warmup_factor=0.25)
    proto.MergeFrom(schedule.proto)
    warm = learning_rate(proto)
    assert [warm.rate(t) for t in range(8)] == pytest.approx([formula(0) * (0.25 + 0.75 * t / 8) for t in range(8)])
    assert [warm.rate(8 + t) for t in STEPS] == [schedule(t) for t in STEPS]
    assert [schedule.rate(t) for t in STEPS] == [schedule(t) for t in STEPS], "without one"


def test_a_warm_up_begins_at_zero_by_default():
    assert [schedules.Fixed(0.4, warmup_steps=4).rate(t) for t in range(6)] == pytest.approx(
        [0, 0.1, 0.2, 0.3, 0.4, 0.4]
    )


def test_schedules_of_a_sequence_have_warm_ups_and_are_reduced_in_their_own_steps():
    plateau = schedules.ReduceOnPlateau(base_lr=0.2, factor=0.5, warmup_steps=2)
    rate = schedules.Sequential(schedule=[schedules.Fixed(1.0), plateau, schedules.Fixed(0.01)], steps=[3, 5]).rate
    assert [rate(t, 1) for t in range(9)] == pytest.approx([1, 1, 1, 0, 0.05, 0.1, 0.1, 0.1, 0.01])
    assert rate(5) == 0.2
