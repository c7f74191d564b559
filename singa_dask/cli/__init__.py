"""The `singa-dask` command.

Exit codes: 0 success, 1 failure, 2 invalid job or command line, 130 interrupted.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import sys
from typing import Any

import click

from singa_dask import __version__
from singa_dask.cli.audit import audit
from singa_dask.cli.data import describe, shard
from singa_dask.cli.doctor import doctor
from singa_dask.cli.documented import Sections
from singa_dask.cli.net import check, export, sample, show, test
from singa_dask.cli.new import new
from singa_dask.cli.plan import plan
from singa_dask.cli.predict import predict
from singa_dask.cli.profile import profile
from singa_dask.cli.run import attach, join, leave, stop, train
from singa_dask.cli.runs import compare, runs, why
from singa_dask.cli.signals import interrupt
from singa_dask.cli.warm import warm
from singa_dask.cluster.cores import added_variables
from singa_dask.output.streams import Output, for_messages, occupy_descriptors
from singa_dask.temporary import private_folder

# Allocations before Python looks for garbage. With its default of 700 the imports would take an eighth longer.
COLLECT_AFTER = 50_000
COMPLETION = "_SINGA_DASK_COMPLETE"


class MainCommand(Sections):
    """The command, whose output may go away. It ends as it would have; but where more was wanted than a closed pipe's
    reader, and no run has told of it, it fails with a sentence."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        if COMPLETION in os.environ:  # a shell reads bytes
            return super().main(*args, **kwargs)
        occupy_descriptors()
        output = Output.of(sys.stdout)
        sys.stdout, sys.stderr = for_messages(output), for_messages(sys.stderr)
        try:
            return super().main(*args, **kwargs)
        except SystemExit as end:
            output.flush()
            if output.fault is None or output.told or isinstance(output.fault, BrokenPipeError):
                raise
            click.echo(f"error: standard output cannot be written ({output.cause}).", err=True)
            raise SystemExit(end.code or 1) from None


# Colour: click would remove escape sequences that are to be seen.
@click.group(
    cls=MainCommand,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
        "color": True,
        "show_default": True,
    },
    epilog="`singa-dask COMMAND --help` has examples.",
)
@click.version_option(__version__, prog_name="singa-dask")
def main() -> None:
    """Train neural networks on a Dask cluster, as a job file describes."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # ignored in a background process
        signal.signal(signal.SIGINT, interrupt)
    gc.set_threshold(COLLECT_AFTER)
    # Runs last at exit and saves a quarter of a second: Python would search everything imported for garbage.
    atexit.register(gc.freeze)
    # Python processes that start from here, such as workers, would have the current folder first on their path.
    context = click.get_current_context()
    context.with_resource(added_variables({"PYTHONSAFEPATH": "1"}))
    if not os.path.isdir(os.path.expanduser("~")):  # libraries would make it
        instead = str(context.with_resource(private_folder()))
        context.with_resource(added_variables({"DASK_CONFIG": instead, "MPLCONFIGDIR": instead}))
    # Not the root logger: it would also show Dask's messages.
    logger = logging.getLogger("singa_dask")
    logger.addHandler(logging.StreamHandler())
    logger.setLevel(logging.INFO)


main.add_sections(
    {
        "Data": (shard, describe),
        "Train": (new, check, show, plan, profile, train),
        "Look": (runs, why, compare),
        "Operate": (doctor, warm, stop, join, leave, attach, audit),
        "Use": (test, predict, sample, export),
    }
)
