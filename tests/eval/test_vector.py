import itertools
import math
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from eval.style import LIGHT
from eval.vector import MOST_STOPS, draw_vector

SVG = "{http://www.w3.org/2000/svg}"
HREF = "{http://www.w3.org/1999/xlink}href"


def make_figure():
    figure = Figure((6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel="Images", ylabel="PSNR (dB)", xlim=(0, 100), ylim=(10, 30))
    axes.plot([0, 50, 100], [10.0, 20.0, 30.0], label="A, hard", color="#0072B2")
    axes.plot([0, 50], [12.0, math.nan], "--", label="<b>A</b>, soft", color="#D55E00")
    axes.axhline(25)
    return figure


@pytest.fixture
def figure():
    return make_figure()


def test_readings_are_the_values_of_the_curves(figure):
    [panel] = draw_vector(figure, "psnr").panels
    assert panel.title == "PSNR (dB)"
    assert [stop.title for stop in panel.stops] == ["Images: 0", "Images: 50", "Images: 100"]
    read = [[(r.label, r.text, r.colour, r.dashed) for r in stop.readings] for stop in panel.stops]
    hard = [("A, hard", text, "#0072b2", False) for text in ("10.00", "20.00", "30.00")]
    soft = ("<b>A</b>, soft", "12.00", "#d55e00", True)
    assert read == [[hard[0], soft], [hard[1]], [hard[2]]]


def test_places_are_shares_of_the_figure_from_left_and_top(figure):
    [panel] = draw_vector(figure, "psnr").panels
    first, _, last = panel.stops
    # The limits of the axes are the ends of the curve: its ends are the corners of the box.
    assert (first.x, last.x) == pytest.approx((panel.left, panel.right))
    assert first.readings[0].y == pytest.approx(panel.bottom)
    assert last.readings[0].y == pytest.approx(panel.top)
    assert 0 < panel.left < panel.right < 1
    assert 0 < panel.top < panel.bottom < 1


def test_places_are_where_the_svg_draws_the_curve(figure):
    """matplotlib's own path in the file, read by itself."""
    figure.axes[0].get_lines()[0].set_gid("curve")
    text, [panel] = draw_vector(figure, "psnr")
    root = ElementTree.fromstring(text)
    width, height = map(float, root.get("viewBox").split()[2:])
    [curve] = [each for each in root.iter() if each.get("id") == "psnr-curve"]
    words = curve.find(f"{SVG}path").get("d").split()
    points = [(float(words[i + 1]), float(words[i + 2])) for i in range(0, len(words), 3)]
    # A straight line through three points may be stored by its two ends.
    for (x, y), stop in zip((points[0], points[-1]), panel.stops[::2], strict=True):
        assert (x / width, y / height) == pytest.approx((stop.x, stop.readings[0].y), abs=1e-5)


def test_what_is_outside_of_the_axes_is_no_stop(figure):
    figure.axes[0].set_xlim(40, 60)
    assert [stop.title for stop in draw_vector(figure, "psnr").panels[0].stops] == ["Images: 50"]


def test_thousands_of_points_are_thinned_out_as_the_axis_is():
    figure = Figure()
    axes = figure.subplots()
    axes.plot(range(1, 8193), range(1, 8193), label="A")
    axes.set_xscale("log")
    stops = draw_vector(figure, "psnr").panels[0].stops
    assert len(stops) <= MOST_STOPS
    steps = [b.x - a.x for a, b in itertools.pairwise(stops[8:])]
    assert max(steps) < 2 * min(steps)
    assert (stops[0].readings[0].text, stops[-1].readings[0].text) == ("1.000", "8,192")


def test_axes_without_a_labelled_curve_have_no_panel():
    figure = Figure()
    figure.subplots().plot([0, 1], [0, 1])
    assert draw_vector(figure, "psnr").panels == []


def test_the_svg_has_the_page_s_colours_and_ids_of_its_own(figure):
    figure.axes[0].set_title("</svg><script>alert(1)</script>")
    text = draw_vector(figure, "psnr").svg
    root = ElementTree.fromstring(text)
    for word in ("var(--ink)", "var(--ground)", "var(--line)"):
        assert word in text
    for word in (*LIGHT, "<script", "<style", "<metadata", "<image"):
        assert word not in text
    ids = [each.get("id") for each in root.iter() if each.get("id")]
    assert len(set(ids)) == len(ids)
    assert all(each.startswith("psnr-") for each in ids)
    links = [each.get(HREF)[1:] for each in root.iter() if each.get(HREF)]
    assert links
    assert set(links) <= set(ids)


def test_the_same_figure_gives_the_same_page():
    assert draw_vector(make_figure(), "psnr") == draw_vector(make_figure(), "psnr")
