"""Tests for pytest."""
