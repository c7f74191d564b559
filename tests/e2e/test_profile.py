"""`singa-dask profile`: measured on a local cluster, kept, shown."""

import json
from functools import partial
from pathlib import Path

import pytest
from support.commands import run, run_here
from support.leaks import leaks_forbidden

from singa_dask.planning.profile import Profile


@pytest.mark.long
def test_a_profile_is_measured_kept_and_shown(environment, tmp_path):
    own_cache = environment | {"SINGA_DASK_CACHE": str(tmp_path / "cache")}  # other tests keep profiles in theirs
    here = partial(run_here, "profile", cwd=tmp_path, env=own_cache, code=0)
    ran = here("--show", code=2)
    assert "Run `singa-dask profile` without --show." in ran.err
    with leaks_forbidden():
        options = ("--workers", "2", "--budget", "2s", "--json", "profile.json")
        ran = run("profile", *options, cwd=tmp_path, env=own_cache, code=0)
    assert "all-reduce of 1 MB" in ran.out and "update of 1 MB" in ran.out and "GFLOP/s" in ran.out
    found = Profile.from_json((tmp_path / "profile.json").read_text())
    wanted = {"all_reduce machine 2", "barrier shared 2", "round_trip machine 1", "serve machine 1", "sum 1", "loop 2"}
    assert wanted <= found.curves.keys()
    kept = ran.last_line.partition("kept in ")[2]
    assert json.loads(Path(kept).read_text())["curves"].keys() == found.curves.keys()
    assert here("--show").out.splitlines()[:-1] == ran.out.splitlines()[:-1]
