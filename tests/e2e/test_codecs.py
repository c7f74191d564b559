"""What goes over the wire, by the commands that users type."""

import pytest
from support.commands import cluster, example, metrics, sets, summary

STEPS = sets(train_steps=200, test_freq=200, test_steps=1, checkpoint_freq=0, disp_freq=200)


def train(singa_dask, folder, framework, *options):
    ran = singa_dask("train", example(), "--cluster", cluster(framework), "--workspace", folder, *STEPS, *options)
    assert ran.code == 0, ran.err
    found = summary(folder)
    return next(row for row in reversed(metrics(folder)) if row["phase"] == "test")["accuracy"], found


@pytest.mark.long
@pytest.mark.timeout(180)
def test_codecs_save_bytes_and_train(singa_dask, tmp_path, no_leaks):
    accuracy, full = train(singa_dask, tmp_path / "full", "allreduce")
    for name, share, options in (
        ("half", 0.55, sets(cluster__codec="kHalf")),
        ("topk", 0.2, sets(cluster__codec="kTopK", cluster__sparsity=0.05, cluster__bucket_size=4096)),
    ):
        reached, found = train(singa_dask, tmp_path / name, "allreduce", *options)
        assert reached > accuracy - 0.03
        # The initial parameters and the small agreement of every step are as they were.
        assert found["exchanged_bytes"] < share * full["exchanged_bytes"]
        assert found["overflows"] == 0


@pytest.mark.long
def test_pushes_to_servers_are_coded(singa_dask, tmp_path, no_leaks):
    _, full = train(
        singa_dask, tmp_path / "full", "downpour", *sets(train_steps=10, test_freq=10)
    )  # bytes are of a step
    reached, half = train(singa_dask, tmp_path / "half", "downpour", *sets(cluster__codec="kHalf"))
    assert reached > 0.9
    for group in ("0", "1"):
        sent = [run["groups"][group]["server"]["bytes"] for run in (half, full)]
        assert sent[0] == pytest.approx(0.75 * sent[1], rel=0.05)  # of gradients half, of parameters all


def test_a_codec_without_its_setting_is_refused(singa_dask):
    ran = singa_dask("check", example(), *sets(cluster__nworkers_per_group=2, cluster__codec="kTopK"))
    assert ran.code == 2
    assert "cluster.sparsity: must be given for kTopK" in ran.err
    ran = singa_dask("check", example(), *sets(cluster__codec="kTopk"))
    assert ran.code == 2
    assert "Did you mean kTopK?" in ran.err


def test_a_codec_under_hogwild_is_refused(singa_dask):
    ran = singa_dask("check", example(), "--cluster", cluster("hogwild"), *sets(cluster__codec="kHalf"))
    assert ran.code == 2
    assert "cluster.codec: has nothing to code" in ran.err and "Leave codec out" in ran.err
