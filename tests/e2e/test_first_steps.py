"""examples/heat by the commands that its users type, on few and small samples; a first job without the examples."""

from support.commands import ROOT, example, metrics, sets


def test_generate_shard_train(program, singa_dask, here, tmp_path, no_leaks):
    program(ROOT / "examples" / "heat" / "generate.py", "--out", "heat.h5", "--samples", 200, "--cells", 16)
    columns = ["--x", "x", "--target", "temperature", "--channels", "first"]
    here("shard", "hdf5", "--source", "heat.h5", *columns, "--test", 0.5, "--out", "shards/heat")
    singa_dask("train", example("heat"), *sets(train_steps=60, validate_freq=60, test_freq=60, checkpoint_freq=0))
    tests = [row for row in metrics(tmp_path / "runs" / "heat-allreduce") if row["phase"] == "test"]
    assert [row["step"] for row in tests] == [0, 60]
    assert tests[1]["loss"] < 0.7 * tests[0]["loss"]


def test_a_first_job_file_is_written_and_trains(here, tmp_path):
    assert "run `singa-dask train job.conf`" in here("new", "digits").last_line
    assert "test" in here("train", "job.conf", "--set", "train_steps=20", "--set", "test_freq=20").last_line
    assert (tmp_path / "runs").is_dir()
    assert "out: exists already. Received: job.conf." in here("new", "digits", code=2).err


def test_kernels_are_compiled_before_the_first_run(singa_dask, tmp_path):
    assert "2 of 2 free workers have compiled the kernels" in singa_dask("warm", example(), "--workers", 2).last_line
    assert not list((tmp_path / "runs").iterdir())
