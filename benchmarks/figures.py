"""Write the figures of the README and of docs/ from the records in benchmarks/results.

make figures                             # or: python benchmarks/figures.py; --check only reports differences

A mark is a comment, the text that comes from it, and <!--/-->:

    up to <!--= {max step-*/step[threads=1]/ratio_best:.1f} -->2.8<!--/--> times

References in braces are [FUNCTION ]PATH[:FORMAT]. A path begins with a record, names keys and list indices, and
selects entries of lists by their values. A comment of several lines stands for a table. There, `each PATH: LINE`
repeats a line for every entry, whose values are `{.key}` and, in selectors, `[key=.key]`. The records that were used
follow below the table.
"""

from __future__ import annotations

import fnmatch
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[1]
FUNCTIONS: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "min": min,
    "max": max,
    "sum": sum,
    "median": statistics.median,
    "count": len,
}
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!--=(.*?)-->(.*?)<!--/-->", re.DOTALL)
_REFERENCE = re.compile(r"\{([^{}]+)\}")
_SELECTOR = re.compile(r"\[([^=\]]+)=([^\]]*)\]")

# What reads like a measurement: where no mark surrounds it, it is one of EXEMPT or an error.
_NUMBER = r"(?<![\w.,-])~?\d[\d.,]*"
_UNMARKED = re.compile(
    rf"""{_NUMBER}\ ?(?:ms|µs|us)\b
    | {_NUMBER}\ ?(?:GFLOP|TFLOP|[kMG]B|images|samples|steps|updates|round\ trips)(?:/s|\ (?:per|a)\ second)
    | {_NUMBER}\ ?%
    | {_NUMBER}(?:\ times\b|x\ (?:as|faster|slower))
    | \btimes\ as\ (?:fast|long)\b | \b(?:tens|dozens|hundreds|thousands)\ of\ times\b
    | \b(?:twice|half|a\ third)\ (?:as\ (?:fast|long|much)|the\ (?:time|speed|memory))\b
    | (?<![\w.,-])~?\d+\.\d+\ (?:s|seconds|minutes)\b
    | \b(?:takes?|took|taken|costs?)\ (?:about\ |at\ most\ )?\d[\d.,]*(?:\ to\ \d+)?\ (?:s|seconds|minutes)\b
    | (?<![\w.])0?\.\d\d\d+\b
    | (?<=\|)\ *[+~-]?[\d,]*\.\d+\ *(?=\|)
    """,
    re.VERBOSE,
)
# Pages that may have other figures.
UNGUARDED = (
    "examples/README.md",  # accuracies of the examples, which their commands reproduce
)
# Page: what is no measurement there, and why.
EXEMPT: Mapping[str, Mapping[str, str]] = {
    "docs/developers/groups.md": {"every 20 ms": "a constant", "0.25 s": "a constant"},
    "docs/developers/recovery.md": {"2 %": "a rule"},
    "docs/developers/performance.md": {
        "98 % test accuracy": "a target",
        "95 % interval": "statistics",
        "±3 %": "a rule",
    },
    "docs/developers/plan.md": {"5 %": "rules of the plan and of its benchmark", "3 % faster": "a rule"},
    "docs/plan.md": {"95 % of them": "a percentile", "at least 3 %": "a rule"},
    "docs/plan-output.md": {"5 %": "a rule", "1 % of the": "a rule"},
    "docs/runs.md": {"twice the memory": "a condition"},
    "docs/reliability.md": {"2 %": "a rule"},
    "docs/sequences.md": {"1.5 times the median": "a rule", "1 %": "a rule", "20 %": "a rule"},
    "docs/evaluations.md": {"than 0.001": "a property of the algorithm"},
    "docs/updaters.md": {"0.99 to 0.9999": "settings"},
    "docs/tutorials/images.md": {"2 % of the samples": "an example", "0.495": "follows from the example"},
}


class Problem(Exception):
    """A figure, a reference or a record is wrong; says what, and the way out."""


@dataclass
class Records:
    """The records of a folder, read when they are needed. used: the names of those that references have named."""

    folder: Path
    used: dict[str, Any] = field(default_factory=dict)
    _read: dict[str, Any] = field(default_factory=dict)

    def named(self, pattern: str) -> list[Any]:
        """All records whose name fits. Raises Problem if there is none."""
        names = sorted(path.stem for path in self.folder.glob("*.json") if fnmatch.fnmatch(path.stem, pattern))
        if not names:
            raise Problem(f"no record {pattern}.json in {self.folder.name}")
        for name in names:
            if name not in self._read:
                self._read[name] = json.loads((self.folder / f"{name}.json").read_text())
            self.used[name] = self._read[name]
        return [self._read[name] for name in names]

    def sources(self) -> str:
        """The records used since the last call: on what, when and at which commit they were measured."""
        lines = []
        for name, record in sorted(self.used.items()):
            try:
                machine = record["machine"]
                cores = f", {machine['cores']} core{'s' * (machine['cores'] > 1)}" if "cores" in machine else ""
                what = machine.get("gpu") or machine["cpu"]
                rounds = f", {record['rounds']} rounds" if "rounds" in record else ""
                lines.append(f"`{name}.json` ({what}{cores}; {record['date']}, commit {record['commit']}{rounds})")
            except (KeyError, TypeError) as why:
                raise Problem(f"{name}.json lacks {why}, which a table needs") from None
        self.used.clear()
        return f"Measured: {'; '.join(lines)}."


