"""The command line: one file for each command. Slow imports wait until a command runs."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from attnknn.cli import bank, bench, data, demo, evaluate, explain, fit, predict, screen, study, vit
from attnknn.cli.errors import Commands

app = typer.Typer(cls=Commands, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
app.command("demo")(demo.demo)
app.command("fit")(fit.fit)
app.command("predict")(predict.predict)
app.command("evaluate")(evaluate.evaluate)
app.command("explain")(explain.explain)
app.add_typer(bank.app, name="bank")
app.add_typer(data.app, name="data")
app.add_typer(study.app, name="study")
app.add_typer(vit.app, name="vit")
app.add_typer(bench.app, name="bench")


@app.callback(invoke_without_command=True)
@screen.examples(
    "attnknn demo",
    "attnknn fit people.csv --target income --out people-model",
    "attnknn predict people-model new.csv --out answers.csv",
    "attnknn explain people-model new.csv --row 3",
    "attnknn fit photos/ --out photo-model",
    "attnknn -v predict people-model new.csv --out answers.csv",
)
def attnknn(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose", "-v", count=True, help="Tell what is chosen and why; twice, tell more.", metavar=""
        ),
    ] = 0,
) -> None:
    """A classifier that answers with real examples: nearest neighbors, honest probabilities, reasons, edits.

    Results go to stdout, everything else to stderr. Every command exits with 2 for bad input.
    """
    if version:
        from attnknn import __version__

        print(f"attnknn {__version__}")
        raise typer.Exit
    if verbose:
        screen.tell_log(verbose)
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main() -> None:
    """Run the command line."""
    warnings.showwarning = screen.warned
    app(prog_name="attnknn")
