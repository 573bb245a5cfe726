"""The backend of matplotlib: a figure is shown by the kernel."""

from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas  # noqa: F401
from matplotlib.backends.backend_agg import FigureManagerBase as FigureManager  # noqa: F401

from kernel import figures as show  # noqa: F401
