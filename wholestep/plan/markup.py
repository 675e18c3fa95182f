"""HTML that cannot be broken out of: every string is escaped unless it was made here."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

EMPTY_ELEMENTS = {"br", "col"}


class Html(str):
    """Markup, put into a page as it is."""

    __slots__ = ()


@dataclass(frozen=True)
class Number:
    """A table's cell that sorts by its value, whatever its text says."""

    text: str
    value: float


def element(tag: str, *children: str, **attributes: str | float) -> Html:
    """`<tag attributes>children</tag>`. `class_` is `class`, `data_value` is `data-value`."""
    text = "".join(f' {name.rstrip("_").replace("_", "-")}="{escape(str(it))}"' for name, it in attributes.items())
    return Html(f"<{tag}{text}>" + join(children) + ("" if tag in EMPTY_ELEMENTS else f"</{tag}>"))


def join(parts: Iterable[str]) -> Html:
    return Html("".join(escape(part) for part in parts))


def escape(text: str) -> Html:
    return text if isinstance(text, Html) else Html(html.escape(text))


def table(headings: Sequence[str], rows: Iterable[Sequence[str | Number]], class_: str = "") -> Html:
    """A table whose headings sort it where `class_` is `sortable`; a column of numbers is set to the right."""
    rows = list(rows)
    numeric = [any(isinstance(row[column], Number) for row in rows) for column in range(len(headings))]
    head = [
        element("th", element("button", text, type="button") if class_ == "sortable" else text,
                scope="col", class_="number" if right else "")
        for text, right in zip(headings, numeric, strict=True)
    ]  # fmt: skip
    body = (element("tr", *(_cell(cell) for cell in row)) for row in rows)
    whole = element("table", element("thead", element("tr", *head)), element("tbody", *body), class_=class_)
    return element("div", whole, class_="scroll")


def embedded_json(value: Any) -> Html:
    """JSON for inside a `<script>`: no string in it can end the script or begin a comment."""
    text = json.dumps(value, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(text)


def _cell(cell: str | Number) -> Html:
    if isinstance(cell, Number):
        return element("td", cell.text, class_="number", data_value=cell.value)
    return element("td", cell)
