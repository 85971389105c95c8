#!/usr/bin/env python3
"""The official `openai` client against a real `headrace serve`.

usage: tests/openai/openai_test.py HEADRACE [unittest arguments]

HEADRACE_OPENAI names the folder that the package was installed into (make openai); where it
cannot be imported the test is skipped: exit code 77. The model is the real one where
HEADRACE_MODELS has it, otherwise a tiny one with random weights: everything but the sense
of what is said is checked on both. No check looks at a clock.
"""
import asyncio
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench" / "serve"))
if os.environ.get("HEADRACE_OPENAI"):
    sys.path.insert(0, os.environ["HEADRACE_OPENAI"])
try:
    import openai
except ImportError as error:
    print(f"SKIPPED: the openai package cannot be imported ({error}); make openai installs it")
    sys.exit(77)
import servers  # noqa: E402

MIB = 1 << 20
QUESTION = [{"role": "user", "content": "Name three rivers."}]
PROMPT = "The river below the mill was"
HEADRACE = None  # the program
FOLDER = None    # for models and KV
PATIENCE_S = 900


def client_of(server, key="none", **more):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=key,
                         timeout=PATIENCE_S, max_retries=0, **more)


class Served(unittest.TestCase):
    """A server for each class of tests; `options` are words of its command line."""
    options = ()

    @classmethod
    def setUpClass(cls):
        model = servers.model_for_tests(FOLDER)
        cls.server = servers.headrace(HEADRACE, model, 256 * MIB, context=1024, places=4,
                                      extra=cls.options).start()
        cls.client = client_of(cls.server)
        cls.addClassCleanup(cls.server.end)

    @property
    def model(self):
        return self.client.models.list().data[0].id

    def chat(self, client=None, **more):
        more = {"messages": QUESTION, "max_tokens": 12, "temperature": 0, **more}
        return (client or self.client).chat.completions.create(model=self.model, **more)

    def complete(self, client=None, **more):
        more = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, **more}
        return (client or self.client).completions.create(model=self.model, **more)


class Models(Served):
    def test_one_model_is_listed_and_can_be_asked_for_by_name(self):
        models = self.client.models.list().data
        self.assertEqual(len(models), 1)
        self.assertEqual(models[0].object, "model")
        self.assertEqual(self.client.models.retrieve(models[0].id).id, models[0].id)

    def test_health_and_metrics_answer(self):
        self.assertTrue(self.server.healthy())
        self.assertIn("# TYPE headrace_", self.server.metrics())


