"""Plumbing that the four paper files share: no model, no loss, and one loop, fine-tuning."""
