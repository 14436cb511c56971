"""The tables of token layers: what each reaches and costs, and whether random candidates help by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnknn.study.published import published
from attnknn.study.verdicts import short, verdict
from image_tables import estimate

DIRECTIONS = {"forward": "forward", "forward_backward": "forward + backward"}
"""What a step is measured in, and how a column is headed."""

COMMON = ("layer", "img_size", "patch_size", "num_layers", "num_classes", "in_channels")
"""What tells no two variants of a layer apart."""

Report = Mapping[str, Any]

DATA = ("cifar10", "cifar10-plain", "cifar100")
SAMPLES = (16, 32)
"""How many random candidates were tried."""


SHORT = (
    *("attention", "attention-random-32", "kvt", "convnn", "convnn-random-32"),
    *("local", "neighborhood-2d", "branch-conv"),
)
"""Variants that the README shows."""


def summary(reports: Sequence[Report]) -> str:
    """Accuracy of the variants that matter most, a column for each report."""
    titles = [f"{each['config']['data']}, {_seen(each['config']['options'])}" for each in reports]
    lines = [f"| layer | {' | '.join(titles)} |", f"|{'---|' * (len(titles) + 1)}"]
    for name in SHORT:
        found = [each["methods"].get(name) for each in reports]
        cells = ["-" if one is None else estimate(one["accuracy"]) for one in found]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def details(reports: Sequence[Report]) -> str:
    """A table for each report, the comparisons that were planned, and the answer of the control."""
    return "\n".join("\n".join([*_table(report), *_sentences(report)]) for report in reports)


def beside(reports: Sequence[Report]) -> str:
    """A table for each report with what the reference published for the same layer."""
    return "\n".join("\n".join([*_table(report, others=True), *_sentences(report)]) for report in reports)


def _table(report: Report, *, others: bool = False) -> list[str]:
    told = ["published accuracy"] * others
    titles = [
        "variant",
        "accuracy",
        *told,
        "validation",
        "while training",
        "*n*",
        "parameters",
        "GFLOPs",
        "ms / step",
        "memory",
    ]
    return [
        f"**{report['config']['data']}**, {_recipe(report['config'])}:",
        "",
        f"| {' | '.join(titles)} |",
        f"|{'---|' * len(titles)}",
        *(_row(report, name, others=others) for name in report["methods"]),
        "",
    ]


def _recipe(config: Mapping[str, Any]) -> str:
    """What all variants have in common, in words."""
    options, images = config["options"], config["images"]
    rate = "falling along a cosine" if options["scheduler"] == "cosine" else f"schedule {options['scheduler']}"
    words = [
        f"{config['img_size']} px in patches of {config['patch_size']}",
        f"{config['num_layers']} layers",
        f"{images['train']:,} images to learn from, {images['validation']:,} to choose the epoch",
        f"{images['test']:,} to test on",
        f"{options['num_epochs']} epochs of {options['optimizer']} at {options['lr']:g}, {rate}",
        f"weight decay {options['weight_decay']:g}",
        f"batches of {options['batch_size']}",
        f"the best of them by validation {options['select']}",
        _seen(options),
        "bfloat16" if options["use_amp"] else "float32",
        *["compiled"] * options["use_compiled"],
    ]
    return ", ".join(words)


def _seen(options: Mapping[str, Any]) -> str:
    """How training images are seen."""
    return "shifted and flipped" if options["augment"] else "not augmented"


def _row(report: Report, name: str, *, others: bool) -> str:
    scores, about = report["methods"][name], report["variants"][name]
    alone = about.get("alone", {})
    time, memory = alone.get("ms_per_step"), alone.get("peak_memory")
    cells = [
        f"`{name}`",
        estimate(scores["accuracy"]),
        *[_published(report["config"]["data"], about["config"])] * others,
        estimate(scores["validation_accuracy"]),
        estimate(scores["train_accuracy"]),
        str(sum(value is not None for value in scores["accuracy"]["values"])),
        f"{about['parameters']:,}",
        f"{about['gflops']:.3f}",
        "-" if time is None else f"{time:.1f}",
        "-" if memory is None else f"{memory / 2**20:,.0f} MiB",
    ]
    return f"| {' | '.join(cells)} |"


def _published(data: str, config: Mapping[str, Any]) -> str:
    """What the reference reports for the layer with its options, at whatever number of heads."""
    usual = {"sampling_type": "all", "convolution_type": "depthwise"}
    runs: dict[int, list[float]] = {}
    for each in published("vit", data):
        setting = {key: value for key, value in each.setting.items() if key not in ("num_heads", "lr")}
        same = all(config.get(key, usual.get(key)) == value for key, value in setting.items())
        if each.metric == "accuracy" and each.method == config["layer"] and same:
            runs.setdefault(each.setting["num_heads"], []).append(each.value)
    told = [
        f"{' and '.join(map(short, values))} ({heads} head{'s' * (heads > 1)})" for heads, values in runs.items()
    ]
    return ", ".join(told) or "-"


def costs(reports: Sequence[Report]) -> str:
    """What layers take of the time and memory of plain attention, and where that was measured."""
    return "\n".join("\n".join(_cost(report)) for report in reports)


def _cost(report: Report) -> list[str]:
    config, machine = report["config"], report["environment"]
    titles = [f"{int(tokens):,}, {said}" for tokens in config["batch"] for said in DIRECTIONS.values()]
    batches = ", ".join(f"{batch} of {int(tokens):,} tokens" for tokens, batch in config["batch"].items())
    where = [
        machine["device"],
        f"{machine['cores']} cores ({machine['processor']})",
        f"threads: {config['threads']}",
    ]
    return [
        f"| layer:heads | {' | '.join(titles)} |",
        f"|{'---|' * (len(titles) + 1)}",
        *(f"| `{name}` | {' | '.join(_ratios(found))} |" for name, found in report["methods"].items()),
        "",
        f"- width {config['dim']}, K = {config['K']}, batches: {batches}",
        f"- medians over {config['processes']} processes",
        f"- measured on {', '.join(where)}, torch {machine['versions']['torch']}, commit {report['commit'][:10]}",
        f"- repeat: `{report['command']}`",
        "",
    ]


def _ratios(found: Mapping[str, Any]) -> list[str]:
    """Time and memory as shares of those of plain attention, for each number of tokens and direction."""
    each = [found[tokens][name]["ratios"]["plain:3"] for tokens in found for name in DIRECTIONS]
    return [f"{ratios['seconds']:.2f} / {ratios['mib']:.2f}" for ratios in each]


def _sentences(report: Report) -> list[str]:
    differences = report["differences"]
    pairs = [(one, two) for one, others in differences.items() for two in others]
    answered = [samples for samples in SAMPLES if set(_asked(samples).values()) <= set(pairs)]
    told = {pair for samples in answered for pair in _asked(samples).values()}
    compared = [_verdict(differences, pair) for pair in pairs if pair not in told]
    lines = [*(_answer(report, samples) for samples in answered), *compared, *_settings(report), *_missing(report)]
    return [*(f"- {line}" for line in lines), ""]


def _settings(report: Report) -> list[str]:
    """What each variant is made of, and how long a training took."""
    layers = "; ".join(f"`{name}` {_made_of(about['config'])}" for name, about in report["variants"].items())
    return [f"layers and what was set of them: {layers}", *_durations(report)]


def _made_of(config: Mapping[str, Any]) -> str:
    own = {key: value for key, value in config.items() if key not in COMMON and (key, value) != ("num_heads", 3)}
    return ", ".join([config["layer"], *(f"{key} {value}" for key, value in own.items())])


def _durations(report: Report) -> list[str]:
    """The seconds of all epochs of a training as it was, and of its steps by their time alone."""
    cells = [cell for seeds in report.get("cells", {}).values() for cell in seeds.values()]
    if not cells:
        return []
    took = _range([sum(epoch["seconds"] for epoch in cell["epochs"]) for cell in cells])
    options = report["config"]["options"]
    steps = report["config"]["images"]["train"] // options["batch_size"] * options["num_epochs"]
    times = [about.get("alone", {}).get("ms_per_step") for about in report["variants"].values()]
    alone = [steps * time / 1000 for time in times if time is not None]
    told = [f"its {steps:,} steps take {_range(alone)} alone on the device"] if alone else []
    return ["; ".join([f"a training took {took} as it was run", *told])]


def _range(seconds: Sequence[float]) -> str:
    low, high = f"{min(seconds):.0f}", f"{max(seconds):.0f}"
    return f"{low} s" if low == high else f"{low} to {high} s"


def _asked(samples: int) -> dict[str, tuple[str, str]]:
    """The pairs that tell what ConvNN's random candidates gain from what random keys gain without it."""
    ours, keys = f"convnn-random-{samples}", f"attention-random-{samples}"
    return {"gain": (ours, "attention"), "control": (ours, keys), "keys": (keys, "attention")}


