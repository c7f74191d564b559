"""Names that a job gives: what becomes the name of a file or a key of checkpoints must suit them."""

from __future__ import annotations

import pytest

from singa_dask.job import load_job


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("x" * 5000, "must have at most 200 bytes"),
        ("x" * 201, "must have at most 200 bytes"),
        ("ü" * 101, "must have at most 200 bytes"),
        ("a\0b", "must not contain control characters"),
        ("a\x1b]0;x\x07", "must not contain control characters"),
        ("two\nlines", "must not contain control characters"),
    ],
)
def test_the_name_of_a_job_is_that_of_a_folder(good, problems_of, name, says):
    job = load_job(good)
    job.name = name
    (problem,) = problems_of(job)
    assert problem.key == "name" and says in problem.message
    assert problem.hint == "Rename the job." and len(str(problem)) < 300
    job.name = "x" * 200
    assert not problems_of(job)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (".", "must not have . or .. between slashes"),
        ("..", "must not have . or .. between slashes"),
        ("../../w", "must not have . or .. between slashes"),
        ("block/./w", "must not have . or .. between slashes"),
        ("/w", "must not begin or end with a slash"),
        ("block/", "must not begin or end with a slash"),
        ("block//w", "must not have two slashes in a row"),
        ("a\0b", "must not contain control characters"),
        ("a\x9bb", "must not contain control characters"),
        ("w" * 5000, "must have at most 200 bytes"),
    ],
)
@pytest.mark.parametrize("of", ["parameter", "layer"])
def test_names_of_layers_and_parameters_are_keys_of_checkpoints(good, problems_of, of, name, says):
    job = load_job(good)
    layer = job.neuralnet.layer[2]
    if of == "layer":
        layer.name = name
        job.neuralnet.layer[3].srclayers[0] = name
    else:
        layer.param[0].name = name
    (problem,) = problems_of(job)
    assert problem.key.endswith("name" if of == "layer" else "param[0].name") and says in problem.message
    assert problem.hint and len(str(problem)) < 300


def test_a_parameter_does_not_lie_in_another_one(good, problems_of):
    job = load_job(good)
    conv = job.neuralnet.layer[2]
    conv.param[0].name, conv.param[1].name = "conv/w", "conv/w/bias"
    (problem,) = problems_of(job)
    assert "'conv/w' is a parameter, and so cannot be a folder of them" in problem.message
    conv.param[1].name = "conv/b"
    assert not problems_of(job)


@pytest.mark.timeout(5, method="signal")
@pytest.mark.parametrize("length", [10**9, 2**31 - 1])
@pytest.mark.parametrize("kind", ["", "unroll_conn_type: kUnrollOneToAll"])
def test_nets_of_absurdly_many_time_steps_are_refused(good, problems_of, length, kind):
    text = good.replace('"relu1" type: kReLU', f'"relu1" unroll_len: {length} {kind} type: kReLU')
    (problem, *_) = problems_of(load_job(text))
    assert problem.key == "neuralnet.layer[relu1].unroll_len" and problem.received == str(length)
    assert "must be from 1 to " in problem.message
