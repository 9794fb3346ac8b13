"""The one path from a name and some arguments to an operation."""

from collections.abc import Mapping
from typing import Any

from athena.errors import InvalidInput
from athena.kernel.catalog import Catalog
from athena.kernel.operation import Caller


async def invoke(catalog: Catalog, name: str, raw: Mapping[str, Any], caller: Caller) -> Any:
    operation = catalog.find(name)
    if not isinstance(raw, Mapping):
        raise InvalidInput(f"{name}: the arguments must be a JSON object", hint=operation.signature)
    return await operation(caller, **raw)
