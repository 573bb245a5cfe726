"""What figures of matplotlib say: lines, points, bars and pies."""


def number(value):
    """A number or a text, as JSON can carry it."""
    try:
        value = float(value)
    except (TypeError, ValueError):
        return str(value)
    return int(value) if value == int(value) else value if value == value and abs(value) != float("inf") else str(value)


def unit(label):
    return label[label.rindex("(") + 1:-1] if label.endswith(")") and "(" in label else None


def axis(ax):
    """The labels and scales of axes."""
    out = {}
    for name, a in (("x", ax.xaxis), ("y", ax.yaxis)):
        label = a.get_label_text()
        out[name + "_label"], out[name + "_unit"] = label or None, unit(label)
        out[name + "_ticks"] = [number(t) for t in a.get_majorticklocs()]
        out[name + "_tick_labels"] = [t.get_text() for t in a.get_majorticklabels()]
        out[name + "_scale"] = a.get_scale()
    return out


def points(ax):
    lines = [line for line in ax.get_lines() if len(line.get_xdata()) > 1]
    dots = [c for c in ax.collections if hasattr(c, "get_offsets") and len(c.get_offsets())]
    if lines:
        kind, series = "line", [(line.get_label(), zip(line.get_xdata(), line.get_ydata())) for line in lines]
    elif dots:
        kind, series = "scatter", [(c.get_label(), c.get_offsets()) for c in dots]
    else:
        return None
    return dict(axis(ax), type=kind, elements=[{"label": str(label), "points": [[number(x), number(y)] for x, y in data]} for label, data in series])


def bars(ax):
    from matplotlib.container import BarContainer

    elements = []
    for group in (c for c in ax.containers if isinstance(c, BarContainer)):
        labels = [t.get_text() for t in ax.get_xticklabels()]
        places = list(ax.get_xticks())
        for bar in group:
            x = bar.get_x() + bar.get_width() / 2
            at = min(range(len(places)), key=lambda i: abs(places[i] - x)) if places else None
            label = labels[at] if at is not None and labels[at] and abs(places[at] - x) <= bar.get_width() else str(number(x))
            elements.append({"label": label, "group": str(group.get_label()), "value": number(bar.get_height())})
    if not elements:
        return None
    full = axis(ax)
    return dict({k: full[k] for k in ("x_label", "y_label", "x_unit", "y_unit")}, type="bar", elements=elements)


def pie(ax):
    from matplotlib.patches import Wedge

    wedges = [p for p in ax.patches if isinstance(p, Wedge)]
    if not wedges:
        return None
    return {"type": "pie", "elements": [{"label": w.get_label(), "angle": number(w.theta2 - w.theta1), "radius": number(w.r)} for w in wedges]}


def one(ax):
    found = pie(ax) or bars(ax) or points(ax) or {"type": "unknown", "elements": []}
    found["title"] = ax.get_title() or None
    return found


def chart(fig):
    """Returns what a figure says, or None if it says nothing."""
    axes = [ax for ax in fig.get_axes() if ax.has_data() or ax.patches]
    if not axes:
        return None
    if len(axes) == 1:
        return one(axes[0])
    return {"type": "superchart", "title": getattr(fig, "_suptitle", None) and fig._suptitle.get_text(), "elements": [one(ax) for ax in axes]}
