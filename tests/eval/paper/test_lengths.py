from eval.bench_readout import Timing
from eval.paper import lengths
from eval.paper.sizes import Sizes


def made(name, length, power):
    return Timing(name=name, length=length, seconds=1e-6 * length**power, growth_mib=length / 100)


def test_a_length_that_the_other_did_not_reach_is_left_empty():
    timings = [made("ddcl", n, 1) for n in (512, 1024, 2048, 4096)]
    timings += [made("self-attention", n, 2) for n in (512, 1024, 2048)]
    lines = lengths.make_lengths_table(timings).splitlines()
    assert "ddcl N^1.00, self-attention N^2.00" in lines[0]
    assert lines[-1] == "| 4,096 | 4.1 |  |  | 41 |  |"
    assert lines[4] == "| 512 | 0.5 | 262.1 | 0.00 | 5 | 5 |"


def test_times_are_taken_once(tmp_path, monkeypatch):
    calls = []

    def bench(*, repeats, folder, lengths):
        calls.append(lengths)
        return [made(name, n, 1) for n in lengths for name in ("ddcl", "self-attention")]

    monkeypatch.setattr(lengths, "run_bench", bench)
    for _ in range(2):
        lengths.run(Sizes(longest=1024), tmp_path)
    assert calls == [(512, 1024)]
    assert (tmp_path / "lengths.png").stat().st_size > 0
    assert "1,024" in (tmp_path / "lengths.md").read_text()
