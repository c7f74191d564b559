"""A first job without the examples, in an empty folder."""


def test_a_first_job_file_is_written_and_trains(singa_dask, tmp_path):
    ran = singa_dask("new", "digits")
    assert ran.code == 0, ran.err
    assert "run `singa-dask train job.conf`" in ran.last_line
    ran = singa_dask("train", "job.conf", "--set", "train_steps=20", "--set", "test_freq=20")
    assert ran.code == 0, ran.err
    assert "test" in ran.last_line and (tmp_path / "runs").is_dir()
    ran = singa_dask("new", "digits")
    assert ran.code == 2 and "out: exists already. Received: job.conf." in ran.err
