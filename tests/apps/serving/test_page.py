"""The page of a server, in a real browser, as a reader uses it: all of it in one browser, at one address."""

import asyncio
import hashlib
import json
import os
import subprocess
import threading

import httpx
import numpy as np
import pytest
from tests.apps.serving.conftest import write_model_folder
from tests.apps.serving.test_server import wait_until
from tests.browser import Tab, needs_chromium, open_browser
from tests.servers import RunningServer

from heed.apps.serving.app import make_app
from heed.apps.serving.engine import Engine
from heed.apps.serving.service import Service
from heed.apps.visualization.trace import trace
from heed.decoding.translator import Translator

TEXT = "seven hundred twelve. 🐟 Forty-two!\n\n  three"
SENTENCES = ["seven hundred twelve.", "🐟 Forty-two!", "three"]
KEY = "sesame"
OUTPUT = "document.getElementById('translation').textContent"
STATUS = "document.getElementById('status').textContent"
DONE = "document.getElementById('translation').ariaBusy === 'false' && !document.querySelector('.pending, .stale')"


def in_browser(test):
    """A test that needs one."""
    return pytest.mark.slow(needs_chromium(test))


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory, number_tokenizer):
    """Its translations are short enough to look at."""
    return write_model_folder(tmp_path_factory.mktemp("page") / "model", number_tokenizer, max_extra_tokens=8)


@pytest.fixture(scope="module")
def translator(model_folder) -> Translator:
    return Translator.load(model_folder, precision="fp32")


@pytest.fixture(scope="module")
def expected(translator) -> str:
    first, second, third = (found.text for found in translator.translate(SENTENCES))
    return f"{first} {second}\n\n  {third}"


@pytest.fixture(scope="module")
def arguments(model_folder, slow_model_folder, tmp_path_factory) -> list[object]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(hashlib.sha256(KEY.encode()).hexdigest() + "\n")
    pairs = ["--pair", f"en-de={model_folder}", "--pair", f"de-en={slow_model_folder}"]
    return [*pairs, "--api-keys", keys, "--queue", 2, "--max-chars", 500]


@pytest.fixture(scope="module")
def running(commands, arguments):
    """The server that is there now, as the one item of a list: a test ends it and starts another."""
    servers = [RunningServer(commands, *arguments)]
    try:
        yield servers
    finally:
        servers[0].end()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab, running):
    """The page, newly opened, with the key and for English to German; its console must stay without errors."""
    browser.events.clear()
    browser.resize(1200, 900)
    browser.open(running[0].url)
    browser.value(f"sessionStorage.setItem('heed-key', '{KEY}'); localStorage.clear()")
    browser.open(running[0].url + "/?")
    browser.wait_for("document.querySelector('#target-language').value")
    choose(browser, "source-language", "en")
    browser.click("document.getElementById('text')")
    yield browser
    assert browser.errors() == []
    assert {address.split("/", 3)[2] for address in browser.addresses() if not address.startswith("data:")} == {
        f"127.0.0.1:{running[0].port}"
    }


def choose(tab: Tab, name: str, value: object) -> None:
    """Takes an item of a list, whose window no protocol can click on."""
    tab.value(
        f"(e => {{ e.value = '{value}'; e.dispatchEvent(new Event('change')); }})(document.getElementById('{name}'))"
    )


def translated(tab: Tab, text: str) -> None:
    tab.type(text)
    tab.wait_for(f"document.querySelector('.sentence') && {DONE}")


def texts(tab: Tab, selector: str) -> list[str]:
    return tab.value(f"[...document.querySelectorAll('{selector}')].map(element => element.textContent)")


