"""An explanation as HTML that needs nothing else: a part for a notebook, a whole page for a browser.

Colors are half transparent or the reader's own, so that both light and dark grounds suit them.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

from attnknn.data import png_uri
from attnknn.data.images import Pixels

if TYPE_CHECKING:
    from attnknn.predict.explain import Explanation, Reason

_MOST_CLASSES: Final = 10
_MOST_COLUMNS: Final = 12
_QUERY, _NEIGHBOR = 176, 96  # pixels of the screen that the longer side of a picture takes

STYLE: Final = """<style>
.attnknn { font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; margin: 0 0 1.5rem }
.attnknn-answer { display: flex; flex-wrap: wrap; gap: 1rem 2rem; align-items: flex-start; margin-bottom: 1rem }
.attnknn-answer > div { min-width: 0 }
.attnknn figure { margin: 0; max-width: 14rem; overflow-wrap: anywhere }
.attnknn figcaption, .attnknn-quiet { opacity: .7; font-size: .85em }
.attnknn p { margin: 0 0 .6rem }
.attnknn-said { font-size: 1.15em }
.attnknn h3 { font-size: 1em; margin: 1.2rem 0 .5rem }
.attnknn img { display: block; border: 1px solid #8886; border-radius: 4px; background: #8882;
  margin-bottom: .3rem; max-width: 100%; height: auto }
.attnknn img.attnknn-small { image-rendering: pixelated }
.attnknn-wide { overflow-x: auto }
.attnknn table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0; font-size: 1em }
.attnknn th, .attnknn td { padding: .25rem .9rem .25rem 0; border: 0; border-bottom: 1px solid #8884;
  text-align: left; background: none; white-space: nowrap }
.attnknn th { font-weight: 600; opacity: .7; font-size: .85em; vertical-align: bottom; white-space: normal }
.attnknn th.attnknn-class { opacity: 1; font-size: 1em; max-width: 18rem;
  overflow-wrap: break-word }
.attnknn-bar { display: inline-flex; width: 9rem; height: .6rem; background: #8883; border-radius: 2px;
  overflow: hidden; vertical-align: middle; margin-right: .5rem }