class Chat(Served):
    def test_an_answer_has_a_message_a_reason_and_counts(self):
        answer = self.chat(max_tokens=5, extra_body={"ignore_eos": True})
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(len(answer.choices), 1)
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertTrue(answer.choices[0].message.content)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 5)
        self.assertGreater(answer.usage.prompt_tokens, 0)
        self.assertEqual(answer.usage.total_tokens,
                         answer.usage.prompt_tokens + answer.usage.completion_tokens)

    def test_max_completion_tokens_is_understood(self):
        answer = self.client.chat.completions.create(
            model=self.model, messages=QUESTION, max_completion_tokens=3, temperature=0,
            extra_body={"ignore_eos": True})
        self.assertEqual(answer.usage.completion_tokens, 3)

    def test_a_stream_says_the_same_piece_by_piece(self):
        whole = self.chat()
        pieces, roles, reasons, usages = [], [], [], []
        for chunk in self.chat(stream=True, stream_options={"include_usage": True}):
            self.assertEqual(chunk.object, "chat.completion.chunk")
            usages += [chunk.usage] if chunk.usage else []
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                roles += [choice.delta.role] if choice.delta.role else []
                reasons += [choice.finish_reason] if choice.finish_reason else []
        self.assertEqual("".join(pieces), whole.choices[0].message.content)
        self.assertEqual(roles, ["assistant"])
        self.assertEqual(reasons, [whole.choices[0].finish_reason])
        self.assertEqual(len(usages), 1)
        self.assertEqual(usages[0].completion_tokens, whole.usage.completion_tokens)

    def test_what_was_said_before_counts(self):
        longer = [*QUESTION, {"role": "assistant", "content": "Rhine."},
                  {"role": "user", "content": "More."}]
        self.assertGreater(self.chat(messages=longer).usage.prompt_tokens,
                           self.chat().usage.prompt_tokens)

    def test_a_system_message_is_taken(self):
        messages = [{"role": "system", "content": "Answer in one word."}, *QUESTION]
        self.assertTrue(self.chat(messages=messages).choices)

    def test_content_in_parts_is_their_text(self):
        parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
        self.assertEqual(self.chat(messages=parts).choices[0].message.content,
                         self.chat().choices[0].message.content)

    def test_logprobs_are_of_the_chosen_tokens_and_their_rivals_in_order(self):
        answer = self.chat(logprobs=True, top_logprobs=3)
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), answer.usage.completion_tokens)
        for token in content:
            self.assertLessEqual(token.logprob, 0)
            values = [rival.logprob for rival in token.top_logprobs]
            self.assertEqual(len(values), 3)
            self.assertEqual(values, sorted(values, reverse=True))
            self.assertAlmostEqual(values[0], token.logprob)  # greedy
            self.assertLessEqual(sum(map(math.exp, values)), 1 + 1e-6)
            self.assertEqual(bytes(token.bytes).decode("utf-8", "replace"), token.token)

    def test_streamed_logprobs_are_those_of_the_whole_answer(self):
        whole = self.chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
        streamed = []
        for chunk in self.chat(logprobs=True, top_logprobs=2, stream=True):
            for choice in chunk.choices:
                if choice.logprobs and choice.logprobs.content:
                    streamed += choice.logprobs.content
        self.assertEqual([t.logprob for t in streamed], [t.logprob for t in whole])

    def test_the_example_client_writes_the_answer(self):
        said = subprocess.run(
            [sys.executable, ROOT / "examples" / "04-serve" / "openai_client.py", "Hello"],
            env={**os.environ, "HEADRACE_URL": f"http://127.0.0.1:{self.server.port}",
                 "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, check=False)
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        self.assertGreater(len(said.stdout), 1)

    def test_the_chunks_of_a_stream_have_one_name_and_time_and_two_streams_have_two(self):
        names = []
        for _ in range(2):
            chunks = list(self.chat(n=2, stream=True, stream_options={"include_usage": True}))
            self.assertEqual(len({(c.id, c.created, c.model) for c in chunks}), 1)
            self.assertTrue(all(c.usage is None for c in chunks[:-1]))
            self.assertEqual(chunks[-1].choices, [])
            names.append(chunks[0].id)
        self.assertNotEqual(names[0], names[1])

    def test_a_raw_response_has_the_name_of_its_request(self):
        raw = self.client.chat.completions.with_raw_response.create(
            model=self.model, messages=QUESTION, max_tokens=1,
            extra_headers={"X-Request-Id": "mine-7"})
        self.assertEqual(raw.request_id, "mine-7")
        self.assertTrue(raw.parse().choices)

    def test_fields_that_change_nothing_here_are_taken(self):
        answer = self.chat(tools=[], tool_choice="auto", parallel_tool_calls=False, store=True,
                           metadata={"a": "b"}, service_tier="auto", reasoning_effort="low",
                           user="ann", logit_bias={}, stop=[], top_p=0, temperature=1,
                           response_format={"type": "text"},
                           messages=[{"role": "developer", "content": "Answer briefly."},
                                     {**QUESTION[0], "name": "ann"}])
        self.assertTrue(answer.choices)

    def test_top_p_0_draws_the_likeliest(self):
        self.assertEqual(self.chat(temperature=1, top_p=0).choices[0].message.content,
                         self.chat().choices[0].message.content)

    def test_a_client_that_goes_leaves_a_server_that_answers(self):
        want = self.chat().choices[0].message.content
        for _ in range(3):
            stream = self.chat(max_tokens=400, stream=True, extra_body={"ignore_eos": True})
            next(iter(stream))
            stream.close()
        self.assertEqual(self.chat().choices[0].message.content, want)

    def test_many_at_once_say_what_each_says_alone(self):
        asked = [[{"role": "user", "content": f"Count to {i}."}] for i in range(8)]
        alone = [self.chat(messages=m).choices[0].message.content for m in asked]
        model = self.model

        async def together():
            async with openai.AsyncOpenAI(base_url=self.client.base_url, api_key="none",
                                          timeout=PATIENCE_S, max_retries=0) as client:
                return await asyncio.gather(*(client.chat.completions.create(
                    model=model, messages=m, max_tokens=12, temperature=0) for m in asked))
        answers = asyncio.run(together())
        self.assertEqual([a.choices[0].message.content for a in answers], alone)


class Completions(Served):
    def test_a_completion_has_text_a_reason_and_counts(self):
        answer = self.complete(max_tokens=7, extra_body={"ignore_eos": True})
        self.assertEqual(answer.object, "text_completion")
        self.assertTrue(answer.choices[0].text)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 7)

    def test_a_stream_says_the_same_piece_by_piece(self):
        whole = self.complete().choices[0]
        chunks = list(self.complete(stream=True))
        self.assertEqual("".join(c.choices[0].text for c in chunks if c.choices), whole.text)
        reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
        self.assertEqual([r for r in reasons if r], [whole.finish_reason])

    def test_several_prompts_are_answered_in_their_order(self):
        prompts = [PROMPT, "One, two, three,", "In the morning"]
        alone = [self.complete(prompt=p).choices[0].text for p in prompts]
        together = self.complete(prompt=prompts)
        self.assertEqual([c.index for c in together.choices], [0, 1, 2])
        self.assertEqual([c.text for c in together.choices], alone)

    def test_a_prompt_of_tokens_is_the_same_as_its_text(self):
        tokens = servers.fetch(self.server.port, "/tokenize",
                               {"content": PROMPT, "add_special": True}).json()["tokens"]
        self.assertEqual(self.complete(prompt=tokens).choices[0].text,
                         self.complete().choices[0].text)

    def test_equal_prompts_without_a_seed_get_answers_of_their_own(self):
        answer = self.complete(prompt=[PROMPT] * 4, temperature=1, max_tokens=24,
                               extra_body={"ignore_eos": True})
        self.assertGreater(len({c.text for c in answer.choices}), 1)

    def test_n_answers_to_one_prompt(self):
        answer = self.complete(n=3, temperature=1, seed=5)
        self.assertEqual(sorted(c.index for c in answer.choices), [0, 1, 2])
        self.assertGreater(len({c.text for c in answer.choices}), 1)

    def test_streams_of_n_answers_are_told_apart_by_index(self):
        whole = self.complete(n=2, temperature=1, seed=5)
        texts = {}
        for chunk in self.complete(n=2, temperature=1, seed=5, stream=True):
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
        self.assertEqual(texts, {c.index: c.text for c in whole.choices})

    def test_a_seed_repeats_what_was_drawn_and_another_does_not(self):
        def drawn(seed):
            return self.complete(temperature=1, seed=seed, max_tokens=24).choices[0].text
        self.assertEqual(drawn(11), drawn(11))
        self.assertGreater(len({drawn(seed) for seed in range(4)}), 1)

    def test_a_stop_string_ends_the_answer_and_is_not_in_it(self):
        more = {"max_tokens": 24, "extra_body": {"ignore_eos": True}}
        text = self.complete(**more).choices[0].text
        # Bytes that are no character are shown as one, but no stop string matches them.
        stops = {text[i:i + 2] for i in (1, 3, len(text) // 2)}
        for stop in [s for s in stops if len(s) == 2 and "\ufffd" not in s]:
            answer = self.complete(stop=stop, **more).choices[0]
            self.assertEqual(answer.text, text[:text.index(stop)])
            self.assertEqual(answer.finish_reason, "stop")
            pieces = [c.choices[0].text for c in self.complete(stop=[stop, "\0"], stream=True,
                                                               **more) if c.choices]
            self.assertEqual("".join(pieces), answer.text)

    def test_logprobs_name_the_tokens_and_the_likeliest(self):
        answer = self.complete(logprobs=2)
        said = answer.choices[0].logprobs
        self.assertEqual(len(said.tokens), answer.usage.completion_tokens)
        self.assertEqual(len(said.token_logprobs), len(said.tokens))
        self.assertTrue(all(value <= 0 for value in said.token_logprobs))
        self.assertEqual(len(said.top_logprobs), len(said.tokens))

    def test_echo_begins_with_the_prompt(self):
        self.assertEqual(self.complete(echo=True).choices[0].text,
                         PROMPT + self.complete().choices[0].text)

    def test_special_tokens_in_a_prompt_stay_text(self):
        for text in ("<|im_end|>", "<|end|>", "<|endoftext|>"):
            answer = servers.fetch(self.server.port, "/tokenize",
                                   {"content": text, "add_special": False}).json()
            self.assertGreater(len(answer["tokens"]), 1, text)
            back = servers.fetch(self.server.port, "/detokenize",
                                 {"tokens": answer["tokens"]}).json()
            self.assertEqual(back["content"], text)

    def test_a_token_with_a_bias_of_minus_100_is_not_said(self):
        plain = self.complete().choices[0].text
        bias = {}
        for word in plain.split():
            for text in (word, " " + word):
                tokens = servers.fetch(self.server.port, "/tokenize", {
                    "content": text, "add_special": False}).json()["tokens"]
                bias[str(tokens[0])] = -100
        self.assertNotEqual(self.complete(logit_bias=bias).choices[0].text, plain)

    def test_penalties_are_taken(self):
        self.assertTrue(self.complete(presence_penalty=1, frequency_penalty=1).choices)


class Refusals(Served):
    def check(self, error, param=None):
        """An error as OpenAI's: a message, a type, and the parameter where there is one."""
        self.assertTrue(error.message)
        self.assertIsInstance(error.body, dict)
        self.assertTrue(error.body.get("type"))
        if param:
            self.assertEqual(error.body.get("param"), param)

    def test_what_is_out_of_range_is_a_bad_request_that_names_the_parameter(self):
        for param, value in {"temperature": 3, "top_p": 2, "max_tokens": -1, "n": 0,
                             "presence_penalty": 9, "frequency_penalty": -9,
                             "stop": ["a"] * 100}.items():
            with self.subTest(param=param), self.assertRaises(openai.BadRequestError) as caught:
                self.complete(**{param: value})
            self.check(caught.exception, param)

    def test_a_prompt_longer_than_the_context_is_refused_with_numbers(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(prompt="river " * 4000)
        self.check(caught.exception)
        self.assertRegex(caught.exception.message, r"\d")

    def test_what_is_not_there_is_refused_by_name(self):
        for more in ({"tools": [{"type": "function", "function": {"name": "f"}}]},
                     {"response_format": {"type": "json_object"}}):
            with self.subTest(more=more), self.assertRaises(openai.BadRequestError) as caught:
                self.chat(**more)
            self.check(caught.exception, next(iter(more)))

    def test_no_messages_is_a_bad_request(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(messages=[])
        self.check(caught.exception, "messages")

    def test_an_unknown_model_or_path_is_not_found(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.completions.create(model="no-such-model", prompt=PROMPT)
        self.check(caught.exception)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("no-such-model")
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model=self.model, input="a")


class Keys(Served):
    options = ("--api-key", "a-long-secret")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = client_of(cls.server, "a-long-secret")

    def test_the_key_opens(self):
        self.assertTrue(self.complete().choices)

    def test_another_key_is_an_authentication_error(self):
        for key in ("a-long-secre", "a-long-secret2", "x"):
            with self.subTest(key=key), self.assertRaises(openai.AuthenticationError):
                client_of(self.server, key).models.list()


class Overload(Served):
    options = ("--queue", "1")

    def test_more_than_the_queue_holds_is_a_rate_limit_with_a_time_to_come_again(self):
        model, refused, done = self.model, [], []

        def ask():
            try:
                done.append(client_of(self.server).completions.create(
                    model=model, prompt=PROMPT, max_tokens=300, temperature=0,
                    extra_body={"ignore_eos": True}))
            except openai.RateLimitError as error:
                refused.append(error)
        threads = [threading.Thread(target=ask) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(refused) + len(done), 24)
        self.assertTrue(done)
        self.assertTrue(refused)  # 4 run, 1 waits
        for error in refused:
            self.assertGreater(float(error.response.headers["retry-after"]), 0)
        self.assertEqual(len({answer.choices[0].text for answer in done}), 1)
        self.assertTrue(self.complete().choices)


if __name__ == "__main__":
    HEADRACE = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as FOLDER:
        unittest.main(verbosity=2)
