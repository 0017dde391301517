"""Plumbing that the four paper files share: no model, no loss, no training loop."""
