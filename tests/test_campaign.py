"""A small slice of each part of the campaign finds nothing, and the campaign finds what it looks for."""

import subprocess
import sys
from pathlib import Path

import pytest
from campaign.model import Model, format_state
from campaign.power import PowerCuts
from campaign.processes import call_app, open_app
from campaign.result import Failure, Tally

from athena.app.compose import App
from athena.storage.sqlite.log import WriteAheadLog
from conftest import FULL, HERE, Engine

ROUNDS = {"kills": 3, "power": 2, "damage": 1, "surfaces": 1, "postgres": 1, "day": 1}
ROUNDS |= {"failover": 1} if FULL else {}  # two servers, 5 s
SEEDS = range(9, 40)  # some of them fail a sync between a relaxed write and an acknowledged one, the first does


@pytest.mark.parametrize("part", ROUNDS)
def test_slice_finds_nothing(part: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "campaign", "--only", part, "--quick", "--rounds", str(ROUNDS[part])]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert f"{ROUNDS[part]} rounds" in done.stdout
    assert done.stderr == ""


def remember(app: App, content: str) -> int:
    return int(call_app(app, "remember", content=content)["id"])


def test_model_tells_lost_doubled_and_torn(tmp_path: Path, engine: Engine) -> None:
    app = open_app(engine.open(tmp_path / "athena.db"))
    remember(app, "keya1 is here")
    remember(app, "keya2 is here")
    remember(app, "keya2 is here, too")
    model = Model()
    model.acknowledge(model.begin({"keya1": format_state("keya1 is here")}), "remember")
    model.begin({"keya3": format_state("keya3 is not here")})  # may have happened, or not
    model.begin({"keya4": None})
    assert model.copy().compare(app).doubled == ("keya2",)
    call_app(app, "forget", memory_id=remember(app, "keya2 is here, too"))
    model.begin({"keya2": format_state("keya2 is here")})
    assert not model.copy().compare(app)
    model.begin({"keya5": format_state("keya5 is here"), "keya6": format_state("keya6 is not here")})
    remember(app, "keya5 is here")
    assert model.copy().compare(app).torn == ("keya5, keya6",)
    model.acknowledge(model.begin({"keya7": format_state("keya7 is not here")}), "remember")
    assert [found.split(":")[0] for found in model.copy().compare(app).lost] == ["keya7"]
    model.acknowledge(model.begin({"keya1": format_state("keya1 is here", occurrences=2)}), "remember")
    assert "keya1" in {found.split(":")[0] for found in model.copy().compare(app).lost}
    app.close()


def test_power_cuts_find_unmended_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriteAheadLog, "repair", lambda *_: None)

    def lose_something() -> None:
        for seed in SEEDS:
            PowerCuts(tmp_path).run_round(seed, Tally())

    with pytest.raises(Failure) as failure:
        lose_something()
    assert failure.value.findings.lost
