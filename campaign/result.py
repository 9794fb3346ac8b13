"""Counts of a part of the campaign, and the failure that ends a round."""

from collections import Counter

from campaign.model import Findings


class Failure(Exception):
    """A round that found something."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(str(findings))
        self.findings = findings


class Tally:
    """Counts what a part has done and found."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.found: Counter[str] = Counter()
        self.seconds = 0.0
        self.notes: list[str] = []  # lines for the report

    def add(self, **counts: int) -> None:
        self.counts.update(counts)

    def add_findings(self, findings: Findings) -> None:
        self.found.update({name: len(found) for name, found in findings._asdict().items() if found})
