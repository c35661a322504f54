"""Tables, figures and pages from finished cells."""
