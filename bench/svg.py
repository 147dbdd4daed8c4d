"""Horizontal bars as an SVG file."""
from xml.sax.saxutils import escape

COLOURS = {"ours": "#1f6f8b", "peer": "#b9b9b9", "limit": "#d08c2c"}


def bars(path, title, values, unit):
    """values: (label, value, kind) from top to bottom."""
    row, label_width, bar_width, top = 22, 300, 460, 40
    most = max(value for _, value, _ in values)
    height = top + row * len(values) + 10
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{label_width + bar_width + 90}" height="{height}" '
             f'font-family="sans-serif" font-size="13">',
             '<rect width="100%" height="100%" fill="white"/>',
             f'<text x="10" y="24" font-size="15" font-weight="bold">{escape(title)}</text>']
    for index, (label, value, kind) in enumerate(values):
        y, width = top + index * row, bar_width * value / most
        shown = f"{value:.3f}" if value < 10 else f"{value:.0f}"
        parts += [f'<text x="{label_width - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>',
                  f'<rect x="{label_width}" y="{y + 3}" width="{width:.1f}" height="{row - 7}" fill="{COLOURS[kind]}"/>',
                  f'<text x="{label_width + width + 6:.1f}" y="{y + 15}">{shown} {escape(unit)}</text>']
    with open(path, "w") as file:
        file.write("\n".join(parts + ["</svg>", ""]))
