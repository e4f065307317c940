"""One search for all requests: their bytes, their turns, and what happens to those that cannot be served."""

import asyncio
import threading
import weakref
from collections.abc import Iterator
from contextlib import aclosing, contextmanager

import pytest

from heed.apps.serving import search_thread
from heed.apps.serving.engine import Engine
from heed.apps.serving.request_queue import Closing, QueueFull, SearchFailed, TooLate
from heed.backends.cpu.search import CpuSearchBackend
from heed.decoding.translator import Translator
from heed.errors import HeedError

SENTENCES = ["one", "seven hundred twelve", "", "forty-two thousand and six", "nine hundred", "three " * 40]


@pytest.fixture(autouse=True)
def n_searches(request, monkeypatch) -> int:
    """One, or as many as a test asks for, of one thread each: the tests' processes fill the cores."""
    n = getattr(request, "param", 1)
    monkeypatch.setattr("heed.apps.serving.engine.MANY_PARAMETERS", 0)
    monkeypatch.setattr(CpuSearchBackend, "search_threads", lambda *_: n)
    monkeypatch.setattr(CpuSearchBackend, "use_threads", lambda *_: None)
    return n


by_one_and_two = pytest.mark.parametrize("n_searches", [1, 2], indirect=True)


@contextmanager
def running(translator: Translator, **options) -> Iterator[Engine]:
    engine = Engine(translator, **options)
    engine.start()
    try:
        yield engine
    finally:
        engine.close(0.2)
        for search in engine.searches:
            search.thread.join(30)
        assert not any(search.thread.is_alive() for search in engine.searches)


@pytest.fixture
def slow_translator(model_folder) -> Translator:
    """Every sentence takes 120 steps."""
    return Translator.load(model_folder, precision="fp32", min_tokens=119, max_extra_tokens=120)


async def translations(engine: Engine, sentences, **options):
    found = {}
    async with aclosing(engine.translate(sentences, **options)) as results:
        async for place, translation in results:
            found[place] = translation
    return [found[i] for i in range(len(sentences))]


@by_one_and_two
def test_a_small_model_has_one_search_and_a_larger_one_several(slow_translator, n_searches, monkeypatch):
    assert len(Engine(slow_translator).searches) == n_searches
    monkeypatch.setattr("heed.apps.serving.engine.MANY_PARAMETERS", 2_000_000)
    assert len(Engine(slow_translator).searches) == 1


async def until(condition) -> None:
    async with asyncio.timeout(180):
        while not condition():
            await asyncio.sleep(0.001)


@by_one_and_two
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_requests_that_are_searched_together_get_the_bytes_that_each_gets_alone(model_folder, precision):
    try:
        translator = Translator.load(model_folder, precision=precision)
    except HeedError as error:
        pytest.skip(str(error))
    # A beam of 3 has no fourth hypothesis.
    kinds = [{"n_best": n, "prefix": prefix} for n in (1, 2, 4) for prefix in ("", "zweihu")]
    expected = [translator.translate(SENTENCES, n_best=min(3, kind["n_best"]), prefix=kind["prefix"]) for kind in kinds]

    async def all_at_once(engine):
        return await asyncio.gather(*(translations(engine, SENTENCES, **kind) for kind in kinds * 3))

    with running(translator) as engine:
        assert asyncio.run(all_at_once(engine)) == expected * 3
        assert engine.n_searching == engine.n_waiting == 0


@pytest.mark.slow
def test_a_book_does_not_hold_up_a_sentence(translator):
    async def both(engine):
        done = []

        async def one(name, sentences):
            await translations(engine, sentences)
            done.append(name)

        book = asyncio.create_task(one("book", SENTENCES * 100))
        await until(lambda: engine.n_searching)
        await one("sentence", ["nine"])
        assert engine.n_waiting > 100
        await book
        return done

    with running(translator) as engine:
        assert asyncio.run(both(engine)) == ["sentence", "book"]


@pytest.mark.slow
def test_a_kind_of_search_that_never_ends_gives_others_their_turn(translator):
    async def both(engine):
        book = asyncio.create_task(translations(engine, SENTENCES * 100))
        await until(lambda: engine.n_searching)
        await translations(engine, ["nine"], n_best=2)
        assert not book.done()
        await book

    with running(translator) as engine:
        asyncio.run(both(engine))


def test_a_full_queue_refuses_at_once_and_says_when_to_try_again(slow_translator):
    async def crowd(engine):
        requests = [asyncio.create_task(translations(engine, ["one"] * 20_000))]  # counts for half of the queue
        await until(lambda: engine.n_searching >= 48)
        requests += [asyncio.create_task(translations(engine, ["two"])) for _ in range(2)]
        await until(lambda: len(engine.queue.requests()) == 3)
        with pytest.raises(QueueFull, match="try again in") as refused:
            await translations(engine, ["three"])
        assert 1 <= refused.value.retry_after <= 60
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)

    with running(slow_translator, max_waiting=4) as engine:
        asyncio.run(crowd(engine))
        assert engine.metrics.value("heed_rejected_total", reason="full") == 1
        assert engine.metrics.value("heed_cancelled_total") == 3


@pytest.mark.slow
def test_a_queue_that_is_empty_takes_a_request_of_any_size_and_then_half_a_queue_more(translator):
    async def books(engine):
        book = asyncio.create_task(translations(engine, ["one"] * 500))
        await until(lambda: engine.n_waiting)
        await translations(engine, ["two"] * 2)
        await book

    with running(translator, max_waiting=4) as engine:
        asyncio.run(books(engine))


