"""Turn the worlds of `data/worlds` into training data, and into collections for `athena eval --set`.

    python scripts/build_worlds.py TRAIN.json.xz EVAL.jsonl --judge dov,gus

A world is what one store holds: numbered turns in sessions, and questions with the numbers of the turns that answer
them (none for `none`). The worlds of the writers named by `--judge` go to EVAL, six of them to a store; all others to
TRAIN, in the form that scripts/train_model.py reads.
"""

import argparse
import json
import lzma
import random
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[1] / "data" / "worlds"
SPEAKER_PATTERN = re.compile(r"([A-Z][\w.' -]{0,24}|user|assistant|agent|bot): (.*)")
ROLES = {"user", "assistant", "agent", "bot"}
WORLDS_PER_STORE = 6


class Turn(NamedTuple):
    text: str
    speaker: str
    date: str
    session: int


class World(NamedTuple):
    name: str
    kind: str
    turns: dict[str, Turn]
    questions: list[tuple[str, str, list[str]]]  # type, question, numbers of the turns


def read_worlds(file: Path, choose: random.Random) -> Iterator[World]:
    """Read the worlds of one writer."""
    for block in file.read_text("utf-8").split("@world ")[1:]:
        head, _, rest = block.partition("\n")
        facts = dict(re.findall(r"(\w+)=(\S+)", head))
        talk, _, questions = rest.partition("@questions\n")
        world = World(f"{file.stem}/{facts['id']}", facts["kind"], {}, [])
        style = choose.choices(range(5), [3, 2, 2, 3, 1])[0]
        for session, part in enumerate(talk.split("@session ")[1:]):
            day, *lines = part.splitlines()
            for number, text in (line.split(" ", 1) for line in lines if line.strip()):
                match = SPEAKER_PATTERN.match(text) if world.kind != "documents" else None
                speaker, text = (match[1], match[2]) if match else ("", text)
                when = format_date(date.fromisoformat(day.strip()), style, choose) if speaker else ""
                world.turns[number] = Turn(text, speaker, when, session)
        for line in filter(str.strip, questions.splitlines()):
            sort, question, numbers = (field.strip() for field in line.split("|"))
            world.questions.append(
                (sort, question, [number.strip() for number in numbers.split(",") if number.strip()])
            )
        yield world


def format_date(day: date, style: int, choose: random.Random) -> str:
    time = f"{choose.randint(1, 12)}:{choose.randint(0, 59):02d} {choose.choice(['am', 'pm'])}"
    written = f"{day.day} {day:%B}"
    return (f"{written} {day.year}", day.isoformat(), f"{day:%B} {day.day}, {day.year}", f"{time} on {written}", "")[
        style
    ]


def create_training_data(worlds: list[World]) -> dict[str, Any]:
    passages: list[list[Any]] = []
    pairs = []
    session = 0
    for store, world in enumerate(worlds):
        places = {}
        for number, turn in world.turns.items():
            places[number] = len(passages)
            note = f" ({turn.date})" if turn.date else ""
            header = f"{turn.speaker}{note}: " if turn.speaker else ""
            passages.append([header, turn.text, session + turn.session, len(passages), store])
        session += 1 + max(turn.session for turn in world.turns.values())
        for _, question, numbers in world.questions:
            if numbers:
                pairs.append([f"worlds-{world.kind}", question, [places[number] for number in numbers]])
    return {"passages": passages, "pairs": pairs}


def create_lines(worlds: list[World]) -> Iterator[dict[str, Any]]:
    for i, world in enumerate(worlds):
        store = f"store {i // WORLDS_PER_STORE}"
        for number, turn in world.turns.items():
            names = {"role" if turn.speaker in ROLES else "speaker": turn.speaker, "date": turn.date}
            item = {"store": store, "id": f"{world.name}/{number}", "text": turn.text}
            yield item | {"session": f"{world.name}/{turn.session}"} | {name: v for name, v in names.items() if v}
        for sort, question, numbers in world.questions:
            gold = [f"{world.name}/{number}" for number in numbers]
            yield {"store": store, "question": question, "gold": gold, "category": sort}


def main() -> None:
    parser = argparse.ArgumentParser(description="Turn data/worlds into training data and collections.")
    parser.add_argument("train", type=Path)
    parser.add_argument("evaluation", type=Path)
    parser.add_argument("--judge", default="dov,gus", help="writers whose worlds are not trained on")
    options = parser.parse_args()
    choose, judges = random.Random(7), set(options.judge.split(","))
    worlds = [world for file in sorted(FOLDER.glob("*.txt")) for world in read_worlds(file, choose)]
    train = [world for world in worlds if world.name.split("/")[0] not in judges]
    with lzma.open(options.train, "wt", encoding="utf-8") as file:
        json.dump(create_training_data(train), file, ensure_ascii=False, separators=(",", ":"))
    judged = [world for world in worlds if world.name.split("/")[0] in judges]
    lines = [json.dumps(line, ensure_ascii=False) + "\n" for line in create_lines(judged)]
    options.evaluation.write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    main()
