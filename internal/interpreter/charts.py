"""What figures of matplotlib say: lines, points, bars, boxes and pies."""


def number(value):
    """A number as a float, a time in ISO 8601, or else a text, as JSON can carry it."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value).__name__ == "datetime64":
        return str(value.astype("datetime64[s]"))
    try:
        value = float(value)
    except (TypeError, ValueError):
        return str(value)
    return value if value == value and abs(value) != float("inf") else str(value)


def rounded(value):
    """A number that matplotlib computed with 32 bits, without what that added."""
    return float("%.6g" % value)


def named(label, prefix, name):
    """A label, or a name for one that matplotlib made up."""
    label = str(label)
    rest = label[len(prefix):]
    return "%s %s" % (name, rest) if label.startswith(prefix) and rest.isdigit() else label


def unit(label):
    return label[label.rindex("(") + 1:-1] if label.endswith(")") and "(" in label else None


class Axis:
    """The x axis or the y axis of a chart."""

    def __init__(self, axis):
        self.axis = axis
        self.label = axis.get_label_text()
        self.places = [float(t) for t in axis.get_majorticklocs()]
        self.texts = [t.get_text() for t in axis.get_majorticklabels()]
        get = getattr(axis, "get_converter", None)
        self.converter = get() if get else axis.converter
        self.scale = self.detect()

    def detect(self):
        from matplotlib import category, dates

        if isinstance(self.converter, (dates.DateConverter, dates._SwitchableDateConverter)):
            return "datetime"
        if isinstance(self.converter, category.StrCategoryConverter):
            return "categorical"
        scale = self.axis.get_scale()
        # Texts that somebody put at 0, 1, 2 and so on are categories, too.
        pairs = list(zip(self.places, self.texts))
        if scale == "linear" and pairs and all(place == i and text != str(i) for i, (place, text) in enumerate(pairs)):
            return "categorical"
        return scale

    def value(self, place):
        """What is at a place on the axis."""
        if self.scale == "datetime" and isinstance(number(place), float):
            from matplotlib import dates

            return dates.num2date(place).isoformat()
        return number(place)

    def tick(self, place):
        return self.value(place if self.scale == "datetime" else float("%.12g" % place))

    def text(self, place, reach):
        """The label of the tick that is nearest to a place, if it is within reach."""
        near = min(zip(self.places, self.texts), key=lambda t: abs(t[0] - place), default=None)
        return near[1] if near and near[1] and abs(near[0] - place) <= reach else "%g" % place

    def names(self, prefix):
        return {prefix + "_label": self.label or None, prefix + "_unit": unit(self.label)}

    def describe(self, prefix):
        ticks = [self.tick(p) for p in self.places]
        return dict(self.names(prefix), **{prefix + "_ticks": ticks, prefix + "_tick_labels": self.texts, prefix + "_scale": self.scale})


def points(ax, x, y):
    lines = [line for line in ax.get_lines() if len(line.get_xdata()) > 1]
    dots = [c for c in ax.collections if hasattr(c, "get_offsets") and len(c.get_offsets())]
    if lines:
        kind, series = "line", [(named(line.get_label(), "_child", "Line"), zip(line.get_xdata(), line.get_ydata())) for line in lines]
    elif dots:
        kind, series = "scatter", [(str(c.get_label()), c.get_offsets()) for c in dots]
    else:
        return None
    elements = [{"label": label, "points": [[x.value(a), y.value(b)] for a, b in data]} for label, data in series]
    return dict(x.describe("x"), **y.describe("y"), type=kind, elements=elements)


def bars(ax, x, y):
    from matplotlib.container import BarContainer

    groups = [c for c in ax.containers if isinstance(c, BarContainer)]
    if not groups:
        return None
    # Bars that lie are told as if they stood.
    if all(getattr(g, "orientation", None) == "horizontal" for g in groups):
        x, y = y, x
    elements = []
    for group in groups:
        name = named(group.get_label(), "_container", "Group")
        for bar in group:
            at, width, value = bar.get_x(), bar.get_width(), bar.get_height()
            if group.orientation == "horizontal":
                at, width, value = bar.get_y(), bar.get_height(), bar.get_width()
            elements.append({"label": x.text(at + width / 2, abs(width)), "group": name, "value": number(value)})
    return dict(x.names("x"), **y.names("y"), type="bar", elements=elements)


def corners(ax):
    """The boxes of axes: left, right, bottom, top."""
    from matplotlib.patches import PathPatch

    shapes = [p.get_path().vertices for p in ax.patches if isinstance(p, PathPatch)]
    if not shapes:  # drawn as lines
        shapes = [line.get_xydata() for line in ax.get_lines() if len(line.get_xydata()) == 5]
        shapes = [s for s in shapes if tuple(s[0]) == tuple(s[-1]) and all(a[0] == b[0] or a[1] == b[1] for a, b in zip(s, s[1:]))]
    return [(min(s[:, 0]), max(s[:, 0]), min(s[:, 1]), max(s[:, 1])) for s in shapes]


def box(axis, extent, lines):
    """What a box and the lines at it say, or None if it is not that of a box plot.
    Of a point of a line the place comes first, then the value."""
    left, right, low, high = (float(n) for n in extent)
    middle, near = (left + right) / 2, abs(right - left) * 1e-6
    told = {"label": axis.text(middle, abs(right - left)), "first_quartile": low, "third_quartile": high, "outliers": []}
    widest = 0.0
    for line, drawn in lines:
        places, values = [p for p, _ in line], sorted(v for _, v in line)
        if any(p < left - near or p > right + near for p in places):
            continue
        central = all(abs(p - middle) <= near for p in places)
        if not drawn:
            told["outliers"] += [v for _, v in line] if central else []
        elif central and len(line) == 2 and values[1] == low and "min" not in told:
            told["min"] = values[0]
        elif central and len(line) == 2 and values[0] == high:
            told["max"] = values[1]
        elif not central and values[0] == values[-1] and low <= values[0] <= high and max(places) - min(places) >= widest:
            # The end of a whisker may lie on the box, and is narrower or comes before.
            told["median"], widest = values[0], max(places) - min(places)
    return told if {"min", "median", "max"} <= told.keys() else None


def boxes(ax, x, y):
    extents = corners(ax)
    if not extents:
        return None
    drawn = [(line.get_xydata(), str(line.get_linestyle()).lower() not in ("none", "", " ")) for line in ax.get_lines()]
    lines = [([(float(a), float(b)) for a, b in data], is_line) for data, is_line in drawn if len(data) and len(data) != 5 or not is_line]
    found = [box(x, extent, lines) for extent in extents]
    if not all(found):  # perhaps they lie
        x, y = y, x
        lines = [([(b, a) for a, b in data], is_line) for data, is_line in lines]
        found = [box(x, (c, d, a, b), lines) for a, b, c, d in extents]
    if not all(found):
        return None
    return dict(x.names("x"), **y.names("y"), type="box_and_whisker", elements=found)


def pie(ax):
    from matplotlib.patches import Wedge

    wedges = [p for p in ax.patches if isinstance(p, Wedge)]
    if not wedges:
        return None
    return {"type": "pie", "elements": [{"label": w.get_label(), "angle": rounded(abs(w.theta2 - w.theta1)), "radius": number(w.r)} for w in wedges]}


def one(ax):
    found = pie(ax)
    if not found:
        x, y = Axis(ax.xaxis), Axis(ax.yaxis)
        found = bars(ax, x, y) or boxes(ax, x, y) or points(ax, x, y) or {"type": "unknown", "elements": []}
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
