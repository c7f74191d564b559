"""Early stopping, the best checkpoint and learning rates on a plateau, by the commands that users type."""

import re

from support.commands import cluster, example, metrics, sets, summary

from singa_dask.training import checkpoint as checkpoints

# Nothing is an improvement of more than 100: the run ends at the third evaluation.
EARLY = sets(
    train_steps=5000,
    disp_freq=0,
    test_freq=20,
    test_steps=0,
    checkpoint_freq=0,
    early_stopping__patience=2,
    early_stopping__min_delta=100,
    keep_best='"test.accuracy"',
)
REDUCE = [
    "--set",
    "updater.learning_rate.type=kReduceOnPlateau",
    "--set",
    "updater.learning_rate.reduceonplateau_conf.min_delta=100",
    "--set",
    "updater.learning_rate.reduceonplateau_conf.patience=1",
]


def test_a_run_that_no_longer_improves_ends_early_in_all_groups(singa_dask, here, tmp_path, no_leaks):
    ran = singa_dask("train", example(), "--cluster", cluster("downpour"), *EARLY, *REDUCE, "--workspace", "w")
    why = "early stopping: test.loss has not improved since step 0"
    told = summary(tmp_path / "w")
    assert (told["status"], told["step"], told["ended_early"], told["stopped_by"]) == ("completed", 40, why, None)
    assert f"done at step 40; {why}; test " in ran.out
    assert re.search(r"; best test\.accuracy 0\.\d+ at step \d+;", ran.out)
    assert f"step   40/5000  {why}" in ran.out and "learning rate reduced to" in ran.out
    assert [group["step"] < 5000 for group in told["groups"].values()] == [True, True]
    assert told["checkpoint"] == str(tmp_path / "w/checkpoint/step-00000040.h5")
    saved = checkpoints.load(tmp_path / "w/checkpoint/step-00000040.h5")
    assert saved.decisions["reductions"] == 2
    rows = [row for row in metrics(tmp_path / "w") if row["phase"] == "test"]
    best = max(rows, key=lambda row: (row["accuracy"], -row["step"]))
    path = tmp_path / "w/checkpoint/best.h5"
    assert told["best"]["step"] == best["step"] and told["best"]["checkpoint"] == str(path)
    tested = here("test", example(), "--checkpoint", path, *sets(test_steps=0))
    assert f"accuracy {told['best']['value']:.4f}" in tested.out, tested.out
    assert round(told["best"]["value"] * 359, 4).is_integer(), "the test set of the digits has 359 samples"
