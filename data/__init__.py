"""Data from or to the outside."""
