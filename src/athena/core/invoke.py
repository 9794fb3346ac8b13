"""The one path from a name and some arguments to an operation."""

from collections.abc import Mapping
from typing import Any

from athena.core.catalog import Catalog
from athena.core.operation import Caller
from athena.errors import InvalidInput


async def invoke(catalog: Catalog, name: str, raw: Mapping[str, Any], caller: Caller) -> Any:
    operation = catalog.get_operation(name)
    if not isinstance(raw, Mapping):
        raise InvalidInput(f"{name}: the arguments must be a JSON object", hint=operation.signature)
    return await operation(caller, **raw)
