"""What a prediction needs of jobs that have no test data."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.job.phases import for_predicting, missing_inputs, runs_in

REST = 'layer { name: "ip" srclayers: "data" }'


def net(layers):
    return text_format.Parse(f"{layers} {REST}", NetProto())


def read_in_test(message):
    (layer,) = [layer for layer in message.layer if layer.name == "data" and runs_in(layer, Phase.kTest)]
    return layer


@pytest.mark.parametrize(
    ("layers", "path"),
    [
        ('layer { name: "data" include: kTrain store_conf { path: "a" } }', "a"),
        ('layer { name: "data" exclude: [kTest, kVal] store_conf { path: "a" } }', "a"),
        (
            'layer { name: "data" include: kTrain store_conf { path: "a" } }'
            'layer { name: "data" include: kVal store_conf { path: "b" } }',
            "b",
        ),
    ],
)
def test_an_input_of_another_phase_stands_in_for_that_of_the_test(layers, path):
    given = net(layers)
    assert missing_inputs(given, Phase.kTest) == ["data"] and missing_inputs(given, Phase.kTrain) == []
    found = for_predicting(given)
    assert read_in_test(found).store_conf.path == path
    for phase in (Phase.kTrain, Phase.kVal):  # runs where it ran
        assert [runs_in(layer, phase) for layer in found.layer] == [runs_in(layer, phase) for layer in given.layer]


def test_a_test_input_that_was_not_prepared_has_shapes_and_numbers_of_training():
    given = net(
        'layer { name: "data" exclude: kTest store_conf { path: "a" shape: 3 target_shape: 1 mean: 2 target_std: 5 } }'
        'layer { name: "data" include: kTest store_conf { path: "b" normalise: true } }'
    )
    store = read_in_test(for_predicting(given)).store_conf
    assert (store.path, list(store.shape), list(store.target_shape)) == ("b", [3], [1])
    assert (list(store.mean), list(store.target_std), store.normalise) == ([2], [5], False)


def test_a_test_input_that_was_prepared_stays_as_it_is():
    given = net(
        'layer { name: "data" exclude: kTest store_conf { path: "a" shape: 3 mean: 2 } }'
        'layer { name: "data" include: kTest store_conf { path: "b" shape: 3 mean: 7 } }'
    )
    assert for_predicting(given) == given
