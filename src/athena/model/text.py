"""Text as every engine can store it."""


def storable(text: str) -> str:
    """Return a text that every engine can store: no NUL, no half of a surrogate pair."""
    if "\0" in text:
        text = text.replace("\0", "")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
