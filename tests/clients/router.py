"""sglang-router in front of two servers: policies, health checks, draining, a worker that is killed."""

import concurrent.futures
import itertools
import json
import os
import sys
import threading
import time

import serving
from serving import check

PROMPT = "the plan of a bucket is replayed "


def router(*workers, policy, options=()):
    port, metrics = serving.free_port(), serving.free_port()
    command = [
        os.path.join(os.path.dirname(sys.executable), "sglang-router"), "launch", "--host", "127.0.0.1", "--port", port,
        "--prometheus-port", metrics, "--policy", policy, "--health-check-interval-secs", 1,
        "--health-failure-threshold", 2, "--health-success-threshold", 1, "--log-level", "info",
        "--worker-urls", *(worker.url for worker in workers), *options,
    ]
    front = serving.Process(f"router-{policy}", command, port)
    try:
        knows(front, workers)
    except BaseException:
        front.kill()
        raise
    return front


def knows(front, workers):
    """Waits until a router, which is well before that, knows its workers; tells it again of one that it gave up ("Workflow
    deadlocked", a race of its own)."""
    deadline, again = time.monotonic() + 20, time.monotonic() + 2
    known = lambda: {worker["url"] for worker in json.loads(front.get("/workers"))["workers"]}
    while missing := {worker.url for worker in workers} - known():
        check(time.monotonic() < deadline, f"the router does not know {missing}")
        if time.monotonic() > again:
            again = time.monotonic() + 2
            for url in missing:
                front.post("/workers", {"url": url})
        time.sleep(0.05)


def workers():
    path = serving.WORK / "artifacts" / "demo"
    return serving.server(path, name="worker-a"), serving.server(path, name="worker-b")


def served(worker):
    return worker.metric("sglang:num_requests_total")


def body(prompt, tokens):
    return {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}


def generate(front, index=0, tokens=8):
    answer = front.post("/generate", body(f"{PROMPT}{index} ", tokens))
    check(answer["meta_info"]["completion_tokens"] == tokens, f"{answer}")
    return answer["text"]


def load(front, seconds, during, tokens=64, clients=8):
    """Clients that ask without a pause while `during` happens: answers and failures."""
    stop, numbers = threading.Event(), itertools.count()
    done, failed = [], []

    def ask():
        while not stop.is_set():
            index = next(numbers)
            try:
                done.append((index, generate(front, index, tokens), time.monotonic()))
            except Exception as error:
                failed.append((index, repr(error), time.monotonic()))

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        for _ in range(clients):
            pool.submit(ask)
        time.sleep(seconds)
        during()
        time.sleep(seconds)
        stop.set()
    return done, failed


def plain_policies(_):
    for policy in ["round_robin", "random", "power_of_two"]:
        a, b = workers()
        with a, b, router(a, b, policy=policy) as front:
            alone = generate(a)
            for index in range(24):
                check(generate(front) == alone, "the router changes an answer")
            check(served(a) > 1 and served(b) > 1, f"{policy}: {served(a)} and {served(b)}")
            chat = {"model": "demo", "messages": [{"role": "user", "content": "What is a bucket?"}], "max_tokens": 8}
            check(front.post("/v1/chat/completions", chat)["choices"], "chat")
            check(front.post("/v1/completions", {"model": "demo", "prompt": "x", "max_tokens": 4})["choices"], "text")
            check("demo" in front.get("/v1/models"), "the list of models")


def requests_that_begin_alike_meet(_):
    a, b = workers()
    options = ["--cache-threshold", "0.3", "--balance-abs-threshold", "1000"]
    # Taken in turn by two workers, each of an odd number of groups would be at both.
    names, turns = ("first", "second", "third", "fourth", "fifth"), 6
    with a, b, router(a, b, policy="cache_aware", options=options) as front:
        ask = lambda name, turn, tokens: front.post("/generate", body(f"{name} group " * 24 + f"question {turn}", tokens))
        # What nobody has seen goes where least is running, so the first of each group run together.
        with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
            first = []
            for name in names:
                first.append(pool.submit(ask, name, 0, 256))
                time.sleep(0.01)
            for answer in first:
                check(answer.result()["meta_info"]["completion_tokens"] == 256, f"{answer.result()}")
        check(served(a) and served(b), f"one worker has all the groups: {served(a)} and {served(b)}")
        homes, prompt, cached = {name: set() for name in names}, 0, 0
        for turn in range(1, turns):
            for name in names:
                before = served(a), served(b)
                answer = ask(name, turn, 4)["meta_info"]
                # Counted when the step ends, which may be after the answer is here.
                deadline = time.monotonic() + 10
                while sum(moved := [served(a) - before[0], served(b) - before[1]]) == 0:
                    check(time.monotonic() < deadline, "a request is not counted")
                check(sorted(moved) == [0, 1], f"one request is served by one worker: {moved}")
                homes[name].add("a" if moved[0] else "b")
                prompt += answer["prompt_tokens"]
                cached += answer["cached_tokens"]
        check(all(len(at) == 1 for at in homes.values()), f"a group is at two workers: {homes}")
        check(set.union(*homes.values()) == {"a", "b"}, f"one worker has all the groups: {homes}")
        # In turn, one request of each group in five would find nothing.
        check(cached > 0.85 * prompt, f"{cached} of {prompt} prompt tokens come from a cache")


def a_killed_worker_takes_no_other_requests_with_it(_):
    a, b = workers()
    with a, b, router(a, b, policy="round_robin") as front:
        killed = []

        def kill():
            b.kill()
            killed.append(time.monotonic())

        done, failed = load(front, 2.0, kill)
        # What ran on the killed worker may fail, or be asked again of the other; nothing else may.
        check(len(failed) <= 8, f"{len(failed)} failed: {failed[:3]}")
        later = [f for f in failed if f[2] > killed[0] + 5]
        check(not later, f"failures long after: {later[:3]}")
        check(sum(t > killed[0] for _, _, t in done) > 8, "the surviving worker serves on")
        for index, text, _ in done[:4]:
            check(text == generate(a, index, 64), "an answer differs")
        check(front.answers("/health"), "the router is well")
        a.becomes_idle()


def a_draining_worker_loses_nothing(_):
    a, b = workers()
    with a, b, router(a, b, policy="round_robin") as front:
        done, failed = load(front, 2.0, b.terminate)
        check(not failed, f"{len(failed)} failed: {failed[:3]}")
        check(b.process.wait(timeout=40) == 0, "the drained worker ends well")
        check(len(done) > 4, f"{len(done)} answers")


def a_worker_that_comes_back_is_used(_):
    a, b = workers()
    with a, b, router(a, b, policy="round_robin") as front:
        b.kill()
        for index in range(6):
            generate(front, index)
        path = serving.WORK / "artifacts" / "demo"
        command = [serving.PRECAST, "serve", path, "--port", b.port]
        with serving.Process("worker-b-again", command, b.port) as again:
            deadline = time.monotonic() + 20
            while served(again) == 0:
                check(time.monotonic() < deadline, "it gets no request although it is well again")
                generate(front)
                time.sleep(0.2)


CASES = [
    plain_policies, requests_that_begin_alike_meet, a_killed_worker_takes_no_other_requests_with_it,
    a_draining_worker_loses_nothing, a_worker_that_comes_back_is_used,
]

serving.artifact()
serving.run_all(CASES, None)
