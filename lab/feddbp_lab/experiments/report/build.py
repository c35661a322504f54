"""`feddbp experiment report`: writes the tables, figures and page of every experiment in an output directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from feddbp_common.artifacts import REPORT_PAGE_NAME
from feddbp_common.atomic_files import replace_text
from feddbp_common.cpu_cores import limit_blas_threads
from feddbp_lab.experiments.analysis.grid import ResultGrid
from feddbp_lab.experiments.analysis.outcomes import Outcomes
from feddbp_lab.experiments.analysis.rounds import Moment
from feddbp_lab.experiments.plan import Part, Plan
from feddbp_lab.experiments.report.captions import (
    accuracy_caption,
    client_caption,
    cost_caption,
    description_of,
    difference_caption,
    exchanged_difference_caption,
    last_difference_caption,
    rule_caption,
    warnings_of,
)
from feddbp_lab.experiments.report.cell_list import cells_of, overview
from feddbp_lab.experiments.report.client_tables import client_table, cost_table
from feddbp_lab.experiments.report.csv_files import clients_csv, results_csv
from feddbp_lab.experiments.report.figures import draw_panels, panels_of
from feddbp_lab.experiments.report.formatted import FormattedTable
from feddbp_lab.experiments.report.gain import gain_picture
from feddbp_lab.experiments.report.page import PageFigure, PagePart, PageSection, PageTable, render_page
from feddbp_lab.experiments.report.rule_table import rule_table
from feddbp_lab.experiments.report.tables import accuracy_table, difference_table
from feddbp_lab.experiments.report.text_formats import as_latex, as_markdown
from feddbp_lab.experiments.run.cell_dir import Failure
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.results.pictures.figure import write_pictures


@dataclass(frozen=True, kw_only=True)
class WrittenReport:
    page: Path
    damaged: Mapping[str, Failure]
    """By their ids, the cells that are done but whose results cannot be read."""


def write_report(output: OutputDir) -> WrittenReport:
    """Writes everything again from the cells' results; from here on numpy uses one thread in this process."""
    # a bootstrap multiplies thousands of small matrices, beside the cells of other runners
    limit_blas_threads()
    output.report_dir.mkdir(parents=True, exist_ok=True)
    plans = output.plans()
    found = Outcomes.read_all(plans, output)
    sections = [_ReportWriter(plan, outcomes, output).write() for plan, outcomes in zip(plans, found, strict=True)]
    path = output.report_dir / REPORT_PAGE_NAME
    replace_text(path, render_page(sections))
    damaged = {cell_id: damage for outcomes in found for cell_id, damage in outcomes.damaged.items()}
    return WrittenReport(page=path, damaged=damaged)


class _ReportWriter:
    """Writes the files of one experiment, and collects its section of the page."""

    def __init__(self, plan: Plan, outcomes: Outcomes, output: OutputDir) -> None:
        self._plan = plan
        self._outcomes = outcomes
        self._cells = cells_of(plan, output)
        self._directory = output.report_dir
        self._files: list[Path] = []
        self._markdown: list[str] = []
        self._latex: list[str] = []
        self._captions: dict[str, str] = {}
        """The last one written for each kind of table; parts with the same caption show it once."""

    def write(self) -> PageSection:
        plan, failures = self._plan, self._outcomes.failures
        notes = [text for text in (plan.note, description_of(plan, self._outcomes)) if text]
        warnings = [text for text in (warnings_of(plan, self._outcomes),) if text]
        self._markdown += [f"{text}\n" for text in (f"# {plan.title}", *notes, *warnings)]
        parts = [
            self._add_part(part, plan.name if len(plan.parts) == 1 else f"{plan.name}-{number}")
            for number, part in enumerate(plan.parts, start=1)
        ]
        parts += self._gain()
        self._markdown += [f"Failed: `{cell_id}`: {failure.cause}\n" for cell_id, failure in failures.items()]
        self._write_file(".md", "\n".join(self._markdown))
        self._write_file(".tex", "\n".join(self._latex))
        self._write_file(".csv", results_csv(plan, self._outcomes))
        self._write_file("-clients.csv", clients_csv(plan, self._outcomes))
        return PageSection(
            name=plan.name,
            title=plan.title,
            notes=notes,
            warnings=warnings,
            parts=parts,
            overview=overview(self._cells, len(plan.cell_ids)),
            cells=self._cells,
            failures=failures,
            files=self._files,
        )

    def _add_part(self, part: Part, stem: str) -> PagePart:
        if part.title:
            self._markdown.append(f"## {part.title}\n")
        figure = self._draw(part, stem) if part.report.kind != "table" else None
        tables = [
            self._add_table(name, table, caption, part, stem) for name, table, caption in self._tables_of(part) if table
        ]
        return PagePart(title=part.title, figure=figure, tables=tables)

    def _tables_of(self, part: Part) -> list[tuple[str, FormattedTable | None, str]]:
        """The tables of a part by name, with their captions; the first has no name."""
        plan, grid = self._plan, ResultGrid(part, self._outcomes)
        return [
            ("", accuracy_table(grid), accuracy_caption(plan, grid)),
            ("differences", difference_table(grid), difference_caption(plan, grid)),
            (
                "differences before fine-tuning",
                difference_table(grid, Moment.EXCHANGED),
                exchanged_difference_caption(),
            ),
            ("differences in the last round", difference_table(grid, Moment.LAST), last_difference_caption()),
            ("inference rules", rule_table(grid), rule_caption()),
            ("clients", client_table(grid), client_caption(grid) if grid.references else ""),
            ("cost", cost_table(grid), cost_caption(plan)),
        ]

    def _add_table(self, name: str, table: FormattedTable, caption: str, part: Part, stem: str) -> PageTable:
        title = f"{part.title or self._plan.title}{f', {name}' if name else ''}. {caption}"
        self._markdown.append(as_markdown(table))
        label = "-".join((f"tab:{stem}", *name.split()))
        self._latex.append(as_latex(table, caption=title, label=label))
        is_new = self._captions.get(name) != caption
        self._captions[name] = caption
        if is_new:
            self._markdown.append(f"{caption}\n")
        return PageTable(table=table, caption=caption if is_new else "")

    def _draw(self, part: Part, stem: str) -> PageFigure:
        title = part.title or self._plan.title
        png, svg = draw_panels(panels_of(part, self._outcomes), self._directory / stem)
        self._files.extend((png, svg))
        self._markdown.append(f"![{title}]({png.name})\n")
        return PageFigure.from_file(svg, title)

    def _gain(self) -> list[PagePart]:
        """The paired dots of every client, where a method and local training have done the same splits."""
        picture = gain_picture(self._plan, self._outcomes)
        if picture is None:
            return []
        png, svg = write_pictures([picture], self._directory, columns=2)[picture.name]
        self._files.extend((png, svg))
        self._markdown.append(f"![{picture.title}]({png.name})\n\n{picture.caption}\n")
        figure = PageFigure.from_file(svg, picture.caption)
        return [PagePart(title=picture.title, figure=figure, tables=[])]

    def _write_file(self, suffix: str, text: str) -> None:
        path = self._directory / f"{self._plan.name}{suffix}"
        replace_text(path, text)
        self._files.append(path)
