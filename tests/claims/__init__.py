"""What the papers claim, measured: one module for each paper, one function for each study."""