def select(records: Records, path: str, row: Any = None) -> list[Any]:
    """The values at a path. Raises Problem if nothing is there."""
    first, *rest = path.split("/")
    values = [row] if first.startswith(".") else records.named(first)
    for part in [first[1:], *rest] if first.startswith(".") else rest:
        name, selectors = part.partition("[")[0], _SELECTOR.findall(part)
        values = [found for value in values for found in _entries(value, name)]
        for key, wanted in selectors:
            wanted = str(select(records, wanted, row)[0]) if wanted.startswith(".") else wanted
            values = [each for value in values for each in _listed(value) if str(each.get(key)) == wanted]
    if not values:
        raise Problem(f"nothing at {path}")
    return values


def _entries(value: Any, name: str) -> Iterator[Any]:
    """What a value, or each entry of a list, has under a name. A list has integers too."""
    if isinstance(value, list) and name.isdigit():
        yield from value[int(name) : int(name) + 1]
    else:
        yield from (each[name] for each in _listed(value) if name in each)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def figure(records: Records, reference: str, row: Any = None) -> str:
    """What a reference stands for. Raises Problem for several values without a function, or none."""
    path, colon, form = reference.rpartition(":")
    path = path if colon else form
    function, _, rest = path.partition(" ")
    values = select(records, rest if function in FUNCTIONS else path, row)
    if function in FUNCTIONS:
        values = [FUNCTIONS[function]([each for value in values for each in _listed(value)])]
    if len(values) > 1:
        raise Problem(f"{path} has {len(values)} values; select one, or use {', '.join(FUNCTIONS)}")
    (value,) = values
    if value is None or isinstance(value, dict | list):
        raise Problem(f"{path} is not a figure, but {json.dumps(value)[:40]}")
    try:
        return re.sub(r"(?<=\d)%$", " %", format(value, form if colon else ""))
    except ValueError as why:
        raise Problem(f"{reference}: {why}") from None


def filled(records: Records, template: str, row: Any = None) -> str:
    """A template with the figures in the place of its references."""
    return _REFERENCE.sub(lambda match: figure(records, match[1], row), template)


def table(records: Records, template: str) -> str:
    """The lines of a table, and below them their sources."""
    lines = []
    records.used.clear()
    for line in template.strip().splitlines():
        each = re.match(r"each (.*?): (?=\|)", line)
        if each:
            rows = [row for value in select(records, each[1]) for row in _listed(value)]
            lines += [filled(records, line[each.end() :], row) for row in rows]
        else:
            lines.append(filled(records, line))
    return "\n".join(["", "", *lines, "", records.sources(), "", ""])


def written(records: Records, text: str) -> tuple[str, list[str]]:
    """A page with its figures as the records have them; what is wrong with its marks."""
    problems = []

    def renew(match: re.Match[str]) -> str:
        template = match[1]
        before = match.string[: match.start()].rpartition("\n")[2]
        try:
            if template.startswith("\n"):
                return f"<!--={template}-->{table(records, template)}<!--/-->"
            if not before.strip():
                raise Problem("begins a line, where Markdown reads a comment as HTML: put it behind a word")
            return f"<!--={template}-->{filled(records, ' '.join(template.split()))}<!--/-->"
        except Problem as why:
            problems.append(f"<!--={template}-->: {why}")
            return match[0]

    pieces = _FENCE.split(text)
    pieces[::2] = [_MARK.sub(renew, piece) for piece in pieces[::2]]
    left = "".join(_MARK.sub("", piece) for piece in pieces[::2])
    if "<!--=" in left or "<!--/-->" in left:
        problems.append("a mark is not closed by <!--/-->, or not opened")
    return "".join(pieces), problems


def unmarked(text: str, exempt: Mapping[str, str]) -> list[str]:
    """Lines that have something that reads like a measurement, outside marks and code; exemptions without a use."""
    blank = lambda match: "\n" * match[0].count("\n")  # noqa: E731
    for pattern in (_FENCE, _MARK, re.compile(r"<!--.*?-->", re.DOTALL), re.compile(r"`[^`\n]*`|\]\([^)]*\)")):
        text = pattern.sub(blank, text)
    problems = []
    for phrase in exempt:
        text, found = re.subn(rf"(?<![\w.,]){re.escape(phrase)}", "", text)
        problems += [] if found else [f"exempt, but not there: {phrase!r}"]
    for number, line in enumerate(text.splitlines(), 1):
        problems += [
            f"line {number}: {match[0].strip()!r} has no record: mark it (benchmarks/figures.py), or remove it"
            for match in _UNMARKED.finditer(line)
        ]
    return problems


def renewed(root: Path) -> tuple[dict[Path, str], list[str]]:
    """The README and the pages of docs/ as the records have them, and what is wrong with them."""
    records, texts, problems = Records(root / "benchmarks" / "results"), {}, []
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md")), root / "examples" / "README.md"]:
        name, text = str(page.relative_to(root)), page.read_text()
        texts[page], found = written(records, text)
        if name not in UNGUARDED:
            found += unmarked(text, EXEMPT.get(name, {}))
        problems += [f"{name}: {problem}" for problem in found]
    return texts, problems


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit status 1 if a page and the records differ.")
@click.option("--root", type=click.Path(path_type=Path), default=ROOT, help="The repository. [default: this one]")
def main(check: bool, root: Path) -> None:
    """Write the figures of the README and of docs/ from benchmarks/results."""
    texts, problems = renewed(root)
    for page, new in texts.items():
        old = page.read_text()
        if check and new != old:
            lines = zip_longest(old.splitlines(), new.splitlines(), fillvalue="")
            has, due = next((has, due) for has, due in lines if has != due)
            problems.append(f"{page.relative_to(root)}: run make figures. Page: {has!r}. Record: {due!r}")
        elif new != old:
            page.write_text(new)
    for problem in problems:
        click.echo(problem, err=True)
    sys.exit(int(bool(problems)))


if __name__ == "__main__":
    main()
