"""What follows from the values of evaluations."""

from __future__ import annotations

import json
import math

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.training.decisions import Decisions, Watch, reductions_in

FIXED = "updater { type: kSGD learning_rate { type: kFixed base_lr: 1 } }"
PLATEAU = """updater { type: kSGD learning_rate { type: kReduceOnPlateau base_lr: 1
    reduceonplateau_conf { factor: 0.5 patience: 2 min_lr: 0.25 } } }"""
EARLY = "early_stopping { patience: 3 min_delta: 0.5 }"
VALUES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, math.nan, math.inf, -math.inf]), max_size=20)


def decisions(text: str, freq: str = "validate_freq: 1") -> Decisions:
    return Decisions(text_format.Parse(f"{freq} {text}", JobProto()))


def feed(made: Decisions, losses, first: int = 0, **more):
    """The verdicts on these losses of the validation, one a step."""
    return [made.see(Phase.kVal, first + i, {"loss": loss, **more}) for i, loss in enumerate(losses)]


def test_a_run_ends_after_so_many_evaluations_in_a_row_without_an_improvement_of_more_than_min_delta():
    made = decisions(f"{FIXED} {EARLY}")
    losses = [9, 8, 7.5, 7.6, 7.4, 6, 6, 5.6]
    assert [verdict.ends for verdict in feed(made, losses)] == [False] * 8  # 7.4 is .6 below 8
    assert [verdict.ends for verdict in feed(made, [5.5, 3], first=8)] == [True, False]
    made = decisions(f"{FIXED} {EARLY}")
    assert [verdict.ends for verdict in feed(made, [9, 8.5, 8.6, 8.7])] == [False, False, False, True]
    assert made.reason == "early stopping: validate.loss has not improved since step 0"


@pytest.mark.parametrize(
    ("metric", "better", "worse"),
    [
        *((name, 1, 2) for name in ("loss", "mae", "rmse", "head.mse", "squared_error")),
        *((name, 2, 1) for name in ("accuracy", "r2", "f1", "auc")),
    ],
)
def test_the_name_of_a_metric_says_which_values_are_better(metric, better, worse):
    assert Watch(f"validate.{metric}", best=worse).see(better, 1)
    assert not Watch(f"validate.{metric}", best=better).see(worse, 1)


def test_a_value_that_is_not_a_number_is_never_the_best():
    watch = Watch("validate.loss")
    assert [watch.see(value, step) for step, value in enumerate([math.nan, 3.0, math.nan, 2.0])] == [0, 1, 0, 1]
    assert (watch.best, watch.step, watch.since) == (2.0, 3, 0)


def test_a_metric_without_a_value_decides_nothing_and_is_named_once():
    made = decisions(f'{FIXED} keep_best: "validate.auc" early_stopping {{ metric: "validate.auc" patience: 2 }}')
    told = []
    for step, value in enumerate([math.nan] * 5 + [0.5, math.nan, 0.4]):
        verdict = made.see(Phase.kVal, step, {"auc": value})
        told.append((verdict.improved, verdict.ends, made.undefined))
    assert told == [(False, False, ["validate.auc"]), *[(False, False, [])] * 4, (True, False, []),
                    (False, False, []), (False, True, [])]  # fmt: skip


def test_the_best_checkpoint_is_that_of_the_first_best_value():
    made = decisions(f'{FIXED} keep_best: "validate.accuracy"')
    values = [0.1, 0.5, 0.5, 0.4, 0.6]
    verdicts = [made.see(Phase.kVal, step, {"accuracy": value}) for step, value in enumerate(values)]
    assert [verdict.improved for verdict in verdicts] == [True, True, False, False, True]
    assert made.best == {"metric": "validate.accuracy", "value": 0.6, "step": 4}


def test_the_learning_rate_falls_again_after_as_many_evaluations_and_not_below_min_lr():
    made = decisions(PLATEAU)
    rates = []
    for step, loss in enumerate([5, 4, 4, 4, 4, 4, 3, 3, 3, 3, 3]):
        made.see(Phase.kVal, step, {"loss": loss})
        rates.append(made.rate(step))
    assert rates == [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25]
    assert made.reductions == 2  # more would change nothing


