"""The openai package: chat, completions, streams, tools, structured output, errors, timeouts."""

import asyncio
import json

import openai

import serving
from serving import check

QUESTION = [{"role": "user", "content": "What is a bucket?"}]
# Tokens for JSON. White space is forbidden, or the small model writes nothing else.
ROOM = 160
SCHEMA = {
    "x-guidance": {"whitespace_flexible": False},
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "warm": {"type": "boolean"},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "warm", "days"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Tells the weather", "parameters": SCHEMA},
}


def client(server, **options):
    options = {"api_key": "none", "max_retries": 0, **options}
    return openai.OpenAI(base_url=server.url + "/v1", **options)


def chat(server, **options):
    options = {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 48, **options}
    return client(server).chat.completions.create(**options)


def complete(server, **options):
    options = {"model": "demo", "prompt": "A bucket is", "temperature": 0, "max_tokens": 16, **options}
    return client(server).completions.create(**options)


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    except openai.OpenAIError as error:
        raise AssertionError(f"{type(error).__name__} instead of {kind.__name__}: {error}")
    raise AssertionError(f"no {kind.__name__}")


def models(server):
    found = client(server).models.list().data
    check([m.id for m in found] == ["demo"], f"{found}")
    check(client(server).models.retrieve("demo").id == "demo", "retrieve")
    raises(openai.NotFoundError, lambda: client(server).models.retrieve("other"))


def chat_whole(server):
    answer = chat(server)
    choice = answer.choices[0]
    check(choice.message.role == "assistant" and len(choice.message.content) > 5, f"{choice}")
    check(choice.finish_reason in ("stop", "length"), choice.finish_reason)
    usage = answer.usage
    check(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, f"{usage}")
    short = chat(server, max_tokens=3)
    check(short.choices[0].finish_reason == "length", f"{short}")
    check(short.usage.completion_tokens == 3, f"{short.usage}")
    newer = chat(server, max_tokens=openai.omit, max_completion_tokens=3)
    check(newer.choices[0].message.content == short.choices[0].message.content, f"{newer}")


def chat_streamed(server):
    whole = chat(server).choices[0]
    chunks = list(chat(server, stream=True))
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    check(text == whole.message.content, f"{text!r} is not {whole.message.content!r}")
    check(chunks[0].choices[0].delta.role == "assistant", f"{chunks[0]}")
    check(chunks[-1].choices[0].finish_reason == whole.finish_reason, f"{chunks[-1]}")
    check(all(c.usage is None for c in chunks), "usage was not asked for")
    *chunks, last = chat(server, stream=True, stream_options={"include_usage": True})
    check(last.choices == [] and last.usage.completion_tokens > 0, f"{last}")
    check(all(c.choices for c in chunks), "only the last chunk has no choices")
    with client(server).chat.completions.stream(model="demo", messages=QUESTION, temperature=0, max_tokens=48) as stream:
        check(stream.get_final_completion().choices[0].message.content == text, "the helper for streams")


def content_in_parts(server):
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    same = chat(server, messages=parts).choices[0].message.content
    check(same == chat(server).choices[0].message.content, same)
    turns = [{"role": "system", "content": "Be brief."}, *QUESTION,
             {"role": "assistant", "content": "A batch size."}, {"role": "user", "content": "Why?"}]
    check(chat(server, messages=turns).choices[0].message.content, "a conversation of four turns")


def completions(server):
    whole = complete(server).choices[0].text
    check(whole, "no text")
    pieces = [c.choices[0].text for c in complete(server, stream=True)]
    check("".join(pieces) == whole, f"{pieces} are not {whole!r}")
    both = complete(server, prompt=["A bucket is", "A plan is"], echo=True)
    check([c.index for c in both.choices] == [0, 1], f"{both}")
    check(both.choices[0].text == "A bucket is" + whole, f"{both.choices[0]}")
    check(both.choices[1].text.startswith("A plan is"), f"{both.choices[1]}")
    check(complete(server, prompt=[5, 6, 7]).usage.prompt_tokens == 3, "token ids")


