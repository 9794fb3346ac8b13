"""Find numbers that a country gives to a person, by form, checksum and the words beside them."""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from athena.core.redaction.personal_values import NATIONAL_ID, PersonalMatch, Zones
from athena.core.redaction.values import compile_pattern
from athena.core.redaction.zones import CUE_CHARS, OTHER_NUMBER_CUE, find_in_zones, has_cue, load_validator


class NationalId(NamedTuple):
    """A form of national ids, the module of python-stdnum that checks it, and the words that must stand before it."""

    pattern: str
    module: str
    cue: str = ""


_TAX_CUE = r"steuer|\bidnr|\btin\b|\btax"
_SWEDISH_CUE = r"person(?:nummer|nr)|\bpnr\b"
_NATIONAL_IDS = (
    NationalId(r"\d{3}-\d{2}-\d{4}", "us.ssn"),
    NationalId(r"\d{9}|\d{3} \d{2} \d{4}", "us.ssn", r"\bssn|social[\s_-]?security"),
    NationalId(r"9\d\d-[5-9]\d-\d{4}", "us.itin"),
    NationalId(r"9\d\d ?[5-9]\d ?\d{4}", "us.itin", r"\bitin\b|taxpayer|\btax"),
    NationalId(r"[A-Z]{6}\d{2}[A-EHLMPRST]\d{2}[A-Z]\d{3}[A-Z]", "it.codicefiscale"),
    NationalId(r"[A-Z]{3} [A-Z]{3} \d{2}[A-EHLMPRST]\d{2} [A-Z]\d{3}[A-Z]", "it.codicefiscale"),
    NationalId(r"\d{8}[ -]?[A-HJ-NP-TV-Z]|\d{2}\.\d{3}\.\d{3}[ -]?[A-HJ-NP-TV-Z]", "es.dni"),
    NationalId(r"[XYZ][ -]?\d{7}[ -]?[A-Z]|[XYZ][ -]?\d\.\d{3}\.\d{3}[ -]?[A-Z]", "es.nie"),
    NationalId(r"[12] ?\d{2} ?(?:0[1-9]|1[0-2]|[2-9]\d) ?(?:\d{2}|2[AB]) ?\d{3} ?\d{3} ?\d{2}", "fr.nir"),
    NationalId(r"\d{3}\.\d{3}\.\d{3}-\d{2}", "br.cpf"),
    NationalId(r"\d{9}-?\d{2}|\d{3} \d{3} \d{3}[ -]\d{2}", "br.cpf", r"\bcpf\b|\btax[ -]?(?:id|no|number)"),
    NationalId(r"756[. ]?\d{4}[. ]?\d{4}[. ]?\d{2}", "ch.ssn"),
    NationalId(r"[0-3]\d[01]\d{3}[-+A-FU-Y]\d{3}[0-9A-Y]", "fi.hetu"),
    NationalId(r"[A-Z]{4}\d{6}[HMX][A-Z]{5}[0-9A-Z]\d", "mx.curp"),
    NationalId(r"(?:19|20)?\d{6}[-+]\d{4}", "se.personnummer"),
    NationalId(r"(?:19|20)?\d{6} ?\d{4}", "se.personnummer", _SWEDISH_CUE),
    NationalId(r"[1-9]\d{5}(?:19|20)\d{2}[01]\d[0-3]\d{4}[0-9Xx]", "cn.ric"),
    NationalId(r"\d{6}-[1-8]\d{6}", "kr.rrn"),
    NationalId(r"\d{13}", "kr.rrn", r"주민|\brrn\b|resident registration"),
    NationalId(r"\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}", "be.nn"),
    NationalId(
        r"\d{11}|\d{2}[ .]\d{2}[ .]\d{2}[ .-]\d{3}[ .-]\d{2}|\d{6}[ -]\d{3}[ -.]\d{2}",
        "be.nn",
        r"rijksregister|registre national|num[ée]ro national|national (?:number|register)|\bnn\b|\bniss\b"
        r"|\binsz\b|\brrn\b",
    ),
    NationalId(r"\d{11}", "pl.pesel", r"pesel"),
    NationalId(r"\d{8,9}|\d{3}[ .-]\d{3}[ .-]\d{3}|\d{4}[ .-]\d{2}[ .-]\d{3}", "nl.bsn", r"\bbsn\b|burgerservice|sofi"),
    NationalId(
        r"\d{2}[ ./-]?\d{3}[ ./-]?\d{3}[ ./-]?\d{3}", "de.idnr", rf"{_TAX_CUE}|identifikationsnummer|\bid-?nr|\bst-?id"
    ),
    NationalId(r"[2-9]\d{3}[ -]?\d{4}[ -]?\d{4}", "in_.aadhaar", r"aadhaar|aadhar|uidai|\buid\b|आधार"),
    NationalId(r"[A-Z]{3}[ABCFGHLJPTK][A-Z]\d{4}[A-Z]", "in_.pan", r"\bpan\b|permanent account"),
    NationalId(
        r"\d{3}[ .-]?\d{3}[ .-]?\d{3}", "ca.sin", r"\bsin\b|social insurance|assurance[ -]sociale|\bnas\b|\bn\.?a\.?s\b"
    ),
    NationalId(r"\d{3}[ -]?\d{3}[ -]?\d{2,3}", "au.tfn", r"\btfn\b|tax file"),
    NationalId(r"\d{3}[ -]?\d{3}[ -]?\d{4}", "gb.nhs", r"\bnhs\b"),
    NationalId(
        r"[0-7]\d[0-9]\d{3} ?\d{5}|[0-7]\d{3} ?\d{2} ?\d{5}",
        "no.fodselsnummer",
        rf"fødsels|fodsels|\bfnr\b|{_SWEDISH_CUE}",
    ),
    NationalId(r"[0-3]\d[01]\d{3}[- ]?\d{4}", "dk.cpr", rf"\bcpr\b|{_SWEDISH_CUE}"),
    NationalId(
        r"\d{13}|\d{6} \d{4} \d{3}|\d{6} \d{4} \d \d{2}", "za.idnr", r"\bid\b|identity|\brsa\b|\bidno\b|south africa"
    ),
    NationalId(r"[1-9]\d{10}|[1-9]\d{2} \d{3} \d{3} \d{2}", "tr.tckimlik", r"kimlik|\btc\b|t\.c\.|\btckn\b"),
    # the national insurance number of the United Kingdom has no checksum
    NationalId(r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z][ -]?\d{2}[ -]?\d{2}[ -]?\d{2}[ -]?[A-D]", ""),
)
_UK_PREFIXES_UNUSED = frozenset({"BG", "GB", "NK", "KN", "TN", "NT", "ZZ"})


