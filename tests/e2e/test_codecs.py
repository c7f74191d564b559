"""What goes over the wire, by the commands that users type."""

import pytest
from support.commands import cluster, example, metrics, sets, summary

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

STEPS = sets(train_steps=200, test_freq=200, test_steps=1, checkpoint_freq=0, disp_freq=200)


@pytest.fixture
def train(singa_dask, tmp_path):
    """The accuracy that a run with these options reaches, and its summary."""

    def run(name, strategy, *options):
        singa_dask("train", example(), "--cluster", cluster(strategy), "--workspace", name, *STEPS, *options)
        tests = [row for row in metrics(tmp_path / name) if row["phase"] == "test"]
        return tests[-1]["accuracy"], summary(tmp_path / name)

    return run


def test_codecs_save_bytes_and_train(train, no_leaks):
    accuracy, full = train("full", "allreduce")
    for name, share, options in (
        ("half", 0.55, sets(cluster__codec="kHalf")),
        ("topk", 0.2, sets(cluster__codec="kTopK", cluster__sparsity=0.05, cluster__bucket_size=4096)),
    ):
        reached, found = train(name, "allreduce", *options)
        assert reached > accuracy - 0.03
        # The initial parameters and the small agreement of every step are as they were.
        assert found["exchanged_bytes"] < share * full["exchanged_bytes"]
        assert found["overflows"] == 0


def test_pushes_to_servers_are_coded(train, no_leaks):
    _, full = train("full", "downpour", *sets(train_steps=10, test_freq=10))  # bytes are of a step
    reached, half = train("half", "downpour", *sets(cluster__codec="kHalf"))
    assert reached > 0.9
    for group in ("0", "1"):
        sent = [run["groups"][group]["server"]["bytes"] for run in (half, full)]
        assert sent[0] == pytest.approx(0.75 * sent[1], rel=0.05)  # of gradients half, of parameters all
