"""How a net was trained to read samples, and how they are read when its training goes on: a table of changes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from singa_dask import Classifier, Job, Regressor, layers, shard, train, updaters
from singa_dask.cli import main
from singa_dask.errors import CheckpointError, ConfigError
from singa_dask.job import job_to_text

DRAW = np.random.default_rng(0)
N = 40
FIELDS = {"wind": DRAW.normal(3, 2, (N, 4)), "heat": DRAW.normal(9, 4, (N, 4))}
ANSWERS = {"sum": FIELDS["wind"].sum(axis=1) + 5, "last": FIELDS["heat"][:, -1] * 2}
READ = {"column": "wind", "label": "sum", "normalise": True, "normalise_target": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readings")
    shard(FIELDS, ANSWERS, folder / "shards")
    train(job(folder), processes=False, workspace=folder / "run", curves=False)
    return folder


def job(folder, steps=4, starts=(), **read):
    data = layers.RecordInput("data", batchsize=8, **({"path": str(folder / "shards")} | READ | read))
    net = [data, layers.InnerProduct("out", num_output=1), layers.EuclideanLoss()]
    made = Job(name="j", layers=net, updater=updaters.SGD(lr=0.01), train_steps=steps, seed=1)
    made.proto.checkpoint_path[:] = starts
    return made


def numbers(of):
    return {"mean": of.mean(axis=0).tolist(), "std": of.std(axis=0).tolist()}


FIXED = numbers(FIELDS["wind"])
OTHERS = {
    "no normalisation": ({"normalise": False}, "mean is 0, and was ["),
    "no normalisation of targets": ({"normalise_target": False}, "target_std is 1, and was"),
    "other numbers": ({"normalise": False, "mean": [3.0], "std": [2.0]}, "mean is 3, and was ["),
    "a single number": ({"normalise": False, "mean_value": 3, "std_value": 2}, "std is 2, and was ["),
    "another column": ({"column": "heat"}, "column is 'heat', and was 'wind'"),
    "another target": ({"label": "last"}, "label is 'last', and was 'sum'"),
    "another shape": ({"shape": [1, 2, 2]}, "shape is [2, 2, 1], and was 4"),
}
SAME = {
    "nothing": {},
    "the shape that it has": {"shape": [4]},
    "the numbers of the run": None,
}


@pytest.mark.parametrize("change", OTHERS)
def test_a_run_resumes_only_with_samples_that_are_read_alike(folder, change):
    read, told = OTHERS[change]
    with pytest.raises(CheckpointError, match="reads otherwise: in store_conf of layer 'data'") as e:
        train(job(folder, 6, **read), processes=False, workspace=folder / "run", curves=False, resume=True)
    assert told in str(e.value) and "job.conf says, or start from its parameters in another workspace" in str(e.value)


@pytest.mark.parametrize("same", SAME)
def test_equal_readings_in_other_words_resume(folder, tmp_path, same):
    read = SAME[same]
    first = train(job(folder), processes=False, workspace=tmp_path / "run", curves=False)
    if read is None:
        store = Job.from_file(tmp_path / "run" / "job.conf").proto.neuralnet.layer[0].store_conf
        read = {name: list(getattr(store, name)) for name in ("mean", "std", "target_mean", "target_std")}
        read |= {"normalise": False, "normalise_target": False}
    found = train(job(folder, 6, **read), processes=False, workspace=tmp_path / "run", curves=False, resume=True)
    assert (first.summary["step"], found.summary["step"]) == (4, 6)


def of_other_samples(folder):
    shard({name: values + 1 for name, values in FIELDS.items()}, ANSWERS, folder / "others", overwrite=True)
    return {"path": str(folder / "others")}


@pytest.mark.parametrize(("changes", "told"), [(False, ""), (True, "mean is [")])
def test_new_samples_are_normalised_with_their_own_numbers_which_is_told(folder, tmp_path, capsys, changes, told):
    read = of_other_samples(tmp_path) if changes else {}
    train(job(folder, starts=[str(folder / "run")], **read), processes=False, workspace=tmp_path / "run", curves=False)
    said = [line for line in capsys.readouterr().out.splitlines() if "with another normalisation" in line]
    assert len(said) == changes
    assert not changes or (told in said[0] and "and was [" in said[0] and "The numbers of this job count" in said[0])


def test_so_are_those_of_a_job_file_that_is_tested(folder, tmp_path, caplog):
    file = tmp_path / "job.conf"
    for read, told in (({}, False), ({"normalise_target": False}, True)):
        file.write_text(job_to_text(job(folder, **read).proto))
        assert not CliRunner().invoke(main, ["test", str(file), "--checkpoint", str(folder / "run")]).exit_code
        assert ("target_std is 1, and was" in caplog.text) == told


@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_partial_fit_goes_on_with_the_same_parameters(kind):
    x, y = FIELDS["wind"], (ANSWERS["sum"] > 17) * 1
    first = {"classes": [0, 1]} if kind is Classifier else {}
    net = kind([layers.InnerProduct(num_output=2 if first else 1)], random_state=0).partial_fit(x, y, **first)
    for name, value in {"normalise": False, "missing": "mean", "channels": "last"}.items():
        before = getattr(net, name)
        with pytest.raises(ConfigError, match=rf"{name}: is other than in the earlier call.*set_params\({name}="):
            net.set_params(**{name: value}).partial_fit(x, y)
        net.set_params(**{name: before})
    net.set_params(learning_rate=0.1).partial_fit(x, y)
    net.set_params(normalise=False, epochs=1).fit(x, y)


@pytest.mark.parametrize(("changes", "told"), [("features", "b, a"), ("classes", "lo, hi")])
def test_parameters_are_not_taken_for_the_same_features_or_classes_in_another_order(changes, told, tmp_path):
    frame = pd.DataFrame({"a": DRAW.normal(size=N), "b": DRAW.normal(size=N)})
    classes = np.where(frame["a"] > 0, "hi", "lo")
    shard(frame, classes, tmp_path / "first")
    if changes == "features":
        shard(frame[["b", "a"]], classes, tmp_path / "others")
    else:
        shard(frame, classes, tmp_path / "others", classes=["lo", "hi"])

    def run(path, name, starts=()):
        net = [layers.RecordInput(path=str(path), batchsize=8), layers.InnerProduct("out", num_output=2)]
        made = Job(name="j", layers=[*net, layers.SoftmaxLoss()], updater=updaters.SGD(lr=0.01), train_steps=1)
        made.proto.checkpoint_path[:] = starts
        train(made, processes=False, workspace=tmp_path / name, curves=False)

    run(tmp_path / "first", "run")
    run(tmp_path / "first", "again", [str(tmp_path / "run")])
    with pytest.raises(CheckpointError, match=f"with the {changes} .* have them in another order, {told}"):
        run(tmp_path / "others", "other", [str(tmp_path / "run")])