def _answer(report: Report, samples: int) -> str:
    """Whether what ConvNN gains by random candidates is more than what attention gains by as many random keys."""
    asked, differences = _asked(samples), report["differences"]
    gain, control = (_side(differences, asked[name]) for name in ("gain", "control"))
    if gain is None or control is None:
        answer = "cannot be answered, one seed has no interval"
    elif gain > 0:
        answer = {
            1: "yes, attention over as many random keys stays below it",
            0: "it is not shown to, no difference was found from attention over as many random keys",
            -1: "no, attention over as many random keys is above it",
        }[control]
    else:
        word = "ConvNN over random candidates lies below" if gain < 0 else "no difference was found from"
        answer = f"no gain was found to begin with, {word} plain attention"
    told = "; ".join(_verdict(differences, pair) for pair in asked.values())
    return f"**does ConvNN's gain by {samples} random candidates survive the control?** {answer}: {told}"


def _side(differences: Mapping[str, Any], pair: tuple[str, str]) -> int | None:
    """1 where the first has more, -1 where it has less, 0 where the interval holds 0, None where there is none."""
    found = differences[pair[0]][pair[1]]["accuracy"]
    if found["low"] is None or found["high"] is None:
        return None
    return int(found["low"] > 0) - int(found["high"] < 0)


def _verdict(differences: Mapping[str, Any], pair: tuple[str, str]) -> str:
    return verdict(*pair, "accuracy", differences[pair[0]][pair[1]]["accuracy"])


def _missing(report: Report) -> list[str]:
    """What has no numbers."""
    alone = {name: about.get("alone") for name, about in report["variants"].items()}
    failed = [f"`{name}` ({each['error']})" for name, each in alone.items() if each and "error" in each]
    untimed = [f"`{name}`" for name, each in alone.items() if each is None]
    absent = [f"`{name}`" for name in report["not_run"]]
    told = {"could not be timed": failed, "not timed": untimed, "not run": absent}
    devices = sorted({each["device"] for each in alone.values() if each and "ms_per_step" in each})
    return [
        *[f"timed on {', '.join(devices)}"] * bool(devices),
        *(f"{words}: {', '.join(names)}" for words, names in told.items() if names),
    ]
