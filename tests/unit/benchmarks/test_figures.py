"""Figures of the README and of docs/ are those of the records: a change by hand of either is noticed."""

import json
import re
import shutil

import pytest
from click.testing import CliRunner
from support.programs import ROOT, imported, program

figures = program("figures", "benchmarks")
RECORD = {
    "machine": {"cpu": "Example", "cores": 2},
    "date": "2026-11-28",
    "commit": "01234567",
    "step": [
        {"net": "mlp", "threads": 1, "ms": 12.34, "share": 0.082, "quartiles": [11.5, 13.0], "missing": None},
        {"net": "cnn", "threads": 1, "ms": 1234.5, "share": 0.5, "quartiles": [1000.0, 1300.0]},
        {"net": "mlp", "threads": 2, "ms": 7.0, "share": 0.25, "quartiles": [6.0, 8.0]},
    ],
    "names": {"mlp": {"long": "perceptron"}, "cnn": {"long": "convolutions"}},
}
PAGE = """# Page

A step of the MLP takes <!--= {step-a/step[net=mlp][threads=1]/ms:.1f} ms -->12.3 ms<!--/-->, of
which <!--= {max step-*/step/share:.0%} -->50 %<!--/--> is waiting.

<!--=
| net | ms |
|---|---|
each step-a/step[threads=1]: | {.net} | {.ms:,.0f} |
-->

| net | ms |
|---|---|
| mlp | 12 |
| cnn | 1,234 |

Measured: `step-a.json` (Example, 2 cores; 2026-11-28, commit 01234567).

<!--/-->
"""


@pytest.fixture
def project(tmp_path):
    """A folder with a record and two pages."""
    for folder in ("docs", "examples", "benchmarks/results"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "benchmarks/results/step-a.json").write_text(json.dumps(RECORD))
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "examples/README.md").write_text("# Examples\n")
    return tmp_path


def run(figures, project, *options):
    """The exit status and the messages of the command."""
    done = CliRunner().invoke(figures.main, [*options, "--root", str(project)])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.output


def records(figures, project):
    return figures.Records(project / "benchmarks/results")


def test_the_command_accepts_a_page_with_the_figures_of_its_records(figures, project):
    assert run(figures, project, "--check") == (0, "")
    assert run(figures, project) == (0, "")
    assert (project / "README.md").read_text() == PAGE


@pytest.mark.parametrize(("has", "other"), [("12.3 ms<", "12.4 ms<"), ("50 %", "51 %"), ("| 12 |", "| 13 |")])
def test_a_figure_that_is_changed_by_hand_fails_the_check_and_is_mended(figures, project, has, other):
    page = project / "README.md"
    page.write_text(PAGE.replace(has, other))
    status, message = run(figures, project, "--check")
    assert status == 1 and "README.md: run make figures" in message and other in message and has in message
    assert page.read_text() != PAGE
    assert run(figures, project) == (0, "")
    assert page.read_text() == PAGE


@pytest.mark.parametrize("row", [0, 1])
def test_a_changed_record_fails_the_check(figures, project, row):
    record = json.loads(json.dumps(RECORD))
    record["step"][row]["ms"] += 1
    (project / "benchmarks/results/step-a.json").write_text(json.dumps(record))
    assert run(figures, project, "--check")[0] == 1


def test_every_mark_of_the_real_pages_is_written_from_its_record(figures):
    """All digits of all marks are changed; what comes back is the page as it is."""
    of_all, marks = figures.Records(ROOT / "benchmarks/results"), 0
    for page, due in figures.renewed(ROOT)[0].items():
        text = page.read_text()

        def changed(match):
            return match[0][: match.start(2) - match.start()] + re.sub(r"\d", "7", match[2]) + "<!--/-->"

        broken, found = figures._MARK.subn(changed, text)
        marks += found
        assert (broken == text) == (found == 0)
        assert figures.written(of_all, broken)[0] == text == due
    assert marks > 50


def test_a_number_changed_in_a_real_page_or_a_real_record_fails_the_check(figures, tmp_path):
    for name in ("README.md", "docs", "examples/README.md", "benchmarks/results"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    assert run(figures, tmp_path, "--check") == (0, "")
    record = tmp_path / "benchmarks/results/plan-2cores-intel.json"
    text = record.read_text()
    for path, old, new in (
        (tmp_path / "README.md", "8.2 %", "8.1 %"),
        (record, '"median": 0.0823', '"median": 0.0923'),
    ):
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))
        status, message = run(figures, tmp_path, "--check")
        assert status == 1 and "README.md: run make figures" in message
        path.write_text(text)
    assert run(figures, tmp_path, "--check") == (0, "")


