"""The parts of the report's page: escaped text, tables aligned at the decimal point, figures."""

import base64
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

from bbvi.study.numerals import decimals_for, number

FIGURE_SPACE, POINT_SPACE = "\u2007", "\u2008"  # as wide as a digit and as a point
PIXELS_A_POINT = 1.35  # figures of 8.4 inches fill the page


class Html(str):
    """Text that is markup already: `tag` escapes all other text."""


def join(*parts: Any) -> Html:
    """Join parts one after the other, escaped unless they are markup."""
    return Html("".join(part if isinstance(part, Html) else escape(str(part)) for part in parts))


def tag(name: str, *children: Any, **attributes: Any) -> Html:
    """Write an element; an attribute's trailing underscore is dropped, and an attribute that is None left out.

    Examples:
        >>> tag("p", "K < 5 & ", tag("b", "W"), class_="note")
        '<p class="note">K &lt; 5 &amp; <b>W</b></p>'
    """
    written = "".join(f' {key.rstrip("_")}="{escape(str(v))}"' for key, v in attributes.items() if v is not None)
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


class Column(NamedTuple):
    """A column of a table: its heading and, for each row, its cells (one, or an estimate and its error)."""

    head: Html
    cells: list[Html]


def texts(head: Any, values: Sequence[Any], kind: str | None = None) -> Column:
    """Make a column of words."""
    return Column(tag("th", head, scope="col", class_=kind), [tag("td", value, class_=kind) for value in values])


def names(head: str, values: Sequence[Any]) -> Column:
    """Make the column that says what each row is about."""
    return Column(tag("th", head, scope="col"), [tag("th", value, scope="row") for value in values])


def numbers(head: str, written: Sequence[str]) -> Column:
    """Make a column of numbers, aligned at the decimal point.

    Examples:
        >>> numbers("paper", ["-32.7", "-174"]).cells[1] == tag("td", "-174" + POINT_SPACE + FIGURE_SPACE, class_="number")
        True
    """
    cells = [tag("td", text, class_="number") for text in padded(written)]
    return Column(tag("th", head, scope="col", class_="number"), cells)


def estimates(head: str, values: Sequence[Any], errors: Sequence[Any]) -> Column:
    """Make a column of numbers and one of their standard errors, under a common heading."""
    decimals = decimals_for(errors)
    shown = padded([number(value, decimals) for value in values])
    plus = ["" if error is None else f"± {number(error, decimals)}" for error in errors]
    cells = [
        join(tag("td", value, class_="number"), tag("td", error, class_="error"))
        for value, error in zip(shown, plus, strict=True)
    ]
    return Column(tag("th", head, scope="col", colspan=2, class_="estimate"), cells)


def padded(written: Sequence[str]) -> list[str]:
    """Fill numbers up with invisible digits, so that their points align on the right."""
    fractions = [len(text.partition(".")[2]) for text in written]
    most = max(fractions, default=0)
    return [
        text + (POINT_SPACE if most and not have else "") + FIGURE_SPACE * (most - have)
        for text, have in zip(written, fractions, strict=True)
    ]


def table(caption: Any, columns: Sequence[Column], last: int = 0) -> Html:
    """Write a table that scrolls by itself when the screen is narrow; the `last` rows are set apart."""
    rows = [tag("tr", *cells) for cells in zip(*(column.cells for column in columns), strict=True)]
    body = tag("tbody", *rows[: len(rows) - last])
    foot = tag("tbody", *rows[len(rows) - last :], class_="apart") if last else ""
    head = tag("thead", tag("tr", *(column.head for column in columns)))
    words = tag("p", caption, class_="caption") if caption else ""  # outside, or it would scroll with the table
    return tag("div", words, tag("div", tag("table", head, body, foot), class_="scroll", tabindex=0), class_="table")


def titled(name: str) -> str:
    """Capitalise a name for the beginning of a heading."""
    return name[:1].upper() + name[1:]


def facts(pairs: dict[str, Any]) -> Html:
    """Write labels and what they stand for."""
    return tag("dl", *(tag("div", tag("dt", label), tag("dd", text)) for label, text in pairs.items()))


def figure(label: str, caption: Any, alt: str, draw: Callable[[bool], str]) -> Html:
    """Write a drawing with its caption; `draw(narrow)` makes the one for screens and the one for phones."""
    phone, screen = draw(True), draw(False)
    narrow, wide = data_uri(phone), data_uri(screen)
    width = round(PIXELS_A_POINT * float(screen.split('width="', 1)[1].split("pt", 1)[0]))
    source = Html(f'<source media="(max-width: 640px)" srcset="{narrow}">')
    image = Html(f'<img src="{wide}" alt="{escape(alt)}" width="{width}">')
    words = tag("figcaption", tag("b", f"{label}. ") if label else "", caption)
    return tag("figure", tag("picture", source, image), words)


def data_uri(svg: str) -> str:
    """Write a drawing as a data URI: an image of its own, whose ids cannot clash with another's."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def section(key: str, heading: str, *content: Any) -> Html:
    """Write a section that the contents can point at."""
    return tag("section", tag("h2", heading), *content, id=key)


def document(title: str, *content: Any) -> str:
    """Write the whole page, with its style sheet inside."""
    style = (files("bbvi.study") / "report.css").read_text(encoding="utf-8")
    icon = '<link rel="icon" href="data:,">'
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">{icon}'
    head += f"{tag('title', title)}<style>\n{style}</style>"
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{tag("main", *content)}</body></html>\n'
