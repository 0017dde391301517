"""What the papers claim, measured: one module a paper, a function a claim (a figure, a table, a finding)."""
