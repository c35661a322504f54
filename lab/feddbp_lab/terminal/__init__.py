"""What is printed: live views, plain lines, tables, units."""
