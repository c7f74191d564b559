"""Fixtures for every test."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from support.commands import Ran, run_here
from support.leaks import leaks_forbidden
from support.special_files import precious

# A shell starts its background jobs with SIGINT ignored, and the commands that tests interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine takes longer, which is no failure: pytest's time limit ends what hangs.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("tests", patient)
settings.load_profile("tests")
# A failure is enough for `make mutants`: do not search for a smaller example.
settings.register_profile(
    "mutants",
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
    database=None,
    parent=settings.get_profile("tests"),
)


def pytest_configure(config: pytest.Config) -> None:
    """Where a report is written, it has the costs of the tests."""
    if config.option.xmlpath:
        from support.costs import Costs

        config.pluginmanager.register(Costs())


@pytest.fixture(scope="session", autouse=True)
def own_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Code that tests keep is signed with a key of the session, not with that of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of which another user would like to be rid."""
    return precious(tmp_path / "victim")


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """The test leaves no process and no shared-memory segment."""
    with leaks_forbidden():
        yield


@pytest.fixture
def here(tmp_path: Path) -> Callable[..., Ran]:
    """Run a command in this process and in the test's folder."""
    return partial(run_here, cwd=tmp_path, env={**os.environ, "SINGA_DASK_CACHE": str(tmp_path / "cache")})
