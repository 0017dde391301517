"""What an analysis leaves behind: a table to read, its numbers as JSON, and a picture where matplotlib is installed."""
import json
from pathlib import Path

from common.distributed import write_atomic


def table(columns, rows):
    """A Markdown table; floats get four significant digits."""
    cells = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in [columns, *rows]]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def write_report(folder, name, columns, rows, numbers=None, draw=None):
    """Write folder/name.md and name.json, and name.png by draw(axes) where matplotlib is installed; print the table.

    columns: names; rows: lists of cells; numbers: what else the JSON file holds.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = table(columns, rows)
    print(text)
    write_atomic(folder / f"{name}.md", text + "\n")
    write_atomic(folder / f"{name}.json", json.dumps({"columns": columns, "rows": rows, **(numbers or {})}, indent=1))
    figure = draw_figure(folder / f"{name}.png", draw) if draw else ""
    print(f"written: {folder / name}.md, {folder / name}.json{figure}")


def draw_figure(path, draw):
    """The words about the picture: its path, or which package it needs."""
    try:
        import matplotlib
    except ImportError:
        return " (pip install matplotlib for a picture)"
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    draw(axes)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return f", {path}"
