"""One worker: a loaded model that makes parts of a plan, each written whole with its sidecar."""

import json
import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from heed.apps.cluster.earlier_split import SplitText, split_text
from heed.apps.cluster.plan import WorkPlan, manifest_hash, part_hash, read_plan, sidecar
from heed.apps.cluster.writers import writer_of
from heed.apps.documents.formats.plain_text import TextDraft
from heed.apps.documents.text.sentences import Splitter, splitter
from heed.apps.documents.text.translation import Unanswered
from heed.data.reading.pairs import Sources
from heed.data.reading.rows import Rows
from heed.errors import HeedError
from heed.leases.plan import StopAll
from heed.leases.storage import is_url, joined, whole, write_whole
from heed.leases.worker import LeaseWorker
from heed.runtime.device import set_n_threads
from heed.runtime.instruction_sets import chosen_set
from heed.text.alignment import Translated

PART_SEED = 1_000_003  # distance between the seeds of two parts

if TYPE_CHECKING:
    from heed.decoding.settings import SamplingSettings
    from heed.decoding.translation import Translation
    from heed.decoding.translator import Translator


class _Result(NamedTuple):
    values: tuple[Any, ...]  # of the added columns
    tokens: int


@dataclass(eq=False)
class Worker(LeaseWorker):
    """Translates or scores rows. model: the folder, on this machine. max_errors: bad rows of a part, at most."""

    model: str = field(kw_only=True)
    max_errors: int = field(kw_only=True)
    plan: WorkPlan = field(init=False)

    def open(self) -> None:
        """HeedError if the model is not the plan's, or cannot be loaded."""
        from heed.backends.choice import search_backend
        from heed.decoding.direction import Direction
        from heed.decoding.loading import load_models, no_report, ready_models
        from heed.decoding.settings import DecodingSettings
        from heed.decoding.translator import Translator

        plan = read_plan(self.folder)
        if plan is None:
            raise HeedError(f"{self.folder}: has no plan.json.")
        if manifest_hash(self.model) != plan.work.model.manifest_sha256:
            raise HeedError(f"{self.model}: another model than the plan's.")
        set_n_threads(self.threads)
        self.plan, work = plan, plan.work
        precision: Any = work.precision
        (model,) = loaded = load_models([self.model])
        models, precision = ready_models(loaded, precision, device=self.device, report=no_report)
        # The plan's settings are all there are; `Translator.load` would refuse those without effect beside others.
        self._translator: Translator = Translator(
            models,
            model.tokenizer,
            DecodingSettings(**work.settings),
            precision=precision,
            direction=Direction.of(model.card, model.tokenizer).between(*(work.languages or (None, None))),
        )
        search_backend(models[0]).use_threads(self.threads)
        self._sources = Sources(plan.names, work.columns, output=work.output)
        self._instructions = f"{chosen_set().title}, {_kernels()}" if self.device == "cpu" else _gpu(self.device)

    def done(self, part: int) -> dict[str, Any] | None:
        """What the sidecar of a part says; None unless the part is there and whole."""
        return sidecar(self.folder, self.plan, part)

    def close(self) -> None:
        """Closes the input that is open."""
        self._sources.close()

    def make(self, part: int) -> dict[str, Any]:
        """Writes a part, whole or not at all, and its list of bad rows; what its sidecar is to say."""
        plan, started, used = self.plan, time.monotonic(), time.process_time()
        name = joined(self.folder, plan.name_of(part))
        faults: list[dict[str, Any]] = []
        n_rows = n_blank = n_tokens = 0
        with whole(name) as path:
            writer = writer_of(path, plan.work.output)
            try:
                for batch, kept, results in self._results(part):
                    columns = zip(*(result.values for result in results), strict=True) if results else ()
                    values = dict(zip(plan.work.added, map(list, columns), strict=False))
                    writer.add(batch, kept, values or {column: [] for column in plan.work.added})
                    n_rows += len(kept)
                    n_blank += len(batch.skipped)
                    n_tokens += sum(result.tokens for result in results)
                    faults += [
                        {"file": batch.file, "row": batch.first + place + 1, "fault": fault}
                        for place, fault in sorted(batch.faults.items())
                    ]
                    self._check_faults(faults)
            finally:
                writer.close()
            n_bytes, digest = path.stat().st_size, part_hash(str(path))
        if faults:
            lines = "".join(json.dumps(fault, ensure_ascii=False) + "\n" for fault in faults)
            write_whole(joined(self.folder, plan.errors_of(part)), lines)
        return {
            "plan": plan.digest,
            "rows": n_rows,
            "bad_rows": len(faults),
            **({"blank_rows": n_blank} if n_blank else {}),
            "bytes": n_bytes,
            "hash": part_hash(name) if is_url(name) else digest,
            "seconds": round(time.monotonic() - started, 3),
            "cpu_seconds": round(time.process_time() - used, 3),  # fewer: other programs have the core, or files wait
            "threads": self.threads,
            "tokens": n_tokens,
            "instruction_set": self._instructions,
            "precision": plan.work.precision,
        }

    def _check_faults(self, faults: list[dict[str, Any]]) -> None:
        if len(faults) > self.max_errors:
            last = faults[self.max_errors]
            raise StopAll(
                f"{last['file']}, row {last['row']:,}: {last['fault']}; more than --max-errors "
                f"{self.max_errors:,} rows are bad."
            )

    def _results(self, part: int) -> Iterator[tuple[Rows, list[int], list[_Result]]]:
        """Batches of the part's rows, the places of those that are good, and what is added to each of these."""
        batches = self._sources.read(self.plan.parts[part])
        return self._translate_rows(batches, part) if self.plan.work.task == "translate" else self._score_rows(batches)

    def _translate_rows(self, batches: Iterator[Rows], part: int) -> Iterator[tuple[Rows, list[int], list[_Result]]]:
        language, sampling = self._translator.languages[0], self._sampling(part)
        make = partial(split_text, language) if self.plan.work.split == "lines" else partial(_Items, splitter(language))
        ahead: deque[tuple[Rows, list[int], list[SplitText | _Items]]] = deque()

        def sentences() -> Iterator[str]:
            for rows in batches:
                kept = rows.good
                texts = [make(rows.texts[place][0]) for place in kept]
                ahead.append((rows, kept, texts))
                for one in texts:
                    yield from one.sentences

        stream = self._translator.stream(sentences(), sampling=sampling, keep_words=self.plan.work.split == "items")
        following = next(stream, None)
        while ahead:  # the batch of the following translation is there, or all are
            rows, kept, texts = ahead.popleft()
            results = []
            for text in texts:
                translations = []
                for _ in text.sentences:
                    assert following is not None
                    translations.append(following)
                    following = next(stream, None)
                written, translations = text.written(translations, self._translator, sampling)
                results.append(_joined(written, translations))
            yield rows, kept, results

    def _sampling(self, part: int) -> "SamplingSettings | None":
        """How to draw, if not to search. By a seed of the part's own: draws depend on it and the line's number."""
        from heed.decoding.settings import SamplingSettings

        if self.plan.work.sampling is None:
            return None
        settings = SamplingSettings(**self.plan.work.sampling)
        return settings.model_copy(update={"seed": (settings.seed + PART_SEED * part) % 2**63})

    def _score_rows(self, batches: Iterator[Rows]) -> Iterator[tuple[Rows, list[int], list[_Result]]]:
        for rows in batches:
            kept = rows.good
            sources, targets = ([rows.texts[place][side] for place in kept] for side in (0, 1))
            try:
                log_probs_of_rows = self._translator.log_probs(sources, targets)
            except HeedError:  # a pair of it is too long: which one?
                kept, log_probs_of_rows = self._score_one_by_one(rows, kept)
            yield rows, kept, [self._score(log_probs) for log_probs in log_probs_of_rows]

    def _score_one_by_one(self, rows: Rows, kept: list[int]) -> tuple[list[int], list[list[float]]]:
        """The places that can be scored, with what is found; the others become faults."""
        log_probs = []
        for place in kept:
            try:
                log_probs += self._translator.log_probs([rows.texts[place][0]], [rows.texts[place][1]])
            except HeedError as error:
                rows.faults[place] = str(error).removeprefix("line 1: ").rstrip(".")
        return [place for place in kept if place not in rows.faults], log_probs

    def _score(self, log_probs: list[float]) -> _Result:
        from heed.decoding.scoring import length_penalty

        settings = self._translator.settings
        total = sum(log_probs)
        length = len(log_probs) + self._translator.direction.forced.end  # a language that is given counts
        penalty = length_penalty(length, settings.length_penalty, settings.length_penalty_form)
        return _Result((total, total / penalty), len(log_probs))