def logprobs(server):
    answer = chat(server, logprobs=True, top_logprobs=3, max_tokens=5).choices[0]
    entries = answer.logprobs.content
    check(len(entries) == 5, f"{entries}")
    for entry in entries:
        best = max(entry.top_logprobs, key=lambda top: top.logprob)
        check(len(entry.top_logprobs) == 3 and entry.logprob <= 0, f"{entry}")
        check(best.token == entry.token, f"greedy takes the best: {entry}")
        check(bytes(entry.bytes).decode() == entry.token, f"{entry}")
    check("".join(e.token for e in entries) == answer.message.content, "tokens are the text")
    older = complete(server, logprobs=2, max_tokens=4).choices[0].logprobs
    check(len(older.tokens) == len(older.token_logprobs) == len(older.top_logprobs) == 4, f"{older}")


def several_choices(server):
    answer = chat(server, n=3, temperature=2, seed=1, max_tokens=40)
    texts = [c.message.content for c in answer.choices]
    check([c.index for c in answer.choices] == [0, 1, 2] and len(set(texts)) > 1, f"{texts}")
    check(answer.usage.completion_tokens <= 120, f"{answer.usage}")
    streamed = {}
    for chunk in chat(server, n=3, temperature=2, seed=1, max_tokens=40, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] = streamed.get(choice.index, "") + (choice.delta.content or "")
    check([streamed[i] for i in range(3)] == texts, f"{streamed} are not {texts}")


def seeds(server):
    draw = lambda seed: chat(server, temperature=1.5, seed=seed, max_tokens=16).choices[0].message.content
    check(draw(7) == draw(7), "one seed, one answer")
    check(len({draw(seed) for seed in range(6)}) > 1, "all seeds give one answer")


def stops(server):
    text = chat(server).choices[0].message.content
    word = text.split()[2]
    choice = chat(server, stop=[word, "never"]).choices[0]
    check(choice.message.content == text.split(word)[0], f"{choice} does not end before {word!r}")
    check(choice.finish_reason == "stop", choice.finish_reason)
    pieces = [c.choices[0].delta.content or "" for c in chat(server, stop=word, stream=True)]
    check("".join(pieces) == choice.message.content, f"{pieces}")


def biases_and_penalties(server):
    first = chat(server, logprobs=True, max_tokens=1).choices[0].logprobs.content[0].token
    ids = [t for t in client(server).post("/../tokenize", body={"prompt": first, "add_special_tokens": False}, cast_to=object)["tokens"]]
    other = chat(server, logit_bias={str(ids[0]): -100}, max_tokens=1).choices[0].message.content
    check(other != first, f"{first!r} was forbidden")
    check(chat(server, frequency_penalty=1.0, presence_penalty=0.5, top_p=0.9).choices, "penalties")


def json_schema(server):
    shape = {"type": "json_schema", "json_schema": {"name": "day", "strict": True, "schema": SCHEMA}}
    for stream in (False, True):
        answer = chat(server, response_format=shape, max_tokens=ROOM, stream=stream)
        if stream:
            text = "".join(c.choices[0].delta.content or "" for c in answer)
        else:
            text = answer.choices[0].message.content
        value = json.loads(text)
        check(set(value) == {"city", "warm", "days"}, f"{value}")
        check(type(value["warm"]) is bool and 0 <= value["days"] <= 9, f"{value}")


def json_object(server):
    text = chat(server, response_format={"type": "json_object"}, max_tokens=200).choices[0]
    if text.finish_reason == "stop":
        check(isinstance(json.loads(text.message.content), dict), f"{text}")
    else:
        check(text.message.content.lstrip().startswith("{"), f"{text}")