.attnknn-bar i { display: block; height: 100% }
.attnknn-chance { background: #2f9e77 } .attnknn-near { background: #3f8ad8 }
.attnknn-prior { background: #d9902f }
.attnknn-key { display: inline-block; width: .7em; height: .7em; border-radius: 2px; margin-right: .3em }
.attnknn ul { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .7rem;
  list-style: none; padding: 0; margin: 0 }
.attnknn li { border: 1px solid #8884; border-left: 4px solid #d9902f; border-radius: 6px; padding: .6rem;
  font-size: .9em; overflow-wrap: anywhere; font-variant-numeric: tabular-nums }
.attnknn li.attnknn-agrees { border-left-color: #2f9e77 }
.attnknn-wide + .attnknn-quiet, ul + .attnknn-quiet { margin-top: .4rem }
@media (max-width: 40rem) { .attnknn-bar { width: 5rem } }
.attnknn li span { display: block } .attnknn li .attnknn-bar { display: flex; width: 100%; margin: .25rem 0 }
</style>"""


def part(explained: Explanation, most: int, name: str | None = None) -> str:
    """An explanation without its style, to stand in a page.

    Args:
        explained: What to show.
        most: Neighbors to show.
        name: What the explained row is called, below its picture.
    """
    chance = explained.probabilities[explained.prediction]
    head = f'<p class="attnknn-said"><b>{_text(explained.prediction)}</b> with probability {chance:.3f}</p>'
    picture = "" if explained.picture is None else _figure(explained.picture, name)
    return (
        f'<div class="attnknn"><div class="attnknn-answer">{picture}<div>{head}{_classes(explained)}</div></div>'
        f"{_neighbors(explained, most)}</div>"
    )


def page(explained: Explanation, title: str, *, most: int = 20, name: str | None = None) -> str:
    """A whole page that a browser shows without a network."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ margin: 1.5rem auto; max-width: 66rem; padding: 0 1rem; background: Canvas; color: CanvasText }}
h1 {{ font: 600 1.4rem/1.3 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere }}
</style>{STYLE}</head>
<body><h1>{escape(title)}</h1>{part(explained, most, name)}</body></html>
"""


def _figure(picture: Pixels, name: str | None) -> str:
    caption = "" if name is None else f"<figcaption>{escape(name)}</figcaption>"
    return f"<figure>{_image(picture, _QUERY, 'the explained picture')}{caption}</figure>"


def _image(picture: Pixels, longest: int, words: str) -> str:
    height, width = picture.shape[:2]
    scale = longest / max(height, width)
    small = ' class="attnknn-small"' if scale > 1 else ""
    return (
        f'<img{small} src="{png_uri(picture)}" alt="{escape(words)}" '
        f'width="{max(1, round(width * scale))}" height="{max(1, round(height * scale))}">'
    )


def _classes(explained: Explanation) -> str:
    """A line for each class: its probability, and its vote as neighbors and prior gave it."""
    ranked = sorted(explained.probabilities, key=lambda label: -explained.probabilities[label])
    lines = "".join(_class(explained, label) for label in ranked[:_MOST_CLASSES])
    hidden = len(ranked) - _MOST_CLASSES
    notes = [f"and {hidden} classes with less"] if hidden > 0 else []
    if explained.temperature is not None:
        notes.append(f"the vote to the power 1 / {explained.temperature:.3g}, normalized, is the probability")
    said = f'<p class="attnknn-quiet">{"; ".join(notes)}</p>' if notes else ""
    return (
        '<div class="attnknn-wide"><table><thead><tr><th>class</th><th>probability</th><th>vote: '
        '<span class="attnknn-key attnknn-near"></span>from neighbors + '
        '<span class="attnknn-key attnknn-prior"></span>from prior</th></tr></thead>'
        f"<tbody>{lines}</tbody></table></div>{said}"
    )


def _class(explained: Explanation, label: Any) -> str:
    chance, near = explained.probabilities[label], explained.contributions[label]
    prior = explained.from_prior[label]
    return (
        f'<tr><th scope="row" class="attnknn-class">{_text(label)}</th>'
        f"<td>{_bar((chance, 'chance'))}{chance:.3f}</td>"
        f"<td>{_bar((near, 'near'), (prior, 'prior'))}{near:.3f} + {prior:.3f}</td></tr>"
    )


def _bar(*parts: tuple[float, str]) -> str:
    inner = "".join(
        f'<i class="attnknn-{kind}" style="width:{100 * min(1.0, max(0.0, share)):.2f}%"></i>'
        for share, kind in parts
    )
    return f'<span class="attnknn-bar" aria-hidden="true">{inner}</span>'


def _neighbors(explained: Explanation, most: int) -> str:
    shown = explained.neighbors[:most]
    if not shown:
        return '<p class="attnknn-quiet">no neighbors: the prior alone decides</p>'
    pictured = all(reason.picture is not None for reason in shown)
    body = _cards(shown, explained.prediction) if pictured else _table(shown)
    rest = explained.neighbors[most:]
    total = sum(reason.weight for reason in rest)
    more = f'<p class="attnknn-quiet">and {len(rest)} more, together {total:.3f}</p>' if rest else ""
    return f"<h3>Neighbors, the heaviest first</h3>{body}{more}"


def _cards(shown: Sequence[Reason], prediction: Any) -> str:
    cards = "".join(_card(reason, prediction) for reason in shown)
    key = (
        '<p class="attnknn-quiet"><span class="attnknn-key attnknn-chance"></span>of the predicted class '
        '<span class="attnknn-key attnknn-prior"></span>of another</p>'
    )
    return f"{key}<ul>{cards}</ul>"


def _card(reason: Reason, prediction: Any) -> str:
    words = f"example {reason.id}, labelled {reason.label}"
    picture = "" if reason.picture is None else _image(reason.picture, _NEIGHBOR, words)
    side = ' class="attnknn-agrees"' if reason.label == prediction else ""
    return (
        f"<li{side}>{picture}<b>{_text(reason.label)}</b>{_bar((reason.weight, 'near'))}"
        f"<span>weight {reason.weight:.3f}</span><span>distance {reason.distance:.4g}</span>"
        f'<span class="attnknn-quiet">{_text(reason.id)}</span></li>'
    )


def _table(shown: Sequence[Reason]) -> str:
    columns = list(shown[0].row or ())[:_MOST_COLUMNS]
    head = "".join(f"<th>{_text(name)}</th>" for name in ["id", "label", "weight", "distance", *columns])
    body = "".join(_line(reason, columns) for reason in shown)
    return f'<div class="attnknn-wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _line(reason: Reason, columns: Sequence[str]) -> str:
    row = reason.row or {}
    told = [f"{reason.distance:.4g}", *("" if row.get(name) is None else row[name] for name in columns)]
    return (
        f"<tr><td>{_text(reason.id)}</td><td>{_text(reason.label)}</td>"
        f"<td>{_bar((reason.weight, 'near'))}{reason.weight:.3f}</td>"
        f"{''.join(f'<td>{_text(cell)}</td>' for cell in told)}</tr>"
    )


def _text(value: Any) -> str:
    return escape(str(value))
