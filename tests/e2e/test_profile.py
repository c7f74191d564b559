"""`singa-dask profile`: measured on a local cluster, kept, shown."""

import json
from functools import partial
from pathlib import Path

import pytest
from support.commands import run
from support.leaks import leaks_forbidden

from singa_dask.planning.profile import Profile


@pytest.mark.long
def test_a_profile_is_measured_kept_and_shown(environment, tmp_path):
    own_cache = environment | {"SINGA_DASK_CACHE": str(tmp_path / "cache")}  # other tests keep profiles in theirs
    singa_dask = partial(run, cwd=tmp_path, env=own_cache)
    ran = singa_dask("profile", "--show")
    assert ran.code == 2 and "Run `singa-dask profile` without --show." in ran.err
    with leaks_forbidden():
        ran = singa_dask("profile", "--workers", "2", "--budget", "2s", "--json", "profile.json")
    assert ran.code == 0, ran.err
    assert "all-reduce of 1 MB" in ran.out and "update of 1 MB" in ran.out and "GFLOP/s" in ran.out
    found = Profile.from_json((tmp_path / "profile.json").read_text())
    wanted = {"all_reduce machine 2", "barrier shared 2", "round_trip machine 1", "serve machine 1", "sum 1", "loop 2"}
    assert wanted <= found.curves.keys()
    kept = ran.last_line.partition("kept in ")[2]
    assert json.loads(Path(kept).read_text())["curves"].keys() == found.curves.keys()
    shown = singa_dask("profile", "--show")
    assert shown.code == 0, shown.err
    assert shown.out.splitlines()[:-1] == ran.out.splitlines()[:-1]
