"""Pictures of a run for print: the same that the dashboard shows, as PNG, SVG and one page."""
