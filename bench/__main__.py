"""`./run bench`: sealog beside Apache Kafka, and figures of sealog alone."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from bench import machine, render
from bench.figures import FIGURES
from bench.report import Result
from bench.setting import KAFKA, KAFKA_FLUSH, SEALOG, SYSTEMS, Setting
from bench.workloads import WORKLOADS

PAGE = "sealog beside Apache Kafka"

folder_option = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Where the brokers' folders are made: the disk that is measured. Temporary files' place by default.",
)
markdown_option = click.option(
    "--markdown",
    "markdown_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the tables there as well; a section that is there already is replaced.",
)
keep_option = click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the data to this folder and leave it there; what is there already is not written again.",
)


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Benchmarks. Without a command: the whole comparison."""
    # Ended by SIGTERM, too, a run stops the systems that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if context.invoked_subcommand is None:
        context.invoke(compare)


@main.command()
@click.option("--quick", is_flag=True, help="Smaller, a run of some minutes; the full one takes hours.")
@click.option("--tiny", is_flag=True, hidden=True)
@click.option(
    "--only",
    metavar="NAME[,NAME...]",
    default=",".join(WORKLOADS),
    show_default=True,
    help="These workloads alone.",
)
@click.option("--without-kafka", is_flag=True, help="sealog alone: no ratios.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("bench-report"),
    show_default=True,
    help="Folder for report.html, report.md and report.json.",
)
@folder_option
def compare(
    quick: bool = False,
    tiny: bool = False,
    only: str = ",".join(WORKLOADS),
    without_kafka: bool = False,
    out: Path = Path("bench-report"),
    data: Path | None = None,
) -> None:
    """sealog beside Apache Kafka in one run on this machine, with stock clients."""
    names = only.split(",")
    if unknown := set(names) - set(WORKLOADS):
        raise click.BadParameter(f"there is no workload {', '.join(sorted(unknown))}")
    systems = (SEALOG,) if without_kafka else (SEALOG, KAFKA, KAFKA_FLUSH)
    size = "TINY" if tiny else "QUICK" if quick else "FULL"
    command = " ".join(["./run bench compare", *sys.argv[2:]])

    def of(name: str) -> Callable[[Setting], Result]:
        module = WORKLOADS[name]
        return lambda setting: module.run(setting, **getattr(module, size))

    out.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    failed = []
    with tempfile.TemporaryDirectory(prefix="sealog-bench-", dir=data) as place:
        where = machine.describe(Path(place))
        where |= {name: SYSTEMS[name] for name in systems}
        for name in names:
            try:
                with tempfile.TemporaryDirectory(dir=place) as folder:
                    results.append(of(name)(Setting(Path(folder), systems, click.echo)))
            except Exception:  # noqa: BLE001 - the other workloads' figures are worth having
                failed.append(name)
                traceback.print_exc()
            # After each, so that hours are not lost with the last one.
            _write(out, where, command, results, failed)
    for result in results:
        click.echo(render.markdown(result))
    click.echo(f"{out}/report.html, report.md and report.json")
    if failed:
        raise click.ClickException(f"without figures, as they failed: {', '.join(failed)}")


def _write(
    out: Path, where: dict[str, str], command: str, results: Sequence[Result], failed: Sequence[str]
) -> None:
    if failed:
        where = where | {"FAILED": ", ".join(failed)}
    found = {"machine": where, "command": command, "results": [result.as_json() for result in results]}
    (out / "report.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    (out / "report.md").write_text(render.markdown_page(PAGE, where, command, results), encoding="utf-8")
    (out / "report.html").write_text(render.html_page(PAGE, where, command, results), encoding="utf-8")


def _figure(name: str) -> click.Command:
    figure = FIGURES[name]

    @click.command(name, help=(figure.__doc__ or "").split("\n")[0], short_help=figure.SHORT)
    @click.option("--quick", is_flag=True, help="Smaller sizes.")
    @markdown_option
    @folder_option
    def command(quick: bool, markdown_file: Path | None, data: Path | None, keep: Path | None = None) -> None:
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            _take(name, keep, quick, markdown_file)
            return
        with tempfile.TemporaryDirectory(prefix="sealog-bench-", dir=data) as place:
            _take(name, Path(place), quick, markdown_file)

    return keep_option(command) if getattr(figure, "KEEPS", False) else command


def _take(name: str, folder: Path, quick: bool, markdown_file: Path | None) -> None:
    figure = FIGURES[name]
    where = machine.describe(folder)
    result = figure.run(folder, **(figure.QUICK if quick else figure.FULL))
    command = f"./run bench {name}{' --quick' if quick else ''}"
    result.notes.append(
        f"`{command}`, {where['date']}, sealog {where['sealog']}; {where['CPU']}, load {where['load before']} before; "
        f"{where['disk']}."
    )
    if markdown_file is not None:
        for number, plot in enumerate(result.plots):
            picture = markdown_file.with_name(f"{name}-{number + 1}.png")
            render.png(plot, picture)
            result.notes.insert(number, f"![{plot.title}]({picture.name})")
        render.put_section(markdown_file, name, render.markdown(result))
    click.echo(render.markdown(result))


@main.command()
@click.option("--quick", is_flag=True, help="Smaller sizes.")
@markdown_option
@folder_option
def figures(quick: bool, markdown_file: Path | None, data: Path | None) -> None:
    """All figures of sealog alone, one after the other, but for those that take half an hour."""
    for name, figure in FIGURES.items():
        if getattr(figure, "KEEPS", False) and not quick:
            continue
        with tempfile.TemporaryDirectory(prefix="sealog-bench-", dir=data) as place:
            _take(name, Path(place), quick, markdown_file)


for _name in FIGURES:
    main.add_command(_figure(_name))

if __name__ == "__main__":
    main(prog_name="./run bench")
