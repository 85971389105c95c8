#!/usr/bin/env python3
"""Renders chat templates with jinja2 as Hugging Face transformers sets it up.

Needs the package `jinja2` (made with 3.1.6). Without arguments it does tests/data/chat/:
    python3 tests/reference/make_chat_goldens.py
Each NAME.jinja gets a NAME.json: a list of cases; "expected" is null where jinja2 raises.

Templates of real models belong to others and are not kept here. To compare those of a folder
(the `chat_template` of a GGUF file or a tokenizer_config.json, saved as NAME.jinja):
    python3 tests/reference/make_chat_goldens.py FOLDER
    HEADRACE_CHAT_TEMPLATES=FOLDER test_model --gtest_filter='ChatTemplate.*AFolder*'
The first writes FOLDER/NAME.json, the second renders the same cases and says what differs.
"""
import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from chat_snippets import SNIPPETS

OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "chat"
TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The \"weather\" of <a> & b",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "Città"},
            "days": {"type": "integer", "default": 3, "enum": [1, 2.5, None, True]}},
            "required": ["city"]}}},
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {
        "type": "object", "properties": {}}}},
]
USER = {"role": "user", "content": "Hello <|im_end|> there\n  'quoted' \"double\" é😀 "}
SYSTEM = {"role": "system", "content": " You are a bot. "}
ANSWER = {"role": "assistant", "content": "<think>\nhmm\n</think>\n\nAn answer. "}
CALL = {"role": "assistant", "content": "", "tool_calls": [{
    "id": "abcdefghi", "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Paris", "x": [1, {"a": None}]}}}]}
RESULT = {"role": "tool", "name": "get_weather", "content": "{\"t\": 21}",
          "tool_call_id": "abcdefghi"}
TWO_CALLS = {"role": "assistant", "content": None, "tool_calls": CALL["tool_calls"] * 2}
TEXT_CALL = {"role": "assistant", "content": " So: ", "tool_calls": [{
    "id": "short", "type": "function", "function": {"name": "noop", "arguments": "{}"}}]}
PARTS = {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "image"},
                                     {"type": "text", "text": " two"}]}
CONVERSATIONS = [
    [USER], [SYSTEM, USER], [USER, ANSWER, USER], [SYSTEM, USER, ANSWER, USER, ANSWER],
    [USER, CALL, RESULT], [SYSTEM, USER, CALL, RESULT, ANSWER, USER], [PARTS],
    [SYSTEM, PARTS, ANSWER], [USER, USER], [ANSWER], [], [{"role": "user", "content": ""}],
    [USER, {"role": "assistant", "content": "x", "reasoning_content": "because"}, USER],
    [USER, TWO_CALLS, RESULT, RESULT, ANSWER], [USER, TEXT_CALL, RESULT],
]
VARIABLES = [{}, {"enable_thinking": False}]


class Generation(jinja2.ext.Extension):
    """{% generation %}: marks what the assistant says; renders its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = datetime.datetime(2024, 7, 26).strftime
    return env


def render(env, source, messages, tools, generate, variables):
    try:
        return env.from_string(source).render(
            messages=messages, tools=tools, documents=None, add_generation_prompt=generate,
            bos_token="<s>", eos_token="</s>", **variables)
    except Exception:  # whatever jinja2 or Python raises: the template refuses
        return None


def save(path, data):
    path.write_text(json.dumps(data, ensure_ascii=False, indent=0) + "\n")


def cases(env, source):
    out = []
    for messages in CONVERSATIONS:
        for tools in (None, TOOLS):
            for variables in VARIABLES:
                generate = not (tools and variables)
                out.append({
                    "messages": messages, "tools": tools, "variables": variables,
                    "add_generation_prompt": generate,
                    "expected": render(env, source, messages, tools, generate, variables)})
    return out


def main():
    env = environment()
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    for path in sorted(folder.glob("*.jinja")):
        with open(path, newline="") as file:
            source = file.read()
        save(path.with_suffix(".json"), cases(env, source))
    if folder != OUT:
        return
    messages = [{"role": "user", "content": "hi \"x\""},
                {"role": "assistant", "content": [{"type": "text", "text": "t"}]}]
    save(OUT / "snippets.json", {"messages": messages, "cases": [
        [s, render(env, s, messages, None, True, {})] for s in SNIPPETS]})


if __name__ == "__main__":
    main()
