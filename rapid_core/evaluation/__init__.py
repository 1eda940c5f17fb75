"""Whether RAPID answers better, and how much faster: tasks, methods, the run, statistics and the report."""
