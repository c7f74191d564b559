"""The site for MkDocs: the pages at their paths in the repository, the generated reference, and named sources."""

from __future__ import annotations

from pathlib import Path

import pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from reference import for_griffe as for_griffe  # mkdocs.yml names it

HERE = Path(__file__).parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Every file at its path in the repository, so that links between pages are the same in both."""
    paths = [path for path in pages.ROOT.glob("docs/**/*") if path.suffix in pages.SUFFIXES]
    paths += [pages.ROOT / name for name in pages.OUTSIDE]
    named = {target for path in paths if path.suffix == ".md" for target in pages.targets(path)} - {*paths}
    paths += [path for path in named if path.suffix in pages.SUFFIXES]
    site = [file for file in files if file.src_dir != config.docs_dir]  # those of the theme
    site += [File.generated(config, pages.name(path), abs_src_path=str(path)) for path in paths]
    site += [File.generated(config, name, abs_src_path=str(HERE / name)) for name in ("style.css", "iframe-worker.js")]
    for name, content in pages.sources(named).items():
        site.append(File.generated(config, name, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return Files(site)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its reference, with links to sources as pages, and without marks."""
    return pages.on_site(markdown, pages.ROOT / page.file.src_uri)