def test_an_evaluation_of_another_phase_decides_nothing():
    made = decisions(f'{FIXED} {EARLY} keep_best: "test.accuracy"', "validate_freq: 1 test_freq: 1")
    feed(made, [1, 1, 1])
    assert not any(made.see(Phase.kTest, step, {"accuracy": 0.5, "loss": 9}).ends for step in range(9))
    assert made.best == {"metric": "test.accuracy", "value": 0.5, "step": 0}
    assert made.see(Phase.kVal, 3, {"loss": 1}).ends
    assert made.phases == [Phase.kVal, Phase.kTest]


def test_the_test_decides_where_there_is_no_validation():
    made = decisions(f"{FIXED} {EARLY}", "test_freq: 5")
    assert made.phases == [Phase.kTest] and [made.see(Phase.kTest, step, {"loss": 1}).ends for step in range(4)] == [
        False,
        False,
        False,
        True,
    ]


def test_a_metric_that_the_net_does_not_measure_is_named_with_those_that_it_does():
    made = decisions(f'{FIXED} keep_best: "validate.acuracy"')
    made.check(Phase.kTest, ["loss"])
    with pytest.raises(ConfigError) as error:
        made.check(Phase.kVal, ["loss", "accuracy"])
    assert str(error.value) == (
        "keep_best: is not measured by this net. Received: validate.acuracy. "
        "Write one of: validate.loss, validate.accuracy."
    )
    with pytest.raises(ConfigError, match="is not measured"):
        made.see(Phase.kVal, 3, {"loss": 1.0})


@given(VALUES, st.integers(0, 20))
def test_a_resumed_run_decides_as_an_uninterrupted_one(losses, cut):
    """A checkpoint is written after an evaluation, which the resumed run repeats."""
    text = f'{PLATEAU} {EARLY} keep_best: "validate.loss"'
    whole, first = decisions(text), decisions(text)
    expected = feed(whole, losses)
    feed(first, losses[:cut])
    rest = decisions(text)
    rest.resume(json.loads(json.dumps(first.state)))
    again = max(0, min(cut, len(losses)) - 1)
    verdicts = feed(rest, losses[again:], first=again)
    assert [v.ends for v in verdicts] == [v.ends for v in expected[again:]]
    assert [v.improved for v in verdicts][1:] == [v.improved for v in expected[again:]][1:]
    assert rest.reductions == whole.reductions and str(rest.state) == str(whole.state)


def test_what_rests_on_another_metric_now_starts_anew():
    before, after = (
        decisions(f"{FIXED} {EARLY}"),
        decisions(f'{FIXED} early_stopping {{ metric: "validate.accuracy" }}'),
    )
    feed(before, [1, 1, 1])
    after.resume(before.state)
    assert after.see(Phase.kVal, 4, {"loss": 9, "accuracy": 0.1}) == (False, 0, False)
    more = decisions(f"{FIXED} early_stopping {{ patience: 5 }}")
    more.resume(before.state)
    assert [more.see(Phase.kVal, step, {"loss": 1}).ends for step in (3, 4, 5)] == [False, False, True]


def test_a_checkpoint_without_decisions_begins_anew():
    made = decisions(PLATEAU)
    made.resume({})
    assert made.reductions == reductions_in({}) == 0 and made.best is None


def test_a_plateau_in_a_sequence_is_reduced_only_in_its_own_steps():
    plateau = "schedule { type: kReduceOnPlateau base_lr: 1 reduceonplateau_conf { factor: 0.5 patience: 2 } }"
    fixed = "schedule { type: kFixed base_lr: 3 }"
    sequence = f"type: kSequential sequential_conf {{ {fixed} steps: 10 {plateau} }}"
    made = decisions(f"updater {{ type: kSGD learning_rate {{ {sequence} }} }}")
    assert [verdict.reductions for verdict in feed(made, [5, 6, 6, 6, 6])] == [0] * 5
    assert [verdict.reductions for verdict in feed(made, [6, 6, 6, 6], first=10)] == [0, 1, 1, 2]
    assert (made.rate(9), made.rate(13)) == (3, 0.25)
