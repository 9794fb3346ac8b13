"""The hooks of all features that take part in edits of memories."""

from collections.abc import Callable

from athena.memory.consolidation.edit_hooks import ConsolidationEditHooks
from athena.memory.edit_hooks import EditHooks
from athena.memory.graph.edit_hooks import GraphEditHooks
from athena.memory.sessions.learning import LearningEditHooks
from athena.programs.edit_hooks import ProgramEditHooks


def create_edit_hooks(forget_runs: Callable[[str], None]) -> tuple[EditHooks, ...]:
    """Return one of each; `forget_runs` drops what this process remembers of the runs of a project."""
    return GraphEditHooks(), ConsolidationEditHooks(), LearningEditHooks(), ProgramEditHooks(forget_runs)
