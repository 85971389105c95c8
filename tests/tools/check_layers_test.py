"""Tests of tools/check_layers.py on small trees made for the purpose."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "check_layers.py"


class CheckLayers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.write("headrace/base/a.h", "")
        self.write("headrace/ir/b.h", '#include "headrace/base/a.h"\n')
        self.write("headrace/tier/t.h", '#include "headrace/base/a.h"\n')
        self.write("headrace/plan/p.h", '#include "headrace/ir/b.h"\n')
        self.write("tools/main.cc", '#include <map>\n#include "headrace/plan/p.h"\n')

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def check(self):
        done = subprocess.run([sys.executable, SCRIPT, self.root], capture_output=True, text=True)
        return done.returncode, done.stdout

    def expect_fault(self, text):
        code, out = self.check()
        self.assertEqual(code, 1, out)
        self.assertIn(text, out)

    def test_a_good_tree_prints_only_ok_lines(self):
        code, out = self.check()
        self.assertEqual(code, 0, out)
        self.assertTrue(all(line.endswith(": ok") for line in out.splitlines()), out)

    def test_an_include_to_the_right_is_named_with_its_line(self):
        self.write("headrace/base/a.h", '\n#include "headrace/ir/b.h"\n')
        self.expect_fault("headrace/base/a.h:2: includes headrace/ir/b.h: ir is not to the left")

    def test_plan_never_sees_tier_although_it_lies_to_the_left(self):
        self.write("headrace/plan/q.cc", '#include "headrace/tier/t.h"\n')
        self.expect_fault("plan must never see tier")

    def test_tier_never_sees_ir(self):
        self.write("headrace/tier/u.cc", '#include "headrace/ir/b.h"\n')
        self.expect_fault("tier must never see ir")

    def test_run_never_sees_plan(self):
        self.write("headrace/run/r.cc", '#include "headrace/plan/p.h"\n')
        self.expect_fault("run must never see plan")

    def test_the_library_never_includes_a_test_or_the_tools(self):
        self.write("headrace/plan/q.cc", '#include "tests/x.h"\n#include "tools/options.h"\n')
        self.expect_fault("the product never includes tests/")
        self.expect_fault("tools is not to the left of plan")

    def test_a_header_that_does_not_exist_is_named(self):
        self.write("headrace/ir/c.cc", '#include "headrace/base/gone.h"\n')
        self.expect_fault("headrace/base/gone.h, which does not exist")

    def test_a_cycle_inside_a_folder_is_printed(self):
        self.write("headrace/ir/c.h", '#include "headrace/ir/d.h"\n')
        self.write("headrace/ir/d.h", '#include "headrace/ir/c.h"\n')
        self.expect_fault("cycle of includes: headrace/ir/c.h -> headrace/ir/d.h")

    def test_a_folder_outside_the_order_is_refused(self):
        self.write("headrace/misc/m.h", "")
        self.expect_fault("folder misc is not in the order")

    def test_the_readme_must_name_every_folder_and_no_other(self):
        self.write("README.md", "```\nheadrace/base/  x\nheadrace/ir/    y\nheadrace/kv/    z\n"
                                "headrace/plan/  p\ntools/  q\n```\n")
        self.expect_fault("the map does not name headrace/tier")
        self.expect_fault("the map names headrace/kv, which does not exist")

    def test_a_true_readme_is_ok(self):
        self.write("README.md", "# T\n\n```\nheadrace/base/  x\nheadrace/ir/ y\nheadrace/tier/  z\n"
                                "headrace/plan/  p\n```\n")
        self.assertEqual(self.check()[0], 0)

    def test_a_readme_without_a_map_is_told(self):
        self.write("README.md", "# T\n")
        self.expect_fault("README.md: no map of folders")

    def test_the_cmake_file_links_in_the_same_order(self):
        self.write("CMakeLists.txt", "headrace_folder(ir LINK x)\nheadrace_folder(base)\n")
        self.expect_fault("the order is base ir")


if __name__ == "__main__":
    unittest.main()
