"""Pages of results: Markdown, and HTML with plots drawn as SVG (matplotlib, extra `bench`)."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from bench.report import Plot, Result, Table, shown

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 } th, td { padding: .25em .8em; border-bottom: 1px solid #ddd }
td { text-align: right; font-variant-numeric: tabular-nums } td:first-child, th:first-child { text-align: left }
.reached { color: #176b2c } .missed { color: #a61b1b } figure { margin: 1em 0 } svg { max-width: 100%; height: auto }
"""


def markdown_table(table: Table) -> str:
    lines = [f"**{table.title}**", ""] if table.title else []
    lines.append("| " + " | ".join(table.columns) + " |")
    lines.append("|" + "---|" * len(table.columns))
    lines += ["| " + " | ".join(shown(cell) for cell in row) + " |" for row in table.rows]
    return "\n".join(lines)


def markdown(result: Result, level: int = 2) -> str:
    """One result as a section."""
    parts = [f"{'#' * level} {result.title}", result.text]
    parts += [markdown_table(table) for table in result.tables]
    if result.targets:
        parts.append("\n".join(f"- {_verdict(result, number)}" for number in range(len(result.targets))))
    parts += result.notes
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdict(result: Result, number: int) -> str:
    target = result.targets[number]
    bound = "at least" if target.at_least else "at most"
    said = "reached" if target.reached else "NOT reached"
    return f"{target.text}: {shown(target.value)} ({bound} {shown(target.limit)}): {said}"


def markdown_page(title: str, machine: Mapping[str, str], command: str, results: Sequence[Result]) -> str:
    lines = [f"# {title}", "", f"`{command}`", ""]
    lines += [f"- {name}: {value}" for name, value in machine.items()]
    return "\n".join(lines) + "\n\n" + "\n".join(markdown(result) for result in results)


def html_page(title: str, machine: Mapping[str, str], command: str, results: Sequence[Result]) -> str:
    """One file without references to others."""
    body = [f"<h1>{escape(title)}</h1><p><code>{escape(command)}</code></p><ul>"]
    body += [f"<li>{escape(name)}: {escape(value)}</li>" for name, value in machine.items()]
    body.append("</ul>")
    for result in results:
        body.append(f"<h2>{escape(result.title)}</h2><p>{escape(result.text)}</p>")
        body += [_html_table(table) for table in result.tables]
        if result.targets:
            items = [
                f'<li class="{"reached" if target.reached else "missed"}">{escape(_verdict(result, number))}</li>'
                for number, target in enumerate(result.targets)
            ]
            body.append(f"<ul>{''.join(items)}</ul>")
        body += [f"<figure>{svg(plot)}</figure>" for plot in result.plots]
        body += [f"<p>{escape(note)}</p>" for note in result.notes]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(shown(cell))}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return f"<h3>{escape(table.title)}</h3><table><tr>{head}</tr>{rows}</table>"


def svg(plot: Plot) -> str:
    """The picture as an <svg> element."""
    drawn = _draw(plot, "svg").decode()
    return drawn[drawn.index("<svg") :]


def png(plot: Plot, file: Path) -> None:
    file.write_bytes(_draw(plot, "png"))


def _draw(plot: Plot, kind: str) -> bytes:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for name, points in plot.series.items():
        xs, ys = zip(*points, strict=True) if points else ((), ())
        axes.plot(xs, ys, "." if plot.points else "o-", label=name, markersize=3 if plot.points else 4)
    axes.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
    axes.set_xscale("symlog" if plot.log_x else "linear")
    axes.set_yscale("log" if plot.log_y else "linear")
    axes.grid(alpha=0.3)
    axes.legend()
    out = io.BytesIO()
    figure.savefig(out, format=kind, metadata={"Date": None} if kind == "svg" else None)
    pyplot.close(figure)
    return out.getvalue()


def put_section(file: Path, name: str, text: str) -> None:
    """Replace what stands between this section's marks in a Markdown file, or add it at the end."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    section = f"{begin}\n{text.strip()}\n{end}"
    old = file.read_text(encoding="utf-8") if file.exists() else ""
    if begin in old:
        before, rest = old.split(begin, 1)
        new = before + section + rest.split(end, 1)[1]
    else:
        new = f"{old.rstrip()}\n\n{section}\n".lstrip()
    file.write_text(new, encoding="utf-8")
