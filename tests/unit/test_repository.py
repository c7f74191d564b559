"""What the files around the package say agrees with each other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.programs import program

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def recipe(target: str) -> list[str]:
    """The commands of a target."""
    (body,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in body.splitlines()]


def test_commits_are_checked_by_what_make_check_runs():
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["entry"] for hook in repo["hooks"]] == recipe("check")
    assert all(hook["language"] == "system" and not hook["pass_filenames"] for hook in repo["hooks"])


def test_the_hosting_service_runs_what_ci_is():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert job["steps"][-1] == {"run": ".ci/run"}
    (minimum,) = re.findall(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert job["strategy"]["matrix"]["python"][0] == minimum
    (stages,) = re.findall(r"^for stage in (.*); do$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert stages.split() == ["setup", "check", "test-unit", "test-runs", "simulate-ci", "gpu-check"]
    assert job["timeout-minutes"] == 25, "the standing budget, which may grow to this"


def test_ci_says_how_long_each_stage_took_until_one_fails_and_where_a_process_crashed(tmp_path):
    stub = tmp_path / "make"
    stub.write_text("#!/bin/sh\n[ $1 != test-runs ] || ! echo ..Fatal Python error: Aborted\n")
    stub.chmod(0o755)
    ran = subprocess.run(
        ROOT / ".ci/run", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True, text=True, timeout=20
    )
    lines = re.sub(r"\d+ s", "N s", ran.stdout).splitlines()
    crash, code = "..Fatal Python error: Aborted", "exit code"
    ended = [f"stage test-unit: N s, {code} 0", crash, f"stage test-runs: N s, {code} 1", crash, "stage total: N s"]
    assert lines[2:] == ended
    assert ran.returncode == 1


def test_contributing_names_targets_and_files_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
    paths = re.findall(r"`((?:singa_dask|tests|docs|datasets|benchmarks|examples)/[\w/.-]*)`", text)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("target", sorted(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE)))
def test_every_target_with_a_help_is_phony(target):
    assert target in re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[0].split()


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples/README.md", *sorted(ROOT.glob("docs/**/*.md"))]
links = program("links", "site")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_link_to_pages_and_headings_that_exist(page, links):
    assert links.broken(page) == []


def test_the_menu_of_the_site_has_every_page(links):
    menu = re.findall(r": ([\w./-]+\.md)$", (ROOT / "site/mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(menu) == sorted(links.pages.name(path) for path in links.pages.all_pages())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_modules_that_exist(page):
    paths = re.findall(r"`((?:\w+/)+\w+\.py)\b", page.read_text())
    assert [path for path in paths if not ((ROOT / path).exists() or (ROOT / "singa_dask" / path).exists())] == []


def test_every_folder_of_the_package_is_a_package():
    folders = {path.parent for path in (ROOT / "singa_dask").rglob("*.py")}
    assert [folder.name for folder in folders if not (folder / "__init__.py").exists()] == []


def test_text_is_written_and_read_as_utf_8_in_any_locale():
    command = [sys.executable, "-m", "ruff", "check", "--select", "PLW1514", "--preview", ROOT / "singa_dask"]
    subprocess.run(command, check=True, timeout=60)


def test_the_pages_have_the_figures_of_the_records():
    ran = subprocess.run(
        [sys.executable, "benchmarks/figures.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ".venv/bin/python benchmarks/figures.py --check" in recipe("check")
