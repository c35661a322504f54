"""`feddbp experiment report`: writes the tables, figures and page of every experiment in an output directory."""

from __future__ import annotations

from pathlib import Path

from feddbp_common.artifacts import REPORT_PAGE_NAME
from feddbp_common.atomic_files import replace_text
from feddbp_lab.experiments.plan import Part, Plan
from feddbp_lab.experiments.report.captions import caption_of, description_of, warnings_of
from feddbp_lab.experiments.report.figures import draw_panels, panels_of
from feddbp_lab.experiments.report.outcomes import Outcomes
from feddbp_lab.experiments.report.page import PageFigure, PagePart, PageSection, render_page
from feddbp_lab.experiments.report.tables import format_table, table_of
from feddbp_lab.experiments.report.text_formats import as_csv, as_latex, as_markdown
from feddbp_lab.experiments.run.output_dir import OutputDir


def write_report(output: OutputDir) -> Path:
    """Writes everything again from the cells' results; returns the path of the page."""
    output.report_dir.mkdir(parents=True, exist_ok=True)
    sections = [_ReportWriter(plan, output).write() for plan in output.plans()]
    path = output.report_dir / REPORT_PAGE_NAME
    replace_text(path, render_page(sections))
    return path


class _ReportWriter:
    """Writes the files of one experiment, and collects its section of the page."""

    def __init__(self, plan: Plan, output: OutputDir) -> None:
        self._plan = plan
        self._outcomes = Outcomes.read(plan, output)
        self._directory = output.report_dir
        self._files: list[Path] = []
        self._markdown: list[str] = []
        self._latex: list[str] = []
        self._caption = ""
        """The last one written; parts with the same caption show it once."""

    def write(self) -> PageSection:
        plan, failures = self._plan, self._outcomes.failures
        notes = [text for text in (plan.note, description_of(plan, self._outcomes)) if text]
        warnings = [text for text in (warnings_of(plan, self._outcomes),) if text]
        self._markdown += [f"{text}\n" for text in (f"# {plan.title}", *notes, *warnings)]
        parts = [
            self._add_part(part, plan.name if len(plan.parts) == 1 else f"{plan.name}-{number}")
            for number, part in enumerate(plan.parts, start=1)
        ]
        self._markdown += [f"Failed: `{cell_id}`: {failure.cause}\n" for cell_id, failure in failures.items()]
        self._write_file(".md", "\n".join(self._markdown))
        self._write_file(".tex", "\n".join(self._latex))
        self._write_file(".csv", as_csv(plan, self._outcomes))
        return PageSection(
            name=plan.name,
            title=plan.title,
            notes=notes,
            warnings=warnings,
            parts=parts,
            failures=failures,
            files=self._files,
        )

    def _add_part(self, part: Part, stem: str) -> PagePart:
        if part.title:
            self._markdown.append(f"## {part.title}\n")
        figure = self._draw(part, stem) if part.report.kind != "table" else None
        results = table_of(part, self._outcomes)
        table, caption = format_table(results), caption_of(self._plan, results)
        self._markdown.append(as_markdown(table))
        self._latex.append(as_latex(table, caption=f"{part.title or self._plan.title}. {caption}", label=f"tab:{stem}"))
        new_caption = caption if caption != self._caption else ""
        if new_caption:
            self._markdown.append(f"{caption}\n")
            self._caption = caption
        return PagePart(title=part.title, figure=figure, table=table, caption=new_caption)

    def _draw(self, part: Part, stem: str) -> PageFigure:
        title = part.title or self._plan.title
        png, svg = draw_panels(panels_of(part, self._outcomes), self._directory / stem)
        self._files.extend((png, svg))
        self._markdown.append(f"![{title}]({png.name})\n")
        return PageFigure.from_file(svg, title)

    def _write_file(self, suffix: str, text: str) -> None:
        path = self._directory / f"{self._plan.name}{suffix}"
        replace_text(path, text)
        self._files.append(path)
