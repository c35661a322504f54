"""Running the cells of an experiment: campaign, runner, output directory, leases, display."""
