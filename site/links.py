"""Checks the links of the pages that lead elsewhere, and that the site needs nothing from there.

python site/links.py                 asks every address that a page links to
python site/links.py build/site      looks for scripts, styles, fonts and pictures that are not on the site
"""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pages

TIMEOUT_S = 20.0
_ADDRESS = re.compile(r"\]\((https?://[^\s)]+)\)|<(https?://[^\s>]+)>")
_NEEDED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\s(?:src|data)=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?![^>]*rel=["']?(?:canonical|next|prev))[^>]*?\shref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|url\(["']?((?:https?:)?//[^"')\s]+)|@import\s+["']((?:https?:)?//[^"']+)"""
)


def headings(text: str) -> set[str]:
    """The ids of the headings of a page, as GitHub and the site form them, and those that it sets itself."""
    found, ids = pages.without_blocks(text), set[str]()
    for title in re.findall(r"^#+ (.*)$", found, re.MULTILINE):
        title, _, own = title.partition(" {")
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        ids.add(re.sub(r"^ ?#(\S+) }$", r"\1", own) if own else slug)
    return ids | set(re.findall(r"\{ #([\w.-]+) \}", found))


def broken(page: Path) -> list[str]:
    """The links of a page to files and headings that do not exist."""
    found = []
    for name, heading in pages.links(page):
        target = page.parent / name if name else page
        if not target.exists():
            found.append(name)
        elif heading and heading not in headings(pages.expanded(target.read_text())):
            found.append(f"{name}#{heading}")
    return found


def addresses(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Address -> the pages that link to it."""
    found: dict[str, list[str]] = {}
    for path in paths:
        for match in _ADDRESS.finditer(pages.without_code(path.read_text())):
            found.setdefault((match[1] or match[2]).partition("#")[0], []).append(pages.name(path))
    return found


def fault(address: str) -> str | None:
    """Why an address cannot be read; None if it can."""
    request = urllib.request.Request(address, headers={"User-Agent": "Mozilla/5.0"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            return None
    except (urllib.error.URLError, OSError, ValueError) as error:
        return str(error)


def needed(site: Path) -> list[str]:
    """What pages and styles of the built site load from elsewhere, each with one file that does."""
    found: dict[str, Path] = {}
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css", ".svg"):
            for match in _NEEDED.finditer(path.read_text()):
                found.setdefault(next(filter(None, match.groups())), path.relative_to(site))
    return [f"{address} in {path}" for address, path in found.items()]


def main(site: Path | None) -> int:
    if site is not None:
        faults = needed(site)
    else:
        found = addresses(pages.all_pages())
        with ThreadPoolExecutor(8) as pool:
            faults = [
                f"{address} in {', '.join(found[address])}: {why}"
                for address, why in zip(found, pool.map(fault, found), strict=True)
                if why is not None
            ]
        print(f"{len(found)} addresses, {len(faults)} cannot be read")
    print("\n".join(faults), file=sys.stderr, end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else None))
