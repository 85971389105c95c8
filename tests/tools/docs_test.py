"""The documents against the program: links, options, and what a plan prints.

usage: docs_test.py HEADRACE
"""
import re
import shlex
import subprocess
import sys
import unittest
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "bench" / "README.md", *ROOT.glob("docs/**/*.md")])
PROGRAM = sys.argv.pop() if __name__ == "__main__" else ""


@cache
def printed(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, cwd=ROOT)
    return done.stdout + done.stderr


@cache
def anchors(document):
    titles = re.findall(r"^#+ (.*)$", document.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def text_of(document):
    """With lines that a backslash continues in one."""
    return re.sub(r"\\\n\s*", " ", document.read_text())


class Documents(unittest.TestCase):
    def test_links_lead_somewhere(self):
        for document in DOCUMENTS:
            for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
                path, _, anchor = link.partition("#")
                if "://" in link:
                    continue
                to = (document.parent / path).resolve() if path else document
                with self.subTest(document=document.name, link=link):
                    self.assertTrue(to.exists())
                    self.assertTrue(not anchor or anchor in anchors(to))

    def test_verbs_and_options_are_the_programs(self):
        verbs = re.findall(r"^  ([a-z]+)  +[A-Z]", printed("--help"), re.M)
        self.assertIn("run", verbs)
        for document in DOCUMENTS:
            for verb, rest in re.findall(rf"\bheadrace ({'|'.join(verbs)})\b([^\n`|#]*)",
                                         text_of(document)):
                known = printed(verb, "--help")
                for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", rest):
                    with self.subTest(document=document.name, verb=verb, option=option):
                        self.assertRegex(known, rf"(?<![\w-]){option}(?![\w-])")

    def test_plans_print_what_is_shown_down_to_the_first_dots(self):
        shown = 0
        for document in DOCUMENTS:
            for block in re.findall(r"^```\n(.*?)^```$", text_of(document), re.M | re.S):
                # With a machine named a plan is the same everywhere.
                found = re.match(r"\$ headrace (plan .* --machine .*)\n", block)
                if not found:
                    continue
                shown += 1
                expected = re.split(r"^ *\.\.\.$", block[found.end():], maxsplit=1, flags=re.M)[0]
                with self.subTest(document=document.name, command=found[1]):
                    lines = printed(*shlex.split(found[1])).rstrip().splitlines()
                    if "..." in block.split():
                        lines = lines[:len(expected.splitlines())]
                    self.assertEqual("\n".join(lines).rstrip(), expected.rstrip())
        self.assertGreater(shown, 3)


if __name__ == "__main__":
    unittest.main()
