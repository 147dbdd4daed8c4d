"""Horizontal bars as an SVG file."""
from xml.sax.saxutils import escape

# Kind of a bar -> colour, and what the legend calls it.
KINDS = {"peer": ("#b0b0b0", "peers"), "limit": ("#d08c2c", "forward + backward alone"), "ours": ("#1f6f8b", "zero.cpp")}

ROW, GAP, LABELS, BARS, TOP = 22, 8, 370, 420, 62


def legend(kinds):
    parts, x = [], 10
    for kind in kinds:
        colour, name = KINDS[kind]
        parts += [f'<rect x="{x}" y="36" width="12" height="12" fill="{colour}"/>',
                  f'<text x="{x + 17}" y="46" fill="#444444">{escape(name)}</text>']
        x += 40 + 7 * len(name)
    return parts


def bars(path, title, values, unit):
    """values: (label, value, kind) from top to bottom; a gap stands where the kind changes."""
    most = max(value for _, value, _ in values)
    parts, y, before = legend(kind for kind in KINDS if any(kind == found for _, _, found in values)), TOP, values[0][2]
    for label, value, kind in values:
        y += GAP if kind != before else 0
        before = kind
        width = BARS * value / most
        shown = f"{value:.2f}" if value < 10 else f"{value:,.0f}"
        parts += [f'<text x="{LABELS - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>',
                  f'<rect x="{LABELS}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}" rx="2" fill="{KINDS[kind][0]}"/>',
                  f'<text x="{LABELS + width + 6:.1f}" y="{y + 15}" fill="#444444">{shown} {escape(unit)}</text>']
        y += ROW
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABELS + BARS + 90}" height="{y + 12}" font-family="sans-serif" font-size="13">',
            '<rect width="100%" height="100%" fill="white"/>',
            f'<text x="10" y="24" font-size="15" font-weight="bold">{escape(title)}</text>']
    with open(path, "w") as file:
        file.write("\n".join([*head, *parts, "</svg>", ""]))


def line(path, title, points, x_unit, y_unit):
    """points: (x, y), ascending; a line through them, from 0 in both directions."""
    left, top, width, height = 70, 50, 480, 240
    most_x, most_y = max(x for x, _ in points), 1.15 * max(y for _, y in points)
    places = [(left + width * x / most_x, top + height * (1 - y / most_y), x, y) for x, y in points]
    path_text = " ".join(f"{px:.1f},{py:.1f}" for px, py, _, _ in places)
    colour = KINDS["ours"][0]
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 60}" height="{top + height + 60}" font-family="sans-serif" font-size="13">',
             '<rect width="100%" height="100%" fill="white"/>',
             f'<text x="10" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
             f'<path d="M{left},{top} V{top + height} H{left + width}" fill="none" stroke="#888888"/>',
             f'<polyline points="{path_text}" fill="none" stroke="{colour}" stroke-width="2"/>',
             f'<text x="{left + width / 2}" y="{top + height + 42}" text-anchor="middle" fill="#444444">{escape(x_unit)}</text>']
    for px, py, x, y in places:
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" fill="{colour}"/>',
                  f'<text x="{px:.1f}" y="{py - 10:.1f}" text-anchor="middle">{y:.2f} {escape(y_unit)}</text>',
                  f'<text x="{px:.1f}" y="{top + height + 20}" text-anchor="middle" fill="#444444">{x:g}</text>']
    with open(path, "w") as file:
        file.write("\n".join([*parts, "</svg>", ""]))
