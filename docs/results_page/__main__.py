from feddbp_common.atomic_files import replace_text
from results_page.gains_figure import write_figure
from results_page.kept import Kept
from results_page.page import PAGES, rendered

if __name__ == "__main__":
    kept = Kept()
    for page in PAGES:
        replace_text(page, rendered(page.read_text(encoding="utf-8"), kept))
    write_figure(kept)
