"""`--help` of all commands, and completion of a shell."""

from __future__ import annotations

import shlex

import click
import pytest
from click.testing import CliRunner

from singa_dask.cli import COMPLETION, main
from singa_dask.cli.strategy import StrategyOptions

COMMANDS = sorted(main.commands)


def text_of(*args: str) -> str:
    done = CliRunner().invoke(main, [*args, "--help"], terminal_width=80)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_every_command_is_in_one_section_with_a_whole_summary():
    assert sorted(name for names in main.sections.values() for name in names) == COMMANDS
    text = text_of()
    assert [line[:-1] for line in text.splitlines() if line[:-1] in main.sections] == [*main.sections]
    for name, command in main.commands.items():
        summary = command.get_short_help_str(100)
        assert f"  {name} {' ' * (max(map(len, COMMANDS)) - len(name))} {summary}\n" in text
        assert summary.endswith(".") and "..." not in summary


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_is_a_command_line_that_is_parsed(name):
    command, text = main.commands[name], text_of(name)
    assert command.examples
    for what, line in command.examples:
        program, called, *args = shlex.split(line)
        assert (program, called) == ("singa-dask", name) and what.endswith(":") and f"    $ {line}\n" in text
        with command.make_context(name, args) as context:
            assert context.params


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained_and_defaults_are_shown(name):
    command, text = main.commands[name], text_of(name)
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help[0].isupper() or ": " in option.help, option.name
            assert option.help.rstrip("]").endswith((".", ")")) or "[default: " in option.help, option.name
            assert "workspace" not in option.help
    assert "RANGE" not in text


@pytest.mark.parametrize("name", ["attach", "audit", "test", "predict", "export", "stop", "join", "leave"])
def test_a_run_is_called_run(name):
    assert any(parameter.name == "run" for parameter in main.commands[name].params)
    assert "RUN is the folder" in text_of(name)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("singa-dask exp", ["plain,export"]),
        ("singa-dask audit dig", ["plain,digits-allreduce", "plain,digits-downpour", "file,dig"]),
        ("singa-dask train job.conf --strategy s", ["plain,sandblaster"]),
    ],
)
def test_a_shell_completes(words, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("digits-downpour", "digits-allreduce", "mnist"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "job.conf").touch()
    count = str(len(words.split()) - 1)
    environment = {COMPLETION: "bash_complete", "COMP_WORDS": words, "COMP_CWORD": count}
    done = CliRunner().invoke(main, [], env=environment, prog_name="singa-dask")
    assert done.stdout.splitlines() == expected
    script = CliRunner().invoke(main, [], env={COMPLETION: "zsh_source"}, prog_name="singa-dask")
    assert "#compdef singa-dask" in script.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["predict", "nofolder"], "there is no nofolder or runs/nofolder; expected the folder of a run, its name in"),
        (["audit", "nofolder"], "there is no nofolder or runs/nofolder; expected the folder of a run, or its name in"),
        (["audit", "."], ". has no job.conf; expected the folder of a run"),
        (["test", "runs/x"], "there is no runs/x; expected the folder of a run"),
        (["test", "digit-allreduce"], "Did you mean digits-allreduce?"),
    ],
)
def test_what_is_no_run_is_said_to_be_none(args, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "digits-allreduce").mkdir(parents=True)
    (tmp_path / "runs" / "digits-allreduce" / "job.conf").touch()
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 2 and says in done.stderr and "job file: file not found" not in done.stderr


@pytest.mark.parametrize(
    ("wanted", "strategy", "workers", "servers"),
    [
        (StrategyOptions(workers=4), "ALLREDUCE", (1, 4), (1, 4)),
        (StrategyOptions("allreduce"), "ALLREDUCE", (1, 3), (1, 3)),
        (StrategyOptions(servers=1), "SANDBLASTER", (1, 3), (1, 1)),
        (StrategyOptions("sandblaster", 2), "SANDBLASTER", (1, 2), (1, 2)),
        (StrategyOptions("downpour", 4, 3), "DOWNPOUR", (4, 1), (1, 3)),
        (StrategyOptions("hogwild", 5), "HOGWILD", (5, 1), (5, 1)),
    ],
)
def test_the_topology_of_the_options(wanted, strategy, workers, servers):
    from singa_dask.job import Job

    text = 'name: "a"\ntrain_steps: 1\ncluster { nworker_groups: 7 nservers_per_procs: 2 bucket_size: 99 }\n'
    topology = Job.from_text(text, wanted.overrides(None, ("cluster.bucket_size=5",))).topology
    assert topology.strategy.name == strategy
    assert (topology.nworker_groups, topology.nworkers_per_group) == workers
    assert (topology.nserver_groups, topology.nservers_per_group) == servers
    assert (topology.bucket_size, topology.nservers_per_procs) == (5, 1)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--workers", "3", "--cluster", "c.conf"], "--workers 3 and --cluster c.conf both say how training is"),
        (["--strategy", "hogwild", "--set", "cluster.nworker_groups=2"], "--set cluster.nworker_groups=2 both say"),
        (["--strategy", "allreduce", "--servers", "2"], "which contradicts --servers 2: leave out --servers, or use"),
        (["--strategy", "hogwild", "--servers", "2"], "contradicts --servers 2"),
        (["--strategy", "downpour", "--workers", "1"], "contradicts --workers 1: use --workers 2 or more, or"),
        (["--strategy", "hogwild", "--workers", "1"], "contradicts --workers 1"),
    ],
)
@pytest.mark.parametrize("command", ["train", "check", "show"])
def test_options_that_contradict_each_other_are_refused(command, args, says):
    done = CliRunner().invoke(main, [command, "job.conf", *args])
    assert done.exit_code == 2 and says in done.stderr
