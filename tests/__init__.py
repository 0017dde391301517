"""Run by pytest."""
