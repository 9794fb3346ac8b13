"""`athena eval`: how well does search find, on collections with known answers."""

from pathlib import Path
from typing import Any

import click

from athena.cli import evaluation_collection, evaluation_trial, output
from athena.cli.evaluation_measures import MEASURES, Answered, MeasureSummary, summarise_results
from athena.embedding.minilm import MiniLM
from athena.errors import InvalidInput


@click.command("eval")
@click.option("--locomo", type=click.Path(path_type=Path), help="A LoCoMo file.")
@click.option("--cranfield", type=click.Path(path_type=Path), help="A folder with the Cranfield collection.")
@click.option("--set", "lines", type=click.Path(path_type=Path), help="A file of your own; see docs/evaluation.md.")
@click.option("--database", help="Use a project of its own in a PostgreSQL database, which stays there.", metavar="URL")
@click.option("--ablate", is_flag=True, help="Also leave out each term of the ranking in turn.")
@click.option("--json", "json_output", is_flag=True, help="Print JSON.")
def evaluate(
    locomo: Path | None,
    cranfield: Path | None,
    lines: Path | None,
    database: str | None,
    ablate: bool,
    json_output: bool,
) -> None:
    """Measure search on collections with known answers; your own store is not touched.

    Example: athena eval --set questions.jsonl --ablate
    """
    sets = {
        name: read(path)
        for name, path, read in (
            ("LoCoMo", locomo, evaluation_collection.load_locomo),
            ("Cranfield", cranfield, evaluation_collection.load_cranfield),
            ("set", lines, evaluation_collection.load_jsonl),
        )
        if path is not None
    }
    if not sets:
        raise InvalidInput("name a collection", hint="--locomo FILE, --cranfield FOLDER or --set FILE")
    variants = evaluation_trial.VARIANTS if ablate else {"all terms": evaluation_trial.VARIANTS["all terms"]}
    results = {name: _run_trials(collections, variants, database) for name, collections in sets.items()}
    if json_output:
        return output.print_json(
            {name: {v: summarise_results(a)._asdict() for v, a in found.items()} for name, found in results.items()}
        )
    for name, found in results.items():
        _print_report(name, found)
    return None


def _run_trials(
    collections: list[evaluation_collection.Collection], variants: dict[str, Any], url: str | None
) -> dict[str, list[Answered]]:
    model = MiniLM()
    answers: dict[str, list[Answered]] = {name: [] for name in variants}
    for one in collections:
        with evaluation_trial.open_trial(one, model, lambda text: click.echo(text, err=True), url) as tried:
            for name, weights in variants.items():
                answers[name] += tried.ask_questions(weights)
    return answers


def _print_report(name: str, found: dict[str, list[Answered]]) -> None:
    whole = summarise_results(found["all terms"])
    click.echo(f"\n{name}: {whole.count} questions, {whole.median_ms:.1f} ms each (95 % within {whole.p95_ms:.1f})")
    click.echo(f"{'':<30}" + "".join(f"{measure:>9}" for measure in MEASURES) + "   R@10 lies within")
    for variant, answers in found.items():
        click.echo(_format_row(variant, summarise_results(answers)))
    categories = sorted({one.category for one in found["all terms"]})
    for category in categories if len(categories) > 1 else ():
        part = [one for one in found["all terms"] if one.category == category]
        click.echo(_format_row(f"  {category} ({len(part)})", summarise_results(part)))


def _format_row(label: str, figures: MeasureSummary) -> str:
    low, high = figures.intervals["R@10"]
    return f"{label:<30}" + "".join(f"{figures.means[m]:>9.3f}" for m in MEASURES) + f"   {low:.3f} to {high:.3f}"