@in_browser
def test_what_is_typed_is_translated_sentence_by_sentence(tab, translator, expected):
    tab.value(
        "window.seen = []; new MutationObserver(() => seen.push(document.querySelectorAll('.sentence').length))"
        ".observe(document.getElementById('translation'), {childList: true}); 0"
    )
    translated(tab, TEXT)
    assert tab.value(OUTPUT) == expected
    assert {1, 2, 3} <= set(tab.value("seen"))
    ended = [found.ended for found in translator.translate(SENTENCES)]
    assert (
        tab.value("[...document.querySelectorAll('.sentence')].map(e => !e.classList.contains('unfinished'))") == ended
    )
    assert tab.value("document.getElementById('count').textContent") == f"{len(TEXT)} / 500"
    # A sentence that is changed is translated again; those around it keep their translations meanwhile.
    stale = "[...document.querySelectorAll('.sentence')].map(sentence => sentence.classList.contains('stale'))"
    assert tab.value(f"document.execCommand('insertText', false, ' four') && {stale}") == [False, False, True]
    tab.wait_for(DONE)
    (last,) = translator.translate(["three four"])
    assert tab.value(OUTPUT).endswith(f"\n\n  {last.text}")

    tab.do("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    tab.click("document.getElementById('copy')")
    tab.wait_for("document.getElementById('copy').textContent === 'Copied'")
    assert tab.value("navigator.clipboard.readText()") == tab.value(OUTPUT)
    tab.click("document.getElementById('clear')")
    tab.wait_for(f"{OUTPUT} === ''")
    translated(tab, "seven")
    tab.type("\n" * 60 + "x" * 500)
    tab.wait_for("document.getElementById('limit').textContent === 'Too long by 65 characters.'")
    tab.wait_for(f"{OUTPUT} === ''")
    place = tab.value("document.getElementById('limit').getBoundingClientRect().top")
    assert 0 <= place < 900  # on the screen, however long the text is


@in_browser
def test_a_text_that_is_changed_takes_its_sentences_out_of_the_search(tab, running):
    choose(tab, "source-language", "de")
    before = running[0].metrics()["heed_cancelled_total"]
    tab.type(" ".join(f"Wort{letter}." for letter in "abcdefghijklmnopqrstuvwxyz"))  # no two alike: all are searched

    def changed_in_time() -> bool:
        """Changes the text while it is searched; a busy machine may press the key too late, so again until it is."""
        if running[0].metrics()["heed_batch_sentences"] > 0 or tab.value(DONE):
            tab.type("x")
        return running[0].metrics()["heed_cancelled_total"] > before

    wait_until(changed_in_time)
    tab.click("document.getElementById('clear')")
    wait_until(lambda: running[0].metrics()["heed_batch_sentences"] == 0)


@in_browser
def test_other_translations_can_be_seen_and_chosen(tab, translator):
    translated(tab, "seven. nine")
    first, second = (found.alternatives for found in translator.translate(["seven.", "nine"], n_best=3))
    offered = list(dict.fromkeys(found.text for found in first))
    tab.click("document.querySelector('.sentence')")
    tab.wait_for(f"document.querySelectorAll('#alternatives button').length === {len(offered)}")
    assert texts(tab, "#alternatives button") == offered and len(offered) > 1
    tab.value("document.getElementById('prefix').focus()")
    tab.type("zweihu")
    tab.wait_for("document.querySelector('#alternatives button').textContent.startsWith('zweihu')")
    begun = translator.translate(["seven."], n_best=3, prefix="zweihu")[0].alternatives
    assert texts(tab, "#alternatives button") == list(dict.fromkeys([*(t.text for t in begun), first[0].text]))
    for _ in "zweihu":
        tab.press("Backspace")
    buttons = "[...document.querySelectorAll('#alternatives button')].map(e => e.textContent)"
    tab.wait_for(f"JSON.stringify({buttons}) === JSON.stringify({json.dumps(offered)})")
    tab.click("document.querySelectorAll('#alternatives button')[1]")
    assert tab.value(OUTPUT) == f"{offered[1]} {second[0].text}"
    tab.value("document.getElementById('text').focus()")
    tab.type(" eight")  # what was chosen stays chosen
    tab.wait_for(f"{OUTPUT}.startsWith({json.dumps(offered[1])}) && {DONE}")


@in_browser
def test_words_are_aligned_both_ways_by_mouse_and_keys(tab, translator):
    source = "seven hundred forty-two"
    translated(tab, source)
    (found,) = translator.translate([source])
    links = translator.alignment(source, found.text)
    tab.point_at("document.querySelector('.sentence')")
    tab.wait_for("document.querySelector('.part')")
    words = texts(tab, ".word-of-origin")
    assert words == ["seven", "hundred", "forty-two"]  # a hyphen parts no word
    of_parts, end = [], 0
    for i, part in enumerate(texts(tab, ".part")):
        tab.point_at(f"document.querySelectorAll('.part')[{i}]")
        (word,) = texts(tab, ".word-of-origin.lit")
        assert texts(tab, ".part.lit") == [part]
        of_parts.append(word)
        start, first = found.text.index(part, end), source.index(word)
        end = start + len(part)
        inside = [link for link in links if start <= link.tgt_start and link.tgt_end <= end]
        assert any(link.src_start < first + len(word) and link.src_end > first for link in inside), (part, word)
    for i, word in enumerate(words):
        tab.point_at(f"document.querySelectorAll('.word-of-origin')[{i}]")  # under the text field
        assert len(texts(tab, ".part.lit")) == of_parts.count(word)
    tab.point_at("document.querySelector('h1')")
    assert texts(tab, ".lit") == []

    tab.click("document.getElementById('text')")
    order = []
    while not tab.value("document.activeElement.matches('.sentence')"):
        tab.press("Tab")
        order.append(tab.value("document.activeElement.id"))
        assert len(order) < 9
    assert order == ["clear", "swap", "target-language", ""]
    for i in range(2):
        tab.press("ArrowRight")
        assert texts(tab, ".word-of-origin.lit") == [of_parts[i % len(of_parts)]]
    tab.press("Enter")
    tab.wait_for("document.querySelector('.sentence[aria-pressed=true]') && document.querySelector('#alternatives li')")
    tab.value("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', isComposing: true}))")
    assert texts(tab, "#alternatives li")  # that key was the input method's
    tab.press("Escape")
    assert tab.value("document.activeElement.id") == "text" and not texts(tab, "#alternatives li")
    # Everything that can be reached has a name.
    nodes = tab.do("Accessibility.getFullAXTree")["nodes"]
    roles = [(node["role"]["value"], node["name"]["value"]) for node in nodes if not node["ignored"]]
    controls = [(role, name) for role, name in roles if role in ("button", "textbox", "combobox", "checkbox", "region")]
    assert len(controls) > 8 and all(name for _, name in controls), controls


@in_browser
def test_attention_is_drawn_of_any_layer_and_head_and_follows_the_text(tab, translator):
    translated(tab, "seven hundred")
    tab.press("a", code="KeyA", modifiers=1)

    def lines(source: str, view: str, layer: int, heads: list[int]) -> int:
        weights = trace(translator, source).view(view).weights[layer, heads]
        return int((np.floor(np.round(weights.astype(float), 4) * 255 + 0.5) >= 3).sum())

    def drawn(source: str, view: str, layer: int, heads: list[int]) -> None:
        tab.wait_for(f"document.querySelector('.picture')?.dataset.lines === '{lines(source, view, layer, heads)}'")

    drawn("seven hundred", "cross", 1, [0, 1, 2, 3])
    choose(tab, "layer", 0)
    drawn("seven hundred", "cross", 0, [0, 1, 2, 3])
    tab.click("document.querySelector('.head:nth-child(2) input')")
    drawn("seven hundred", "cross", 0, [0, 2, 3])
    choose(tab, "view", "encoder")
    drawn("seven hundred", "encoder", 1, [0, 1, 2, 3])
    assert texts(tab, ".query") == [*trace(translator, "seven hundred").encoder.queries]
    tab.click("document.getElementById('text')")
    tab.type(" nine")
    drawn("seven hundred nine", "encoder", 1, [0, 1, 2, 3])
    assert texts(tab, ".query")[-2] == "nine"


@in_browser
def test_a_text_stays_text_and_its_language_is_detected(tab):
    choose(tab, "source-language", "auto")
    choose(tab, "target-language", "en")
    text = "<img src=x onerror=\"document.title='taken'\"><script>1</script> This is a house and a garden."
    translated(tab, text)  # English into English: as it is
    assert tab.value(OUTPUT) == text
    assert tab.value("document.querySelector('#source-language').selectedOptions[0].text") == "Detected: English"
    tab.click("document.querySelector('.sentence')")
    tab.wait_for("document.querySelector('#others-note').textContent !== '…'")
    assert tab.value("document.images.length") == 0 and tab.value("document.title") == "Heed"
    assert tab.value("document.scripts.length") == 2


@in_browser
def test_languages_are_swapped_and_the_page_fits_phones_and_dark_rooms(tab, translator):
    translated(tab, "seven")
    tab.press("x", code="KeyX", modifiers=1)
    assert tab.value("document.getElementById('text').value") == translator.translate(["seven"])[0].text
    languages = "[...document.querySelectorAll('.language select')].map(e => e.value)"
    assert tab.value(languages) == ["de", "en"]
    ground = "getComputedStyle(document.body).backgroundColor"
    tab.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    tab.wait_for(f"{ground} === 'rgb(19, 20, 22)'")
    tab.click("document.getElementById('theme')")
    assert tab.value(ground) == "rgb(246, 246, 243)"
    tab.do("Emulation.setEmulatedMedia", features=[])
    choose(tab, "source-language", "en")
    tab.wait_for(f"document.querySelector('.sentence') && {DONE}")
    tab.click("document.getElementById('attention-toggle')")
    tab.wait_for("document.querySelector('.picture')?.dataset.lines")
    tab.resize(375, 700, phone=True)
    tab.wait_for("innerWidth === 375 && document.documentElement.scrollWidth === 375")


@in_browser
def test_documents_are_chosen_translated_and_fetched(tab, tmp_path, translator):
    (tmp_path / "numbers.md").write_text("# seven\n")
    (tmp_path / "letter.doc").write_bytes(b"\xd0\xcf\x11\xe0")
    tab.click("document.getElementById('documents-tab')")
    assert ".docx" in tab.value("document.getElementById('kinds').textContent")
    files = tab.do("Runtime.evaluate", expression="document.getElementById('files')")["result"]["objectId"]
    chosen = [str(tmp_path / name) for name in ("letter.doc", "numbers.md")]
    tab.do("DOM.setFileInputFiles", objectId=files, files=chosen)
    tab.wait_for("document.querySelector('#jobs a')")
    refused, done = texts(tab, "#jobs .state")
    assert ".doc" in refused and done.startswith("Done in ")
    fetched = "fetch(document.querySelector('#jobs a').href).then(response => response.text())"
    assert tab.value(fetched) == f"# {translator.translate('seven').text}\n"
    shown = tab.value("document.getElementById('request').textContent")
    assert "-F file=@numbers.md -F source=en -F target=de" in shown
    tab.click("document.querySelector('#jobs button')")
    assert texts(tab, "#jobs .name") == ["numbers.md"]
    tab.resize(390, 700, phone=True)
    tab.wait_for("innerWidth === 390 && document.documentElement.scrollWidth === 390")


@in_browser
def test_the_address_may_hold_languages_and_a_text_and_the_request_is_shown(tab, running, translator):
    tab.open(running[0].url + "/?source=en&target=de&q=seven+it%27s")
    tab.wait_for(f"document.querySelector('.sentence') && {DONE}")
    assert tab.value("document.getElementById('text').value") == "seven it's"
    command = tab.value("document.getElementById('request').textContent")
    shown = subprocess.run(["sh", "-c", command], env=os.environ | {"KEY": KEY}, capture_output=True, text=True)
    assert json.loads(shown.stdout.splitlines()[0])["translation"] == tab.value(OUTPUT)
    tab.open(running[0].url + "/?source=en&target=fr")
    tab.wait_for(f"{STATUS} === 'This server does not translate fr.'")
    tab.open(running[0].url + "/docs")
    assert "/v2/translate" in tab.value("document.body.innerText") and tab.value("document.scripts.length") == 0


@in_browser
def test_on_apples_machines_the_option_key_types_letters(tab, running, translator):
    tab.do("Emulation.setUserAgentOverride", userAgent="test", platform="MacIntel")
    try:
        tab.open(running[0].url + "/?")
        tab.wait_for("document.querySelector('#target-language').value")
        choose(tab, "source-language", "en")
        tab.click("document.getElementById('text')")
        translated(tab, "seven")
        typed = "document.getElementById('text').value"
        tab.press("x", code="KeyX", modifiers=1)  # Alt
        assert tab.value(typed) == "seven"
        tab.press("x", code="KeyX", modifiers=3)  # and Ctrl
        assert tab.value(typed) == translator.translate(["seven"])[0].text
        assert "⌃⌥X" in tab.value("[...document.querySelectorAll('kbd')].map(kbd => kbd.textContent)")
    finally:
        tab.do("Emulation.setUserAgentOverride", userAgent="", platform="")


@in_browser
def test_a_server_that_is_busy_is_asked_again(tab, running):
    choose(tab, "source-language", "de")
    book = {"q": ["ein"] * 128, "source": "de", "target": "en"}
    leave = threading.Event()

    def read_books() -> None:
        headers = {"Authorization": f"Bearer {KEY}"}
        while not leave.is_set():
            httpx.post(running[0].url + "/v1/translate", json=book, headers=headers, timeout=60)

    def said_to_be_busy() -> bool:
        """Whether the page says so; if it was let in between two books, it asks once more."""
        if tab.value(DONE):
            tab.type(" zwei")
        return tab.value(f"/^The server is busy. Trying again in \\d+ s …$/.test({STATUS})")

    others = [threading.Thread(target=read_books) for _ in range(2)]  # one fills half of the queue
    for other in others:
        other.start()
    try:
        wait_until(lambda: running[0].metrics()["heed_queue_sentences"] > 128)
        # Time runs 50 times as fast for the page, which would wait for up to a minute.
        tab.value("(real => { window.setTimeout = (f, ms) => real(f, ms / 50); })(window.setTimeout)")
        tab.type("zwei")
        wait_until(said_to_be_busy)
    finally:
        leave.set()
        for other in others:
            other.join()
    tab.wait_for(f"document.querySelector('.sentence') && {DONE}")


@in_browser
def test_a_server_that_dies_and_comes_back_goes_on_with_what_is_there(tab, running, commands, arguments, expected):
    translated(tab, "one")
    port = running[0].port
    running[0].end()  # kill -9
    tab.click("document.getElementById('clear')")
    tab.type(TEXT)
    tab.wait_for(f"{STATUS}.startsWith('The server cannot be reached.')")
    running[0] = RunningServer(commands, *arguments, port=port)
    tab.wait_for(f"{OUTPUT} === {json.dumps(expected)} && {DONE} && !/server/.test({STATUS})")


@in_browser
def test_a_key_is_asked_for_and_kept_for_the_session_only(tab, running, expected):
    tab.value("sessionStorage.clear()")
    tab.open(running[0].url + "/?again")
    tab.wait_for("!document.getElementById('key-field').hidden")
    choose(tab, "source-language", "en")
    tab.value("document.getElementById('text').focus()")
    tab.type(TEXT)
    tab.wait_for(f"{STATUS} === 'This server asks for an API key.' && document.activeElement.id === 'key'")
    tab.type("wrong")
    tab.wait_for(f"{STATUS} === 'Invalid API key.'")
    tab.value("document.getElementById('key').select()")
    tab.type(KEY)
    tab.wait_for(f"{OUTPUT} === {json.dumps(expected)}")
    assert KEY not in tab.value("JSON.stringify(localStorage) + document.cookie + location.href")


@in_browser
def test_the_page_works_where_the_browser_keeps_nothing(tab, running, translator):
    refusal = "{ get() { throw new DOMException('', 'SecurityError'); } }"
    source = "".join(f"Object.defineProperty(window, '{name}Storage', {refusal});" for name in ("local", "session"))
    script = tab.do("Page.addScriptToEvaluateOnNewDocument", source=source)["identifier"]
    try:
        tab.open(running[0].url + "/?")
        tab.wait_for("!document.getElementById('key-field').hidden")
        choose(tab, "source-language", "en")
        tab.value("document.getElementById('key').focus()")
        tab.type(KEY)
        tab.value("document.getElementById('text').focus()")
        translated(tab, "seven")
        assert tab.value(OUTPUT) == translator.translate(["seven"])[0].text
        before = tab.value("document.documentElement.dataset.theme")
        tab.click("document.getElementById('theme')")
        assert tab.value("document.documentElement.dataset.theme") != before
    finally:
        tab.do("Page.removeScriptToEvaluateOnNewDocument", identifier=script)


@pytest.mark.slow
def test_what_the_page_asks_for(model_folder, monkeypatch):
    """The page is there unless it is not wanted, under a policy of its own; its requests say what it needs to know."""
    translator = Translator.load(model_folder, precision="fp32")
    translator._piece_tokens = 4  # a sentence longer than the model knows

    async def ask() -> None:
        engine = Engine(translator)
        engine.start()
        service = Service({("en", "de"): engine})
        app, bare = (
            httpx.AsyncClient(transport=httpx.ASGITransport(make_app(shown, print)), base_url="http://localhost")
            for shown in (service, Service({("en", "de"): engine}, show_page=False))
        )
        assert (await bare.get("/")).status_code == 404
        page = await app.get("/")
        (policy,) = page.headers.get_list("content-security-policy")
        assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
        assert page.headers["x-frame-options"] == "DENY"
        assert "default-src 'none'; frame-ancestors" in (await app.get("/health")).headers["content-security-policy"]

        text = "🐟 One!  " + "two hundred " * 9
        lines = (await app.post("/v1/translate", json={"q": ["", text]})).text.splitlines()
        records = sorted((json.loads(line) for line in lines[:-1]), key=lambda record: record["sentence"])
        assert [text[r["start"] :].startswith(r["source"]) for r in records] == [True, True]
        assert [r["language"] for r in records] == ["en", "en"] and records[1]["start"] == 8
        assert [r["pieces"] for r in records] == [len(ids) for ids in translator.pieces([r["source"] for r in records])]
        assert records[1]["pieces"] > 1

        many = {"q": ["one"] * 100, "prefix": "ein " * 50}
        refused = await app.post("/v1/translate", json=many)
        assert refused.status_code == 400 and "the prefix, given once for each sentence" in refused.json()["error"]

        long = await app.post("/v1/translate", json={"q": "one", "prefix": "eins " * 600})
        assert long.status_code == 400 and "tokens, more than 512: shorten it" in long.json()["error"]

        translator._piece_tokens = 512
        asked = {"q": "one two", "translation": "eins"}
        for views in ([], ["cross"], ["encoder", "decoder", "cross"]):
            answer = (await app.post("/v1/attention", json=asked | {"views": views})).json()
            assert set(answer) == {"source", "translation", "alignment", *views}
        assert answer["alignment"] == [list(link) for link in translator.alignment("one two", "eins")]
        refused = await app.post("/v1/attention", json=asked | {"views": ["all"]})
        assert refused.status_code == 400 and "encoder, decoder, cross" in refused.json()["error"]

        long = await app.post("/v1/attention", json={"q": "one " * 200})
        assert long.status_code == 400 and "more than 600 characters" in long.json()["error"]
        monkeypatch.setattr("heed.apps.serving.streaming.MAX_WEIGHTS", 10)
        many = await app.post("/v1/attention", json=asked)
        assert many.status_code == 400 and "weights, more than 10; ask for fewer views" in many.json()["error"]
        monkeypatch.undo()

        go_on = threading.Event()
        busy = [asyncio.ensure_future(service.attention.run(go_on.wait)) for _ in range(service.limits.queue + 1)]
        await asyncio.sleep(0)
        full = await app.post("/v1/attention", json=asked)
        assert full.status_code == 429 and full.headers["retry-after"] == "1"
        for waiting in busy[1:]:
            waiting.cancel()
        go_on.set()
        await asyncio.wait(busy)
        assert (await app.post("/v1/attention", json=asked)).status_code == 200

        monkeypatch.setattr("heed.apps.serving.streaming.MAX_WEIGHTS_AT_ONCE", 1000)
        with service.attention.holding(999, most=1000):  # somebody's answer that is not read
            full = await app.post("/v1/attention", json=asked)
            assert full.status_code == 429 and "not yet read" in full.json()["error"]
        assert (await app.post("/v1/attention", json=asked)).status_code == 200 and service.attention._n_held == 0
        await service.close()

    asyncio.run(ask())
