"""`feddbp experiment report`: tables, figures and a page of every experiment a directory knows."""

from __future__ import annotations

import html
from pathlib import Path

from feddbp_common.artifacts import REPORT_PAGE_NAME
from feddbp_common.atomic_files import replace_text
from feddbp_lab.experiments.plan import Part, Plan
from feddbp_lab.experiments.report.captions import caption_of, facts_of, gaps_of
from feddbp_lab.experiments.report.figures import draw_panels, panels_of
from feddbp_lab.experiments.report.outcomes import Outcomes
from feddbp_lab.experiments.report.page import Section, embedded, page
from feddbp_lab.experiments.report.render import as_csv, as_html, as_latex, as_markdown
from feddbp_lab.experiments.report.tables import sheet_of, table_of
from feddbp_lab.experiments.run.output_dir import OutputDir


def write_report(store: OutputDir) -> Path:
    """Everything anew from the cells; the path of the page."""
    store.report_dir.mkdir(parents=True, exist_ok=True)
    sections = [_Writer(plan, store).section() for plan in store.plans()]
    path = store.report_dir / REPORT_PAGE_NAME
    replace_text(path, page(sections))
    return path


class _Writer:
    """Writes the files of one experiment, and its section of the page."""

    def __init__(self, plan: Plan, store: OutputDir) -> None:
        self._plan = plan
        self._outcomes = Outcomes.read(plan, store)
        self._directory = store.report_dir
        self._files: list[Path] = []
        self._markdown = [f"# {plan.title}\n"]
        self._latex: list[str] = []
        self._html: list[str] = []
        self._caption = ""
        """The last one; parts that are made alike need it once."""

    def section(self) -> Section:
        for text, alarming in (
            (self._plan.note, False),
            (facts_of(self._plan, self._outcomes), False),
            (gaps_of(self._plan, self._outcomes), True),
        ):
            self._say(text, "alarm" if alarming else "")
        for number, part in enumerate(self._plan.parts, start=1):
            self._add(part, self._plan.name if len(self._plan.parts) == 1 else f"{self._plan.name}-{number}")
        self._tell_failures()
        self._keep(".md", "\n".join(self._markdown))
        self._keep(".tex", "\n".join(self._latex))
        self._keep(".csv", as_csv(self._plan, self._outcomes))
        return Section(
            name=self._plan.name, title=self._plan.title, body="\n".join(self._html), files=tuple(self._files)
        )

    def _say(self, text: str, kind: str = "") -> None:
        if text:
            self._markdown.append(f"{text}\n")
            self._html.append(f'<p class="{kind or "faint"}">{html.escape(text)}</p>')

    def _add(self, part: Part, stem: str) -> None:
        if part.title:
            self._markdown.append(f"## {part.title}\n")
            self._html.append(f"<h3>{html.escape(part.title)}</h3>")
        if part.report.kind != "table":
            self._draw(part, stem)
        table = table_of(part, self._outcomes)
        sheet, caption = sheet_of(table), caption_of(self._plan, table)
        self._markdown.append(as_markdown(sheet))
        self._latex.append(as_latex(sheet, caption=f"{part.title or self._plan.title}. {caption}", label=f"tab:{stem}"))
        self._html.append(f'<div class="wide">{as_html(sheet)}</div>')
        if caption != self._caption:
            self._say(caption)
            self._caption = caption

    def _draw(self, part: Part, stem: str) -> None:
        title = part.title or self._plan.title
        png, svg = draw_panels(panels_of(part, self._outcomes), self._directory / stem)
        self._files.extend((png, svg))
        self._markdown.append(f"![{title}]({png.name})\n")
        self._html.append(embedded(svg, title))

    def _tell_failures(self) -> None:
        for name, failure in self._outcomes.failures.items():
            self._markdown.append(f"Failed: `{name}`: {failure.cause}\n")
            lines = "\n".join(failure.last_lines)
            self._html.append(
                f'<details><summary class="alarm">failed: {html.escape(name)}: {html.escape(failure.cause)}</summary>'
                f"<pre>{html.escape(lines)}</pre></details>"
            )

    def _keep(self, suffix: str, text: str) -> None:
        path = self._directory / f"{self._plan.name}{suffix}"
        replace_text(path, text)
        self._files.append(path)
