"""bench/budgets.py beside a stand-in for the program zero: what a rank says is the reason, and a budget in which nothing fits has a row."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

BUDGETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "budgets.py")
RECORD = {"plan_mib": 100, "step_s": 0.5, "peak_rss_mib": [10, 12]}
NEEDED = ("zero: config error: offload.memory: a rank's memory is 52.4 MB, but wherever states are, 67.1 MB (67126272 bytes) are "
          "needed: activations and loss 40.9 MB; give more")
SEVERAL = "zero: config error: --path: expected a directory on a disk, got /proc; name another"
LAUNCHER = "zero: rank 0 failed with exit code 2"


def stand_in(folder, refusal):
    """A program that takes steps in memory and refuses every budget."""
    path = os.path.join(folder, "zero")
    with open(path, "w") as file:
        file.write(f"#!{sys.executable}\nimport sys\nif '--memory' in sys.argv:\n    sys.exit(sys.stderr.write({refusal!r}) and 2)\n"
                   f"print({json.dumps(RECORD)!r})\n")
    os.chmod(path, 0o700)
    return path


class Budgets(unittest.TestCase):
    def run_with(self, refusal):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, BUDGETS, "--zero", stand_in(folder, refusal), "--path", folder, "--model", "tiny",
                                   "--budgets", "100,50", "--repeats", "1", "--quiet-s", "0", "--out", folder], capture_output=True, text=True)
            with open(os.path.join(folder, "budgets-tiny.md")) as file:
                table = file.read()
            with open(os.path.join(folder, "budgets-tiny.json")) as file:
                return done, table, json.load(file)

    def test_what_cannot_fit_has_a_row_with_the_least_that_would(self):
        done, table, record = self.run_with(f"{NEEDED}\n{LAUNCHER}\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| 50 % | 50 | does not fit: 65 MiB do (65 %) |", table)
        self.assertEqual(record["do_not_fit"], [{"percent": 50, "least_bytes": 67126272}])
        self.assertIn("67126272 bytes", done.stderr)

    def test_another_failure_is_one_and_says_why(self):
        done, table, _ = self.run_with(f"a note\n{SEVERAL}\n{LAUNCHER}\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"FAILED, {SEVERAL}", done.stderr)
        self.assertNotIn("| 50 %", table)


if __name__ == "__main__":
    unittest.main()
