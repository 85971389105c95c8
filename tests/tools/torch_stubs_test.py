#!/usr/bin/env python3
"""tools/torch_stubs.py on a small library that is linked to two that are gone."""
import ctypes
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import torch_stubs  # noqa: E402


def compile_shared(folder, name, source, *more):
    (folder / "source.c").write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / name, folder / "source.c",
                    f"-Wl,-soname,{name}", *more], check=True)


class Stubs(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.package = pathlib.Path(scratch.name) / "torch"
        lib = self.package / "lib"
        lib.mkdir(parents=True)
        (lib / "versions").write_text("GONE_2.0 { global: gone_run; goneGetErrorString; };\n")
        compile_shared(lib, "libgone.so.2", "int gone_run(void) { return 0; }\n"
                       'const char* goneGetErrorString(void) { return ""; }\n',
                       f"-Wl,--version-script={lib / 'versions'}")
        compile_shared(lib, "libplain.so", "int plain(void) { return 0; }\n")
        compile_shared(self.package, "_C.test.so",
                       "int gone_run(void); const char* goneGetErrorString(void);\n"
                       "int plain(void);\n"
                       "int ran(void) { return gone_run(); }\n"
                       "const char* said(void) { return goneGetErrorString(); }\n"
                       "int was_plain(void) { return plain(); }\n",
                       lib / "libgone.so.2", lib / "libplain.so", "-Wl,-rpath,$ORIGIN/lib")
        (lib / "libgone.so.2").unlink()
        (lib / "libplain.so").unlink()
        self.lib = lib

    def test_names_what_nobody_has(self):
        _, missing = torch_stubs.load(self.package)
        self.assertEqual(missing, ["libgone.so.2", "libplain.so"])

    def test_the_loader_is_satisfied_and_every_call_says_that_there_is_no_device(self):
        loaded, missing = torch_stubs.load(self.package)
        wanted = torch_stubs.contents(loaded, missing)
        self.assertEqual(wanted["libgone.so.2"]["GONE_2.0"], {"gone_run", "goneGetErrorString"})
        for name in missing:
            torch_stubs.compile_stub(name, wanted[name], self.lib)
        # RTLD_NOW: every symbol is looked up, as when Python loads a module.
        loaded = ctypes.CDLL(str(self.package / "_C.test.so"), mode=2)
        self.assertEqual(loaded.ran(), 100)
        self.assertEqual(loaded.was_plain(), 100)
        loaded.said.restype = ctypes.c_char_p
        self.assertIn(b"no CUDA", loaded.said())

    def test_a_library_that_the_system_has_is_left_alone(self):
        _, missing = torch_stubs.load(self.package)
        self.assertNotIn("libc.so.6", missing)


if __name__ == "__main__":
    unittest.main()