def find_national_ids(text: str, lower: str, zones: Zones) -> Iterator[PersonalMatch]:
    for match in find_in_zones(_compile_national_ids(), text, zones):
        if _is_national_id(lower, match[1], *match.span(1)):
            yield PersonalMatch(NATIONAL_ID, *match.span(1))
    if compile_pattern(_LETTERED_CUE).search(lower):  # in small letters, too, or with few digits
        for word in compile_pattern(r"(?<!\w)(?=[A-Za-z]{0,6}\d)[A-Za-z0-9]{8,18}(?!\w)").finditer(text):
            is_form = _compile_national_ids().fullmatch(word[0].upper()) is not None
            if is_form and _is_national_id(lower, word[0].upper(), *word.span()):
                yield PersonalMatch(NATIONAL_ID, *word.span())


_LETTERED_CUE = (
    r"codice|fiscale|\bdni\b|\bnie\b|\bnif\b|\bnino\b|national insurance|\bcurp\b|henkil|hetu|\bpan\b|permanent account"
)


def _is_national_id(lower: str, value: str, start: int, end: int) -> bool:
    for form in _NATIONAL_IDS:
        if not compile_pattern(form.pattern).fullmatch(value):
            continue
        if form.cue:
            after = lower[end : end + CUE_CHARS].partition("\n")[0]
            if not has_cue(lower, start, form.cue) and not compile_pattern(form.cue, re.U).search(after):
                continue
        elif compile_pattern(OTHER_NUMBER_CUE).search(lower[max(0, start - 30) : start]):
            continue
        if load_validator(form.module)(value.replace(".", "")) if form.module else value[:2] not in _UK_PREFIXES_UNUSED:
            return True
    return False


@cache
def _compile_national_ids() -> re.Pattern[str]:
    forms = sorted({form.pattern for form in _NATIONAL_IDS}, key=len, reverse=True)
    # the lookahead lets forms that begin at the same place be tried one after the other
    choices = "|".join(rf"(?:{form})(?![A-Za-z0-9_]|[.-][0-9])" for form in forms)
    return re.compile(rf"(?<![\w.+-])(?=(?:[A-Z]{{3}} )?[A-Z]{{0,6}}[ -]?\d[ .]?\d)({choices})", re.ASCII)
