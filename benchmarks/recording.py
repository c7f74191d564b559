"""Record a terminal in which a worker is killed and training continues, as an animated SVG."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from html import escape
from itertools import groupby, pairwise
from pathlib import Path

import click
import psutil
import pyte

ROOT = Path(__file__).parents[1]
COLUMNS, ROWS, FONT = 92, 14, 14
WIDTH, HEIGHT, DESCENT = 8.43, 19, 5  # pixels of a character
COLOURS = {"default": "#d4d8de", "green": "#7ec97e", "red": "#ff6b6b", "brown": "#e5c07b", "cyan": "#6cc7d9"}
Screen = list[list[pyte.screens.Char]]


class Recording:
    """Screens of a terminal over time: (seconds, rows of characters)."""

    def __init__(self) -> None:
        self._screen = pyte.Screen(COLUMNS, ROWS - 1)
        self._stream = pyte.Stream(self._screen)
        self.screens: list[tuple[float, Screen]] = []
        self.below = ""

    def feed(self, at_s: float, output: str) -> None:
        """Show more output; below it stands what was typed into another terminal."""
        self._stream.feed(output)
        rows = [[row[x] for x in range(COLUMNS)] for row in (self._screen.buffer[y] for y in range(ROWS - 1))]
        rows.append([pyte.screens.Char(c, fg="red", bold=True) for c in self.below.ljust(COLUMNS)])
        if not self.screens or rows != self.screens[-1][1]:
            self.screens.append((at_s, rows))


def record(command: list[str], kill_at: int, steps: int) -> Recording:
    """Run the command in a terminal, and kill its busiest worker with SIGKILL once it shows step `kill_at`."""
    recording, began, seen = Recording(), time.monotonic(), ""
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(command[0], command, os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS - 1, COLUMNS, 0, 0))
    recording.feed(0.0, "$ " + " ".join(command) + "\r\n")
    for output in _outputs(terminal):
        output = output.replace(f"{Path.cwd()}/", "")
        seen += output
        if not recording.below and any(int(step) >= kill_at for step in re.findall(rf"(\d+)/{steps}\b", output)):
            processes = [p for p in psutil.Process(child).children(recursive=True) if not p.children()]
            worker = max(processes, key=lambda p: sum(p.cpu_times()[:2]))
            os.kill(worker.pid, signal.SIGKILL)
            recording.below = f"$ kill -9 {worker.pid}      # one of the three workers"
        recording.feed(time.monotonic() - began, output)
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise click.ClickException(f"{' '.join(command)} ended with status {status}:\n{seen[-1000:]}")
    if not recording.below:
        raise click.ClickException(f"the command did not show step {kill_at}:\n{seen[-1000:]}")
    return recording


def _outputs(terminal: int) -> Iterator[str]:
    while True:
        if not select.select([terminal], [], [], 120)[0]:
            raise click.ClickException("the command has printed nothing for 120 s")
        try:
            output = os.read(terminal, 65536)
        except OSError:  # the command has ended
            return
        yield output.decode(errors="replace")


def svg(recording: Recording, title: str, frame_s: float, longest_s: float, end_s: float) -> str:
    """An SVG that shows the screens one after the other, for at most longest_s each, again and again."""
    clock, times, shown = 0.0, [0.0], [recording.screens[0][1]]
    for (before, _), (at_s, screen) in pairwise(recording.screens):
        clock += min(at_s - before, longest_s)
        if clock - times[-1] < frame_s:
            shown[-1] = screen
        else:
            times.append(clock)
            shown.append(screen)
    duration = times[-1] + end_s
    lines = dict[str, int]()
    frames = []
    for y, screen in enumerate(shown):
        for x, line in enumerate(map(_line, screen)):
            if line:
                number = lines.setdefault(line, len(lines))
                frames.append(f'<use href="#l{number}" y="{(y * ROWS + x + 1) * HEIGHT - DESCENT}"/>')
    width, height = round(COLUMNS * WIDTH) + 20, ROWS * HEIGHT + 20
    moves = "".join(
        f"{100 * at_s / duration:.3f}%{{transform:translateY({-y * ROWS * HEIGHT}px)}}" for y, at_s in enumerate(times)
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">
<title>{title}</title>
<style>text{{font:{FONT}px ui-monospace,Menlo,Consolas,monospace;white-space:pre;fill:{COLOURS["default"]}}}
.b{{font-weight:bold}}#f{{animation:f {duration:.2f}s step-end infinite}}
@keyframes f{{{moves}}}</style>
<defs>{"".join(f'<g id="l{number}">{line}</g>' for line, number in lines.items())}</defs>
<rect width="100%" height="100%" rx="8" fill="#1b1e24"/>
<svg x="10" y="9" width="{width - 20}" height="{ROWS * HEIGHT}"><g id="f">{"".join(frames)}</g></svg>
</svg>
"""


def _line(row: list[pyte.screens.Char]) -> str:
    texts = []
    x = 0
    for (colour, bold), run in groupby(row, lambda c: (c.fg, c.bold)):
        text = "".join(c.data for c in run)
        if text.strip():
            fill = COLOURS.get(colour, f"#{colour}" if len(colour) == 6 else COLOURS["default"])
            style = f' fill="{fill}" style="fill:{fill}"' * (fill != COLOURS["default"]) + ' class="b"' * bold
            length = f' textLength="{len(text) * WIDTH:.1f}" lengthAdjust="spacingAndGlyphs"'
            texts.append(f'<text x="{x * WIDTH:.1f}"{length}{style}>{escape(text)}</text>')
        x += len(text)
    return "".join(texts)


@click.command(help=__doc__)
@click.option("--out", type=Path, default=ROOT / "docs/killed-worker.svg", show_default=True)
@click.option("--steps", type=int, default=1500, show_default=True, help="Of training.")
@click.option("--kill-at", type=int, default=500, show_default=True, help="Kill a worker at this step.")
def main(out: Path, steps: int, kill_at: int) -> None:
    command = ["singa-dask", "train", "examples/digits/job.conf", "--cluster", "examples/clusters/allreduce.conf"]
    command += ["--set", f"train_steps={steps}"]
    os.chdir(ROOT)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    recording = record(command, kill_at, steps)
    title = "A terminal: three workers train, one of them is killed, and training continues"
    out.write_text(svg(recording, title, frame_s=0.25, longest_s=1.0, end_s=4.0))


if __name__ == "__main__":
    main()
