#!/usr/bin/env python3
"""The same with OpenAI's own client (pip install openai): only the address differs.

usage: openai_client.py [QUESTION]

HEADRACE_URL is where the server listens (http://127.0.0.1:8080), HEADRACE_API_KEY its key.
"""
import os
import sys

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("HEADRACE_URL", "http://127.0.0.1:8080") + "/v1",
                api_key=os.environ.get("HEADRACE_API_KEY", "none"))
model = client.models.list().data[0].id
question = sys.argv[1] if len(sys.argv) > 1 else "What is a headrace?"
stream = client.chat.completions.create(
    model=model, stream=True, max_tokens=128,
    messages=[{"role": "user", "content": question}])
for event in stream:
    if event.choices:
        print(event.choices[0].delta.content or "", end="", flush=True)
print()
