"""Profiles as text: what is read back, and what is refused."""

import json

import pytest
from support.planned import mlp, profile_of

from singa_dask.errors import ConfigError
from singa_dask.planning.profile import Profile


def test_a_profile_is_read_as_it_was_written():
    profile = profile_of(mlp())
    assert Profile.from_json(profile.to_json()) == profile


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("curves",), []),
        (("curves", "sum 1", "points"), []),
        (("curves", "sum 1", "points"), [{"size": 1, "seconds": 1.0}, {"size": 1, "seconds": 2.0}]),
        (("curves", "sum 1", "points", 0, "size"), "a"),
        (("curves", "sum 1", "points", 0, "seconds"), float("nan")),
        (("curves", "sum 1", "points", 0, "cpu"), True),
        (("layers",), {}),
        (("layers", 0, "forward"), float("inf")),
        (("layers", 0, "work", "rows"), 1.5),
        (("layers", 0, "work", "kind"), None),
        (("cores",), "two"),
        (("cores",), 0),
        (("format",), 0),
    ],
)
def test_damaged_profiles_are_refused(path, value):
    data = json.loads(profile_of(mlp()).to_json())
    place = data
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(ConfigError, match=r"profile: is not a profile of this version.*Run `singa-dask profile`"):
        Profile.from_json(json.dumps(data))
