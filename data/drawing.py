"""A scatter plot as an SVG file, which a browser opens."""
from html import escape

WIDTH = 640
HEIGHT = 400
MARGIN = 60
STYLE = """<style>
svg { background: #ffffff; color: #222222; font: 13px sans-serif }
@media (prefers-color-scheme: dark) { svg { background: #161b22; color: #dddddd } }
text { fill: currentColor }
.axis, .front { stroke: currentColor; fill: none }
circle { fill: #8b949e }
circle.best { fill: #d9822b }
</style>"""


def scale(values, start, stop):
    """A function that maps the range of the values to start .. stop."""
    low = min(values)
    high = max(values)
    step = (stop - start) / (high - low or 1)
    return lambda value: start + (value - low) * step


def scatter(points, front, x_label, y_label):
    """The SVG text of points (x, y, name). front: the indices, in order, of points that a line
    joins and that have another colour. The names are tooltips."""
    xs, ys, _ = zip(*points)
    left = MARGIN
    right = WIDTH - MARGIN / 2
    top = MARGIN / 2
    bottom = HEIGHT - MARGIN
    across = scale(xs, left + 10, right - 10)
    down = scale(ys, bottom - 10, top + 10)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">', STYLE,
             f'<path class="axis" d="M{left} {top:g}V{bottom}H{right:g}"/>',
             f'<text x="{WIDTH / 2:g}" y="{HEIGHT - 12}" text-anchor="middle">{x_label}</text>',
             f'<text x="16" y="{HEIGHT / 2:g}" text-anchor="middle" '
             f'transform="rotate(-90 16 {HEIGHT / 2:g})">{y_label}</text>']
    for x in {min(xs), max(xs)}:
        lines.append(f'<text x="{across(x):.1f}" y="{bottom + 18}" text-anchor="middle">'
                     f'{x:.4g}</text>')
    for y in {min(ys), max(ys)}:
        lines.append(f'<text x="{left - 6}" y="{down(y) + 4:.1f}" text-anchor="end">{y:.3g}</text>')
    path = " ".join(f"{across(xs[i]):.1f},{down(ys[i]):.1f}" for i in front)
    lines.append(f'<polyline class="front" points="{path}"/>')
    for i, (x, y, name) in enumerate(points):
        kind = ' class="best"' if i in front else ""
        lines.append(f'<circle{kind} cx="{across(x):.1f}" cy="{down(y):.1f}" r="4">'
                     f'<title>{escape(name)}: {x:.4g}, {y:.4g}</title></circle>')
    return "\n".join([*lines, "</svg>"]) + "\n"