@pytest.mark.parametrize(
    ("reference", "due"),
    [
        ("step-a/step[net=cnn]/ms:,.1f", "1,234.5"),
        ("min step-a/step/ms:g", "7"),
        ("sum step-a/step[threads=1]/ms:.2f", "1246.84"),
        ("median step-*/step/ms:.2f", "12.34"),
        ("count step-a/step[net=mlp]", "2"),
        ("step-a/step/0/quartiles/1:.1f", "13.0"),
        ("step-a/names/cnn/long", "convolutions"),
        ("step-a/machine/cores", "2"),
        (".net", "mlp"),
        (".quartiles/0:.1f", "11.5"),
        ("step-a/step[net=.net][threads=2]/share:+.1%", "+25.0 %"),
    ],
)
def test_references(figures, project, reference, due):
    assert figures.figure(records(figures, project), reference, RECORD["step"][0]) == due


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{step-b/step/0/ms}", "no record step-b.json"),
        ("{step-a/step[net=rnn]/ms}", "nothing at step-a/step[net=rnn]/ms"),
        ("{step-a/step/0/seconds}", "nothing at"),
        ("{step-a/step/7/ms}", "nothing at"),
        ("{step-a/step/ms}", "has 3 values; select one, or use min, max"),
        ("{step-a/step/0/missing}", "is not a figure, but null"),
        ("{step-a/step/0/quartiles}", "is not a figure, but [11.5"),
        ("{step-a/step/0/net:.1f}", "Unknown format code"),
    ],
)
def test_references_without_one_figure_are_errors(figures, project, template, message):
    (project / "README.md").write_text(f"It takes <!--= {template} -->5<!--/--> ms.\n")
    status, said = run(figures, project)
    assert status == 1 and message in said
    assert "-->5<!--/-->" in (project / "README.md").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!--= {step-a/step/0/ms:.1f} -->12.3<!--/--> ms\n", "begins a line"),
        ("It takes <!--= {step-a/step/0/ms:.1f} -->12.3 ms\n", "is not closed"),
        ("It takes 12.3<!--/-->\n", "is not closed by <!--/-->, or not opened"),
    ],
)
def test_marks_that_markdown_or_the_command_would_misread_are_errors(figures, project, text, message):
    (project / "README.md").write_text(text)
    status, said = run(figures, project)
    assert status == 1 and message in said
    assert (project / "README.md").read_text() == text


def test_what_a_benchmark_begins_its_record_with_is_what_a_table_needs(figures, project):
    with imported("tools.report", "benchmarks") as report:
        record = report.begun(rounds=9) | {"step": RECORD["step"]}
    (project / "benchmarks/results/step-a.json").write_text(json.dumps(record))
    assert run(figures, project) == (0, "")
    (line,) = [line for line in (project / "README.md").read_text().splitlines() if line.startswith("Measured: ")]
    cpu, day = re.escape(record["machine"]["cpu"]), r"\d{4}-\d\d-\d\d"
    assert re.fullmatch(
        rf"Measured: `step-a.json` \({cpu}, \d+ cores?; {day}, commit [0-9a-f]{{8,}}\+?, 9 rounds\)\.", line
    )


@pytest.mark.parametrize("lacking", ["machine", "date", "commit"])
def test_a_table_needs_to_know_on_what_and_when_its_records_were_measured(figures, project, lacking):
    record = {key: value for key, value in RECORD.items() if key != lacking}
    (project / "benchmarks/results/step-a.json").write_text(json.dumps(record))
    status, said = run(figures, project)
    assert status == 1 and f"step-a.json lacks '{lacking}'" in said


def test_code_blocks_may_show_marks(figures, project):
    text = "Write:\n\n```\n<!--= {nowhere} -->5 ms<!--/-->\n```\n"
    assert figures.written(records(figures, project), text) == (text, [])
    assert figures.unmarked(text, {}) == []


@pytest.mark.parametrize(
    "text",
    [
        "It takes 14 ms.",
        "~20 µs",
        "10,997 samples/s",
        "3 steps per second",
        "2 GB/s",
        "is 2.9 times as fast",
        "costs 1.3 % more",
        "33 % faster",
        "is twice as fast",
        "half the time",
        "after 0.8 s",
        "takes about 30 seconds",
        "took 5 minutes",
        "accuracy of .9864",
        "accuracy of 0.986",
        "| mlp | 63.5 | 80.5 |",
        "3x faster",
        "hundreds of times slower",
        "four times as long",
    ],
)
def test_what_reads_like_a_measurement_needs_a_mark(figures, text):
    (first, *_) = figures.unmarked(f"# Page\n\n{text}\n", {})
    assert first.startswith("line 3: ") and "has no record" in first
    assert figures.unmarked(f"See <!--= {{a/b}} -->{text}<!--/-->\n", {}) == []
    assert figures.unmarked(f"```\n{text}\n```\n", {}) == []


@pytest.mark.parametrize(
    "text",
    [
        "It waits 30 s.",
        "at 1 Gbit/s",
        "48 MB of parameters",
        "`base_lr: 0.0001`",
        "three times",
        "| 12 | 3 |",
        "2026.8.1",
    ],
)
def test_settings_and_sizes_need_no_mark(figures, text):
    assert figures.unmarked(f"{text}\n", {}) == []


def test_exemptions_hold_for_their_words_alone_and_must_be_needed(figures):
    assert figures.unmarked("polls every 20 ms\n", {"every 20 ms": "a constant"}) == []
    assert len(figures.unmarked("polls every 20 ms, which took 20 ms\n", {"every 20 ms": "a constant"})) == 1
    assert len(figures.unmarked("at least 5 %, 25 % in the worst case\n", {"5 %": "a rule"})) == 1
    assert figures.unmarked("polls\n", {"every 20 ms": "a constant"}) == ["exempt, but not there: 'every 20 ms'"]
