"""What the page of a comparison says of its figures, its outcome and its warnings."""

from eval.columns import COLUMNS
from eval.figures import MOST_PICTURES
from eval.rate import QUALITY, RATES
from eval.results import Results
from eval.table import BASE, compare_paired, describe_difference, make_cell

_BAND = "Lines are means over seeds; a band is one standard deviation, where there are two or more."
CAPTIONS = {
    "psnr": "PSNR on the test set over training. Solid: decoded from hard codes, the figure that "
    f"counts. Dashed: decoded from the soft mean, which carries more than one index. {_BAND}",
    "use": "Share of the codebook in use. Solid: codes that are the nearest of some test token. "
    f"Dashed: by soft weights, which is 100 % for a fully collapsed codebook too. {_BAND}",
    "perplexity": "Perplexity of hard codes: how many codes, equally often used, would be as "
    f"diverse. {_BAND}",
    "temperature": "Methods with soft weights only. Near entropy 0 the soft mean is the hard code; "
    f"at log K every code has the same weight. {_BAND}",
    "spread": "Methods with soft weights only. How much of the distortion is spread of the weights "
    "rather than distance of their mean: 0 where the weights sit on one code.",
    "rate": "What the tokens cost and what they give. Filled: at the entropy of the use of codes, "
    "names as short as it allows; hollow: at log2 K bits a token, for every code alike. Up and to "
    "the left is better. Means over seeds; bars are one standard deviation.",
    "histogram": "How often each code is taken on the test set, most frequent first, one run a "
    "method. A flat line uses all codes alike; a curve that ends early leaves codes dead.",
    "pictures": f"Test pictures, {MOST_PICTURES} at most: the input, then each "
    "method decoded from hard codes and, where it has them, from soft weights.",
}


def describe_outcome(results: Results) -> str:
    """Return one sentence on the method at hand against its strongest rival, whichever way it goes.

    Example:
        >>> describe_outcome({"methods": {}})
        'softvq is not among these methods: the page compares the others only.'
    """
    if BASE not in results["methods"]:
        return f"{BASE} is not among these methods: the page compares the others only."
    differences = compare_paired(results)
    if not differences:
        return f"No rival ran with a seed of {BASE}: nothing can be compared here."
    return f"Hard PSNR against the strongest rival: {describe_difference(differences[0])}."


def describe_plot(name: str, results: Results) -> str:
    """Return the alternative text of a figure: what it is, and the values it ends at.

    Example:
        >>> describe_plot("pictures", {"methods": {}})
        'Rows of test pictures: the input and what each method makes of it.'
    """
    if name == "pictures":
        return "Rows of test pictures: the input and what each method makes of it."
    if name == "histogram":
        return (
            "Counts of hard codes against their rank, both axes logarithmic, one curve a method: "
            + _list_values(results, "use_hard")
        )
    if name == "rate":
        values = [_list_values(results, each) for each in (*RATES, QUALITY)]
        return f"Points in the plane of rate and distortion, two a method: {'; '.join(values)}"
    measures = {
        "psnr": ("psnr_hard", "psnr_soft"),
        "use": ("use_hard", "use_soft"),
        "perplexity": ("perplexity_hard",),
        "temperature": ("entropy", "temperature_ratio"),
        "spread": ("spread_share",),
    }[name]
    ends = "; ".join(_list_values(results, measure) for measure in measures)
    return f"Curves over training images, one a method. At the end: {ends}"


def _list_values(results: Results, measure: str) -> str:
    column = next(column for column in COLUMNS if column.measure == measure)
    cells = [(m["label"], make_cell(m, column)) for m in results["methods"].values()]
    values = [f"{label} {cell.text}" for label, cell in cells if cell.mean is not None]
    return f"{'soft' if column.soft else 'hard'} {column.title}: {', '.join(values) or 'none'}"


def list_warnings(results: Results) -> list[tuple[str, str]]:
    """Return what the runs warned of, each text once, after the runs that gave it.

    Example:
        >>> runs = [{"seed": seed, "warnings": ["dead codes"]} for seed in (0, 1)]
        >>> list_warnings({"methods": {"ste": {"seeds": runs, "label": "STE"}}})
        [('STE, seeds 0, 1', 'dead codes')]
    """
    found: dict[str, dict[str, list[int]]] = {}
    for method in results["methods"].values():
        for run in method["seeds"]:
            for text in run["warnings"]:
                found.setdefault(text, {}).setdefault(method["label"], []).append(run["seed"])
    return [
        ("; ".join(_name_runs(label, seeds) for label, seeds in runs.items()), text)
        for text, runs in found.items()
    ]


def _name_runs(label: str, seeds: list[int]) -> str:
    return f"{label}, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
