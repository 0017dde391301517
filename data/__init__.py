"""What comes from or goes to the outside."""
