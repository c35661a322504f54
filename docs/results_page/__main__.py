from feddbp_common.atomic_files import replace_text
from results_page.gains_figure import write_figure
from results_page.kept import Kept
from results_page.page import PAGE, rendered

if __name__ == "__main__":
    kept = Kept()
    replace_text(PAGE, rendered(PAGE.read_text(encoding="utf-8"), kept))
    write_figure(kept)
