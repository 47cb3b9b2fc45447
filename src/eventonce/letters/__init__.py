"""Dead letters for people: selected, grouped, and run again, dropped or exported in bulk; for the
command line and the dashboard."""
