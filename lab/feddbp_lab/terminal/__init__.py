"""What is printed: live views, plain lines, tables and units."""
