"""Operations as Python source: what an agent reads is how its program calls."""

from collections.abc import Iterable
from typing import get_args, get_type_hints, is_typeddict

from athena.kernel import shapes
from athena.kernel.catalog import AnyOperation

APPROVAL = "Needs approval in programs: one that calls it waits for a person."


def render(operation: AnyOperation, *, bare: bool = False) -> str:
    """Write one operation as a function with its types and help; `bare` leaves out the help."""
    arguments = ", ".join(
        f"{p.name}: {shapes.source(p.annotation)}" + ("" if p.required else f" = {p.default!r}")
        for p in operation.parameters
    )
    head = f"def {operation.name}({arguments}) -> {shapes.source(operation.result)}:"
    if bare:
        return f"{head}  # {operation.summary}"
    lines = [head, f'    """{operation.summary}']
    if operation.documentation.details:
        lines += ["", *(f"    {line}".rstrip() for line in operation.documentation.details.splitlines())]
    if operation.approval:
        lines += ["", f"    {APPROVAL}"]
    if helped := [p for p in operation.parameters if p.help]:
        lines += ["", *(f"    {p.name}: {p.help}" for p in helped)]
    lines += [f"    >>> {example}" for example in operation.documentation.examples]
    return "\n".join([*lines, '    """'])


def render_module(operations: Iterable[AnyOperation]) -> str:
    """Write operations as one source file: the shapes they take and return first, then the functions."""
    chosen = list(operations)
    records: dict[str, str] = {}
    for operation in chosen:
        for annotation in (*(p.annotation for p in operation.parameters), operation.result):
            _collect(annotation, records)
    return "\n\n".join([*records.values(), *(render(operation) for operation in chosen)]) + "\n"


def _collect(annotation: object, records: dict[str, str]) -> None:
    kind = shapes.parts(annotation)[0]
    for inner in get_args(kind):
        _collect(inner, records)
    if (is_typeddict(kind) or hasattr(kind, "__dataclass_fields__")) and kind.__name__ not in records:
        hints = get_type_hints(kind, include_extras=True)
        for hint in hints.values():
            _collect(hint, records)
        fields = "\n".join(f"    {name}: {shapes.source(hint)}" for name, hint in hints.items())
        records[kind.__name__] = f"class {kind.__name__}(TypedDict):\n{fields}"
