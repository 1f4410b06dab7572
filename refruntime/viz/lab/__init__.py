"""The parts of the lab report: its input, what is derived from it, and the page's own files."""
