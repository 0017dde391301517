"""Common code of the four paper files: no model, no loss, and one loop, fine-tuning."""