@by_one_and_two
def test_requests_that_are_given_up_leave_the_queue_and_the_search(slow_translator):
    async def leave(engine):
        book = asyncio.create_task(translations(engine, ["one"] * 200))
        await until(lambda: engine.n_searching >= 48)
        book.cancel()
        await asyncio.gather(book, return_exceptions=True)
        assert engine.n_waiting == 0
        await until(lambda: engine.n_searching == 0)
        assert engine.queue.n_done == 0  # nothing was searched to its end
        with pytest.raises(TooLate, match="not finished in time"):
            await translations(engine, ["one"] * 200, timeout_seconds=0.01)
        await until(lambda: engine.n_searching == 0)

    with running(slow_translator) as engine:
        asyncio.run(leave(engine))
        assert engine.metrics.value("heed_cancelled_total") == 1
        assert engine.metrics.value("heed_rejected_total", reason="timeout") == 1


@by_one_and_two
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (HeedError("the numbers are not finite"), "the numbers are not finite"),
        (MemoryError("17 GB"), "not enough memory"),
        (KeyError("secret"), "internal error: KeyError"),
    ],
)
def test_an_error_in_the_search_fails_the_request_that_causes_it_and_no_other(translator, monkeypatch, error, reason):
    poison = translator.pieces(["three three three"])[0][0]

    def poisoned(plan, sources, **options):
        def watched():
            for source in sources:
                if source is not None and list(source.ids) == poison:
                    raise error
                yield source

        return search(plan, watched(), **options)

    search = search_thread.distinct_search
    monkeypatch.setattr(search_thread, "distinct_search", poisoned)
    expected = translator.translate(SENTENCES)

    async def all_at_once(engine):
        requests = [translations(engine, SENTENCES) for _ in range(4)]
        requests.insert(2, translations(engine, ["one", "three three three", "two"]))
        return await asyncio.gather(*requests, return_exceptions=True)

    with running(translator) as engine:
        for _ in range(2):  # it lives on
            *good, bad = sorted(asyncio.run(all_at_once(engine)), key=lambda result: isinstance(result, Exception))
            assert good == [expected] * 4
            assert isinstance(bad, SearchFailed) and str(bad) == reason
        assert engine.n_searching == engine.n_waiting == 0


def test_a_search_with_nothing_to_do_frees_its_memory_and_the_next_sentence_begins_another(translator, monkeypatch):
    states: list[weakref.ref] = []
    search_state = CpuSearchBackend.search_state

    def watched(*args, **options):
        state = search_state(*args, **options)
        states.append(weakref.ref(state))
        return state

    monkeypatch.setattr(search_thread, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(CpuSearchBackend, "search_state", watched)
    with running(translator) as engine:
        for n_begun in (1, 2):
            assert asyncio.run(translations(engine, ["one"])) == translator.translate(["one"])
            asyncio.run(until(lambda: not any(state() for state in states)))
            assert len(states) >= n_begun


def test_a_search_that_cannot_begin_and_a_text_that_cannot_be_decoded_fail_their_requests(translator, monkeypatch):
    def broken(*args, **options):
        raise MemoryError

    with running(translator) as engine:
        with monkeypatch.context() as patched, pytest.raises(SearchFailed, match="not enough memory"):
            patched.setattr(search_thread, "distinct_search", broken)
            asyncio.run(translations(engine, ["one"] * 3))
        with monkeypatch.context() as patched, pytest.raises(SearchFailed, match="internal error: ValueError"):
            patched.setattr(translator, "joined", lambda *_: int("x"))
            asyncio.run(translations(engine, ["one"]))
        assert asyncio.run(translations(engine, ["one"])) == translator.translate(["one"])


def test_alternatives_are_those_of_the_translator_each_text_once(translator, monkeypatch):
    whole = translator.tokenizer.decode
    monkeypatch.setattr(translator.tokenizer, "decode", lambda ids: whole(ids)[:2])  # so some are searched again
    expected = translator.translate(SENTENCES, n_best=3)
    with running(translator) as engine:
        found = asyncio.run(translations(engine, SENTENCES, n_best=3))
        assert found == expected and engine.n_searching == 0
    for translation in found:
        texts = [other.text for other in translation.alternatives]
        assert len(set(texts)) == len(texts) <= 3


@by_one_and_two
def test_what_was_accepted_is_finished_before_the_end(translator):
    async def close_under_load(engine):
        requests = [asyncio.create_task(translations(engine, SENTENCES * 10)) for _ in range(5)]
        await until(lambda: engine.queue.n_done + engine.n_searching + engine.n_waiting >= 5 * 50)  # all are accepted
        closing = threading.Thread(target=engine.close, args=(60,))
        closing.start()
        await until(lambda: engine.queue.closing)
        with pytest.raises(Closing):
            await translations(engine, ["one"])
        found = await asyncio.gather(*requests)
        await asyncio.to_thread(closing.join)
        return found

    with running(translator) as engine:
        assert asyncio.run(close_under_load(engine)) == [translator.translate(SENTENCES * 10)] * 5


@by_one_and_two
def test_what_is_not_finished_within_the_grace_period_fails(slow_translator):
    async def close_at_once(engine):
        request = asyncio.create_task(translations(engine, ["one"] * 300))
        await until(lambda: engine.n_searching)
        await asyncio.to_thread(engine.close, 0.01)
        with pytest.raises(Closing):
            await request

    with running(slow_translator) as engine:
        asyncio.run(close_at_once(engine))
