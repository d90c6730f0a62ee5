import io

from rich.console import Console

from eval.results import SOFT_MEASURES
from eval.terminal import print_table
from tests.eval.test_table import make_method, make_results


def find_line(text, start):
    return next(line for line in text.splitlines() if line.startswith(start))


def test_a_pipe_gets_the_table_whole(capsys):
    soft = dict.fromkeys(SOFT_MEASURES, 0.25)
    results = make_results(
        softvq=make_method("SoftVQ", "psnr_hard", 25.0, 25.2, **soft),
        ste=make_method("STE [red]", "psnr_hard", 23.0, 23.1),
    )
    print_table(results)
    text = capsys.readouterr().out
    hard = text[text.index("Hard codes") : text.index("Soft weights")]
    assert "25.10 ± 0.14 *" in find_line(hard, "SoftVQ")
    assert "23.05 ± 0.07  " in find_line(hard, "STE [red]")
    assert hard.count("*") == 1
    below = text[text.index("Soft weights") : text.index("* best")]
    assert "25.0" in find_line(below, "SoftVQ")
    assert "STE" not in below
    assert "  STE [red]: how STE [red] was set" in text
    assert "softvq minus STE [red]: +2.050 dB, 95 % interval [" in text
    assert "A difference is claimed only where the interval excludes zero." in text


def test_a_narrow_terminal_loses_no_digit():
    results = make_results(a=make_method("A long method name", "psnr_hard", 25.0, 25.2))
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system=None, width=60)
    print_table(results, console=console)
    text = file.getvalue()
    assert max(map(len, text.splitlines())) <= 60
    assert "25.10" in text
    assert "0.14" in text
    assert "…" not in text


def test_an_ascii_stream_is_no_error():
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    results = make_results(a=make_method("\N{GREEK SMALL LETTER MU}", "psnr_hard", 25.0, 25.2))
    print_table(results, console=Console(file=file, width=100))
    file.flush()
    assert b"25.10 +- 0.14" in raw.getvalue()