class _Items:
    """A text with the rules of a .txt, what stays and tags included."""

    def __init__(self, split: Splitter, text: str):
        self._draft = TextDraft(text, split)
        self._questions = [*self._draft.nested, *self._draft.questions]
        self.sentences = [question.text for question in self._questions]

    def written(
        self, translations: "list[Translation]", translator: "Translator", sampling: "SamplingSettings | None"
    ) -> "tuple[str, list[Translation]]":
        """The text of these translations, and those that it is of: some are asked for again, without what stays."""
        unanswered, by_question = Unanswered(self._questions), dict(zip(self._questions, translations, strict=True))
        while asked := unanswered.asked:
            tagged = [own for own, question in asked.items() if question.has_tags]
            links = translator.alignments(
                [asked[one].text for one in tagged], [by_question[one].text for one in tagged]
            )
            of_tagged = dict(zip(tagged, links, strict=True))
            unanswered.take(Translated(by_question[own].text, of_tagged.get(own)) for own in asked)
            texts = [question.text for question in unanswered.asked.values()]
            again = translator.stream(texts, sampling=sampling, keep_words=True)
            by_question |= dict(zip(unanswered.asked, again, strict=True))
        return self._draft.text(unanswered.answers), list(by_question.values())


def _joined(text: str, translations: "list[Translation]") -> _Result:
    return _Result(
        (text, math.fsum(one.score for one in translations), all(one.ended for one in translations)),
        sum(len(one.tokens) + 1 for one in translations),
    )


def _gpu(device: str) -> str:
    import torch

    return torch.cuda.get_device_name(torch.device(device))


def _kernels() -> str:
    from heed.backends.choice import kernels_state

    return "kernels" if kernels_state() == "Heed's kernels" else "no kernels"
