"""python3 -m unittest discover -s benches/peers"""

import json
import pathlib
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True

import machine
import table


def record(engine, rate, number=0, work="b8", format="bf16", read=50.0, **more):
    limits = {"read": read, "f32 multiply-add": 500.0, "bf16 dot product": 1000.0}
    if work == "start":
        more["seconds"] = 1 / rate
    else:
        more["tokens_per_second"] = rate
    return {
        "shape": "qwen2.5-0.5b", "format": format, "work": work, "engine": engine, "round": number,
        "limits": limits, "foreign": 0.0, "rss_mib": 100.0, **more,
    }


def own(rate, number=0, **more):
    return record("precast", rate, number, bytes=1e9, product_operations=8e9, attention_operations=0, **more)


class Records(unittest.TestCase):
    def test_lines_are_read_and_empty_ones_skipped(self):
        lines = [json.dumps(record("openvino", 10.0)), "", json.dumps(own(20.0))]
        self.assertEqual([r["engine"] for r in table.parse("\n".join(lines))], ["openvino", "precast"])

    def test_what_is_no_record_is_named_by_its_line(self):
        whole = json.dumps(record("openvino", 10.0))
        for broken in ["{", "[]", "1", whole.replace("tokens_per_second", "speed")]:
            with self.assertRaisesRegex(ValueError, "^line 2 is no record"):
                table.parse(f"{whole}\n{broken}")


class Limits(unittest.TestCase):
    def test_the_scarcer_of_memory_and_arithmetic_decides(self):
        least = {"bytes": 1e9, "product_operations": 8e9, "attention_operations": 0}
        # 50 steps of eight tokens by memory, 125 by arithmetic.
        self.assertAlmostEqual(table.limit(record("openvino", 1.0), least), 400)
        least = {"bytes": 1e9, "product_operations": 75e9, "attention_operations": 25e9}
        self.assertAlmostEqual(table.limit(record("openvino", 1.0), least), 80)

    def test_what_was_probed_before_and_after_is_averaged(self):
        before, after = {"read": 40.0, "bf16 dot product": 900.0}, {"read": 60.0, "bf16 dot product": 1000.0}
        self.assertEqual(table.between(before, after), {"read": 50.0, "bf16 dot product": 950.0})

    def test_attention_is_held_against_products_of_floats(self):
        least = {"bytes": 1e9, "product_operations": 80e9, "attention_operations": 20e9}
        limits = {"read": 1e3, "bf16 dot product": 10.0, "int8 dot product": 40.0}
        self.assertAlmostEqual(table.limit(record("vllm", 1.0, format="int8", limits=limits), least), 2)

    def test_integers_are_held_against_products_of_integers(self):
        limits = {"read": 1.0, "f32 multiply-add": 5.0, "int8 dot product": 40.0}
        self.assertEqual(table.peak(limits, "bf16"), 5.0)
        self.assertEqual(table.peak(limits, "int8"), 40.0)
        del limits["int8 dot product"]
        self.assertEqual(table.peak(limits, "int4"), 5.0)
        limits |= {"int16 multiply-add": 8.0, "int4 multiply-add": 16.0}
        self.assertEqual([table.peak(limits, format) for format in ("bf16", "int8", "int4")], [5.0, 8.0, 16.0])


class Tables(unittest.TestCase):
    def rows(self, records):
        lines = table.table(records).splitlines()
        return [[c.strip() for c in line.split("|")[1:-1]] for line in lines if line.startswith("| bf16")]

    def test_ratio_is_the_median_of_the_rounds_and_not_of_the_rates(self):
        peer = [record("openvino", rate, i) for i, rate in enumerate([100.0, 200.0, 400.0])]
        # Medians 200 and 300; by rounds 3, 1 and 1.
        ours = [own(rate, i) for i, rate in enumerate([300.0, 200.0, 400.0])]
        (row,) = self.rows(peer + ours)
        self.assertEqual(row[-1], "**1.00 ±100%**")
        self.assertEqual(row[3], "200 ±75%")
        # Half of the 400 that memory allows.
        self.assertEqual(row[5], "0.50")

    def test_a_round_without_a_partner_does_not_count(self):
        peer = [record("openvino", 100.0, 0), record("openvino", 1.0, 1)]
        (row,) = self.rows(peer + [own(150.0, 0), own(999.0, 2)])
        self.assertEqual(row[-1], "**1.50 ±0%**")

    def test_the_strongest_peer_comes_first(self):
        records = [record("openvino", 50.0), record("llama.cpp", 80.0), own(100.0)]
        self.assertEqual([r[2] for r in self.rows(records)], ["llama.cpp", "openvino"])
        self.assertEqual([r[-1] for r in self.rows(records)], ["**1.25 ±0%**", "2.00 ±0%"])

    def test_of_starts_the_shorter_is_better(self):
        slow, fast = record("openvino", 0.5, work="start"), record("llama.cpp", 2.0, work="start")
        ours = record("precast", 4.0, work="start")
        rows = self.rows([slow, fast, ours])
        self.assertEqual([r[2:4] for r in rows], [["llama.cpp", "0.50 s ±0%"], ["openvino", "2.00 s ±0%"]])
        self.assertEqual([r[-1] for r in rows], ["**2.00 ±0%**", "8.00 ±0%"])

    def test_work_of_others_is_said(self):
        (row,) = self.rows([record("openvino", 50.0, foreign=0.2), own(100.0)])
        self.assertIn("(others 20%)", row[3])

    def test_peers_alone_and_precast_alone(self):
        (row,) = self.rows([record("openvino", 50.0)])
        self.assertEqual((row[3], row[5], row[-1]), ("50.0 ±0%", "–", "–"))
        (row,) = self.rows([own(100.0)])
        self.assertEqual((row[2], row[7], row[9]), ("–", "100 ±0%", "0.25"))


class CommandLine(unittest.TestCase):
    def runner(self, *words):
        path = pathlib.Path(__file__).with_name("run")
        return subprocess.run([path, *words], capture_output=True, text=True)

    def test_help_lists_what_there_is(self):
        help = self.runner("--help")
        self.assertEqual(help.returncode, 0, help.stderr)
        for word in ["qwen3-moe-small", "llama.cpp, openvino, vllm", "prefill2048", "PEERS_DIR"]:
            self.assertIn(word, " ".join(help.stdout.split()))

    def test_an_unknown_word_is_refused_with_those_there_are(self):
        refused = self.runner("--work", "prefill,b3")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("`b3` is none of prefill, prefill2048", refused.stderr)


class Processes(unittest.TestCase):
    def test_output_memory_and_time_of_a_process(self):
        code = "import time; b = bytes(range(256)) * 400_000; print('done'); time.sleep(0.2)"
        output, used = machine.run([sys.executable, "-c", code])
        self.assertEqual(output, "done\n")
        self.assertGreater(used["rss_mib"], 95)
        self.assertGreater(used["seconds"], 0.2)

    def test_the_first_output_ends_a_start(self):
        code = "import time; print('token', flush=True); time.sleep(60)"
        _, used = machine.run([sys.executable, "-c", code], until_output=True)
        self.assertLess(used["seconds"], 30)

    def test_what_fails_says_why(self):
        with self.assertRaisesRegex(machine.Failed, "no such model"):
            machine.run([sys.executable, "-c", "import sys; sys.exit('no such model')"])

    def test_a_start_without_output_fails(self):
        with self.assertRaisesRegex(machine.Failed, "no output"):
            machine.run([sys.executable, "-c", "pass"], until_output=True)


if __name__ == "__main__":
    unittest.main()
