"""A small HTTP/1.1 client for measuring servers and for treating them badly.

One connection a request, asyncio, the standard library only. Arrival times are taken as
soon as the bytes of an event are here, before anything is parsed. Loopback only: plain
sockets, 127.0.0.1.
"""
import asyncio
import dataclasses
import json
import time

HOST = "127.0.0.1"
READ = 1 << 16


@dataclasses.dataclass
class Answer:
    """What came back. `whole`: the message ended as HTTP says it must; otherwise the server
    closed the connection early, or the caller went (`left`). Times are seconds after the
    request was sent."""
    status: int = 0
    headers: dict = dataclasses.field(default_factory=dict)  # lower-case names
    body: bytes = b""                                        # not of event streams
    events: list = dataclasses.field(default_factory=list)   # [(seconds, text of data:)]
    whole: bool = False
    left: bool = False
    seconds: float = 0.0

    def json(self):
        return json.loads(self.body)

    def chunks(self):
        """[(seconds, object)] of a stream's events, "[DONE]" left out."""
        return [(at, json.loads(text)) for at, text in self.events if text != "[DONE]"]

    def finished(self):
        """A stream that said that it ends, or a whole message."""
        if "text/event-stream" in self.headers.get("content-type", ""):
            return self.whole and bool(self.events) and self.events[-1][1] == "[DONE]"
        return self.whole

    def text(self):
        """The generated text of choice 0, streamed or not, chat or completion."""
        objects = [o for _, o in self.chunks()] if self.events else [self.json()]
        return "".join(piece(c) for o in objects for c in o.get("choices", [])
                       if c.get("index", 0) == 0)

    def usage(self):
        objects = [o for _, o in self.chunks()] if self.events else [self.json()]
        return next((o["usage"] for o in reversed(objects) if o.get("usage")), None)

    def error(self):
        """OpenAI's error object, or None."""
        try:
            return self.json().get("error")
        except (ValueError, AttributeError):
            return None


def piece(choice):
    """The text in one choice of a completion, a chat, or a chunk of either."""
    if "text" in choice:
        return choice["text"] or ""
    return (choice.get("delta") or choice.get("message") or {}).get("content") or ""


def head(method, path, length=None, headers=()):
    """Bytes of a request's head. length: of the body, None for no body."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}", "Connection: close"]
    if length is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in dict(headers).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def read_head(reader):
    """(status, headers) or None when the server closed before it had answered."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = raw.decode("latin-1").rstrip().split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(first.split()[1]), headers


async def pieces(reader, headers):
    """The body's bytes as they come; raises IncompleteReadError when it ends too early."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    elif "content-length" in headers:
        left = int(headers["content-length"])
        while left:
            block = await reader.read(min(left, READ))
            if not block:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(block)
            yield block
    else:
        while block := await reader.read(READ):
            yield block


async def receive(reader, begin, on_event=None):
    """Reads one answer. on_event(count): called after each event; False: stop reading."""
    answer = Answer()
    try:
        got = await read_head(reader)
        if got is None:
            return answer
        answer.status, answer.headers = got
        stream = "text/event-stream" in answer.headers.get("content-type", "")
        body, rest = [], b""
        async for block in pieces(reader, answer.headers):
            if not stream:
                body.append(block)
                continue
            now = time.monotonic() - begin
            *events, rest = (rest + block).replace(b"\r\n", b"\n").split(b"\n\n")
            for event in events:
                if not event.startswith(b"data:"):
                    continue  # a comment that keeps the connection alive
                answer.events.append((now, event[5:].strip().decode()))
                if on_event and on_event(len(answer.events)) is False:
                    answer.left = True
                    return answer
        answer.body = b"".join(body)
        answer.whole = True
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # whole stays false
    finally:
        answer.seconds = time.monotonic() - begin
    return answer


async def close(writer):
    writer.close()
    try:
        await writer.wait_closed()
    except ConnectionError:
        pass


async def request(port, method, path, body=None, headers=(), on_event=None,
                  half_close=False):
    """One request; `body`: bytes, an object to be sent as JSON, or None. half_close: shut
    our sending side down as soon as the request is out. ConnectionError when nothing
    listens; otherwise the Answer says what happened."""
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(HOST, port, limit=1 << 20)
    begin = time.monotonic()
    try:
        writer.write(head(method, path, None if body is None else len(body), headers))
        if body:
            writer.write(body)
        try:
            await writer.drain()
            if half_close:
                writer.write_eof()
        except ConnectionError:
            pass  # refused early, perhaps: the answer may still be there to read
        return await receive(reader, begin, on_event)
    finally:
        await close(writer)


def fetch(port, path, body=None, headers=(), timeout_s=600):
    """One request from code that is not asynchronous: GET, or POST with a body."""
    method = "GET" if body is None else "POST"

    async def once():
        return await asyncio.wait_for(request(port, method, path, body, headers), timeout_s)
    return asyncio.run(once())


def metric(text, name):
    """The value of a metric without labels in Prometheus' text; None when it is not there."""
    for line in text.splitlines():
        if line.startswith(name + " "):
            return float(line.split()[1])
    return None