def tools(server):
    free = chat(server, tools=[WEATHER]).choices[0]
    check(free.message.content or free.message.tool_calls, f"{free}")
    forced = {"type": "function", "function": {"name": "get_weather"}}
    choice = chat(server, tools=[WEATHER], tool_choice=forced, max_tokens=ROOM).choices[0]
    call = choice.message.tool_calls[0]
    check(call.function.name == "get_weather" and call.id, f"{call}")
    check(set(json.loads(call.function.arguments)) == {"city", "warm", "days"}, f"{call}")
    name, arguments = "", ""
    for chunk in chat(server, tools=[WEATHER], tool_choice=forced, max_tokens=ROOM, stream=True):
        for piece in chunk.choices[0].delta.tool_calls or []:
            name += piece.function.name or ""
            arguments += piece.function.arguments or ""
    check(name == "get_weather", name)
    check(json.loads(arguments) == json.loads(call.function.arguments), arguments)
    history = [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
               {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    check(chat(server, messages=history, tools=[WEATHER]).choices, "the answer of a tool")


def timeouts(server):
    slow = lambda: client(server, timeout=0.02).chat.completions.create(
        model="demo", messages=QUESTION, n=8, max_tokens=400, extra_body={"ignore_eos": True})
    raises(openai.APITimeoutError, slow)
    server.becomes_idle()


def leaving_early(server):
    with chat(server, stream=True, max_tokens=400, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    server.becomes_idle()


def errors(server):
    cases = [
        ({"temperature": -1}, "temperature"),
        ({"messages": []}, "messages"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, ""),
    ]
    for options, field in cases:
        error = raises(openai.BadRequestError, lambda: chat(server, **options))
        check(error.status_code == 400 and field in str(error), f"{options.keys()}: {error}")
    nowhere = lambda: client(server).post("/nowhere", body={}, cast_to=object)
    raises(openai.NotFoundError, nowhere)
    embed = lambda: client(server).embeddings.create(model="demo", input="x")
    error = raises(openai.APIStatusError, embed)
    check(error.status_code in (404, 501), f"{error}")
    gone = openai.OpenAI(base_url=f"http://127.0.0.1:{serving.free_port()}/v1", api_key="x", max_retries=0)
    raises(openai.APIConnectionError, lambda: gone.models.list())


def keys(server):
    with serving.server(serving.WORK / "artifacts" / "demo", "--api-key", "secret", name="keyed") as keyed:
        raises(openai.AuthenticationError, lambda: client(keyed, api_key="wrong").models.list())
        check(client(keyed, api_key="secret").models.list().data, "the key is right")


def full_queue(server):
    options = ["--max-queued-requests", "1", "--max-running-requests", "1"]
    with serving.server(serving.WORK / "artifacts" / "demo", *options, name="narrow") as narrow:
        async def flood():
            api = openai.AsyncOpenAI(base_url=narrow.url + "/v1", api_key="x", max_retries=0)
            ask = lambda: api.chat.completions.create(
                model="demo", messages=QUESTION, max_tokens=300, extra_body={"ignore_eos": True})
            return await asyncio.gather(*(ask() for _ in range(12)), return_exceptions=True)
        answers = asyncio.run(flood())
        refused = [a for a in answers if isinstance(a, openai.RateLimitError)]
        done = [a for a in answers if not isinstance(a, Exception)]
        check(refused and done and len(refused) + len(done) == 12, f"{answers}")
        # With retries, as the package makes them by itself, everyone gets an answer in the end.
        patient = client(narrow, max_retries=8)
        check(patient.chat.completions.create(model="demo", messages=QUESTION).choices, "a retry")


def many_at_once(server):
    alone = chat(server).choices[0].message.content

    async def ask_all():
        api = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="x")
        ask = lambda: api.chat.completions.create(
            model="demo", messages=QUESTION, temperature=0, max_tokens=48)
        return await asyncio.gather(*(ask() for _ in range(40)))

    texts = {answer.choices[0].message.content for answer in asyncio.run(ask_all())}
    check(texts == {alone}, f"{texts} are not {alone!r}")


CASES = [
    models, chat_whole, chat_streamed, content_in_parts, completions, logprobs, several_choices, seeds,
    stops, biases_and_penalties, json_schema, json_object, tools, timeouts, leaving_early, errors,
    keys, full_queue, many_at_once,
]

with serving.server(serving.artifact()) as server:
    serving.run_all(CASES, server)
