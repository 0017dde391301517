"""The papers' claims, measured: one module per paper, one function per study."""
