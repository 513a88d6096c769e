"""The chart of a run: messages per second, messages in flight, and depth, for each node.

A ``Sample`` has the figures of one moment. ``draw`` returns the chart as text for a terminal, ``save`` writes an image.
"""

from __future__ import annotations

import itertools

import attrs

HEIGHT = 11
"""Lines of a picture in the terminal."""


@attrs.frozen
class Sample:
    """The figures of one moment; a tuple has a figure for each node.

    Attributes:
        seconds: since the beginning of the run.
        published: messages so far.
        finished: messages so far.
        in_flight: messages that are delivered and not finished.
        depth: messages that wait.
    """

    seconds: float
    published: tuple[int, ...]
    finished: tuple[int, ...]
    in_flight: tuple[int, ...]
    depth: tuple[int, ...]


def draw(samples, columns):
    """Return the pictures as text.

    Args:
        samples: two or more, in order.
        columns: the width of the terminal.
    """
    import plotext

    pictures = []
    for title, curves in _pictures(samples):
        plotext.clear_figure()
        plotext.theme("clear")
        plotext.limit_size(False, False)  # to what plotext takes for the terminal
        plotext.plot_size(columns, HEIGHT)
        plotext.title(title)
        for (name, (seconds, figures)), marker in zip(curves.items(), ("braille", "dot"), strict=False):
            plotext.plot(seconds, figures, label=name, marker=marker)
        top = max(max(figures) for _, figures in curves.values())
        ticks = [top * part / 4 for part in range(5)]
        plotext.yticks(ticks, [f"{tick:>9,.0f}" for tick in ticks])
        pictures.append("\n".join(line.rstrip() for line in plotext.uncolorize(plotext.build()).splitlines()))
    return "\n".join(pictures)


def save(samples, path):
    """Write the pictures into one file, whose name ends with the format, such as ``.png``.

    Args:
        samples: two or more, in order.
        path: the file.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    pictures = _pictures(samples)
    figure = Figure(figsize=(10, 8), layout="constrained")
    for axes, (title, curves) in zip(figure.subplots(len(pictures), sharex=True), pictures, strict=True):
        for name, (seconds, figures) in curves.items():
            axes.plot(seconds, figures, label=name)
        axes.set_title(title, loc="left")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(loc="best")
    axes.set_xlabel("seconds")
    figure.savefig(path)


def _pictures(samples):
    """Return the titles, each with its curves: for each name the seconds and the figures."""
    seconds = [sample.seconds for sample in samples]
    rates = {
        name: (seconds[1:], [_rate(name, *pair) for pair in itertools.pairwise(samples)])
        for name in ("published", "finished")
    }
    nodes = range(len(samples[0].depth))
    levels = [
        (title, {f"node {node + 1}": (seconds, [getattr(sample, name)[node] for sample in samples]) for node in nodes})
        for title, name in (("in flight", "in_flight"), ("depth", "depth"))
    ]
    return [("messages per second", rates), *levels]


def _rate(name, before, after):
    return (sum(getattr(after, name)) - sum(getattr(before, name))) / (after.seconds - before.seconds)
