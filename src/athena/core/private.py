"""Leave out the clauses of a text that hold a secret, or a detail of health, family, contact or identity.

The details are found in the whole text; each clause that a detail lies in goes, with its connecting word, and the
others stay. "The display is in German because my mother has dementia." becomes "The display is in German."
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from athena.core import redaction

_PERSON = r"""(?:I|I'm|I've|I’m|me|my|we|our|he|she|him|his|her|hers|their|mine|myself|ich|mein\w*|unser\w*|sein\w*
    |ihr\w*|je|j'\w+|mon|ma|mes|notre|nos|yo|mi|mis|nuestr\w+|ik|mijn|ons|onze)"""
_POSSESSIVE = r"""(?:my|our|his|her|their|your|mine?|mein\w*|unser\w*|sein\w*|ihre?\w?|dein\w*|mon|ma|mes|notre|nos
    |son|sa|ses|mi|mis|nuestr\w+|su|sus|mijn|ons|onze|zijn|haar|meu|minha|mio|mia|\w{1,40}['’]s)"""
_RELATIVE = r"""(?:(?:grand|step|god|great-?grand)?-?(?:mother|father|mom|mum|mummy|mommy|dad|daddy|son|daughter)
    |grand(?:ma|pa|mum|parents?|child(?:ren)?|kids?)|wife|husband|spouse|hubby|fianc[eé]e?|girlfriend|boyfriend
    |(?:half-?|step-?)?(?:brother|sister)s?|aunt|auntie|uncle|cousins?|nephews?|nieces?|toddler|newborn
    |(?:mother|father|sister|brother|son|daughter)s?-in-law|in-laws|kids?|sons|daughters|widow(?:er)?
    |(?:ex-?|late\ )(?:wife|husband|girlfriend|boyfriend|partner)|mutter|vater|mama|papa|eltern|oma|opa|großmutter
    |großvater|tochter|töchter|söhne|sohn|bruder|brüder|schwester|ehefrau|ehemann|schwiegermutter|schwiegervater|tante
    |onkel|enkel\w*|neffe|nichte|kinder|mère|père|maman|frère|sœur|soeur|fille|fils|mari|femme|épouse|époux|enfants
    |grand-mère|grand-père|madre|padre|mamá|papá|hermano|hermana|hijo|hija|hijos|esposa|esposo|marido|mujer|abuela
    |abuelo|tía|tío|moeder|vader|broer|zus|zoon|dochter|vrouw|kinderen|ouders|echtgenoot|echtgenote)"""
# words that are relatives only after "my" and not before a noun of the trade: "my child process"
_VAGUE_RELATIVE = r"""(?:partner|child(?:ren)?|parents?|siblings?|twins?|baby|family|familie|famille|familia|ex|frau
    |mann|kind)"""
_TRADE_NOUN = r"""(?:process\w*|nodes?|elements?|class\w*|themes?|components?|windows?|threads?|tables?|rows?|records?
    |folders?|director(?:y|ies)|branch\w*|commits?|modules?|packages?|apis?|portals?|teams?|accounts?|pages?|issues?
    |tasks?|scopes?|pids?|projects?|compan\w+|dashboards?|integrations?|program\w*|fonts?|keys?|ids?|sites?|repos?\w*
    |jobs?|models?|apps?|chat)"""
_ILLNESS = r"""(?:dementia|demenz|démence|demencia|dementie|alzheimer\w*|parkinson['’]?s?|cancer|tumou?rs?
    |leuk(?:a?e)mia|krebs(?:erkrankung|diagnose)?|chemo(?:therapy|therapie)?|diabet\w+|zuckerkrank\w*|insulin
    |epilep\w+|asthma\w*|migraines?|migräne|arthritis|arthrose|lupus|crohn['’]?s|fibromyalgia|multiple\ sclerosis
    |multiple\ sklerose|hiv|hepatitis|tuberculosis|covid(?:-19)?|pneumonia|anorexia|bulimia|bipolar|schizophren\w+
    |psychosis|psychose|ptsd|adhd|adhs|autis[mt]\w*|asperger\w*|dyslexi\w+|legasthenie|depressi(?:on|onen|ve)
    |dépression|depresión|anxiety|panic\ attacks?|burn-?out|ocd|suicid\w+|self-harm|miscarriage|pregnan\w+
    |schwanger\w*|enceinte|embarazada|zwanger|infertil\w+|ivf|menopause|endometriosis|abortion|wheelchair|rollstuhl
    |fauteuil\ roulant|silla\ de\ ruedas|rolstoel|pacemaker|dialysis|amputat\w+|heart\ attack|herzinfarkt
    |schlaganfall|high\ blood\ pressure|bluthochdruck|carpal\ tunnel|tendinitis|rsi|scoliosis|glaucoma|cataracts?
    |macular\ degeneration|colou?r[\s-]?blind(?!\w*[\s-]?(?:safe|friendly|palette|proof))\w*
    |visually\ impaired|deaf|hard\ of\ hearing|tinnitus|partially\ sighted
    |blindness|disabilit(?:y|ies)|disabled\ person|antidepressants?|ibuprofen|paracetamol|metformin|prozac|zoloft
    |sertraline|ritalin|adderall|xanax|lithium\ pills|methadone|beta\ blockers?|chemotherapy|rehab|alcoholi[cs]\w*
    |addict(?:ed|ion)?|sobriety
    |physio(?:therap\w+)?|dentists?|chiropract\w+|blood\ (?:pressure|sugar|tests?)
    |krank(?:heit|geschrieben|enhaus)?|malad(?:e|ie)|enferm(?:o|a|edad)|ziek(?:te|enhuis)?
    |allerg(?:y|ies|ic)|cœliac|coeliac|celiac|gluten\ intolerance)"""
# words of health only near a person: "brew doctor", "sick of", "code surgery"
_VAGUE_ILLNESS = r"""(?:doctors?|a\ stroke|physician|therapist|psychiatrist|psychologist|therapy|counsel(?:l)?ing
    |surgery|operated|hospital\w*|clinic|sick(?:\ leave|\ note)?|ill|illness|disease|diagnos(?:ed|is)|symptoms?
    |medications?|meds|medicine|pills|prescription|dose|pain|injur(?:y|ed)|broke\ (?:my|his|her)\ \w+
    |blood\ (?:test|pressure|sugar)|eyesight|vision\ loss|hearing\ (?:aid|loss)
    |(?<!color[\ -])(?<!colour[\ -])blind|mental\ health
    |health\ (?:issues?|problems?|condition|insurance)|died|passed\ away|death|funeral|divorc\w*|custody|wedding|arzt
    |ärztin|therapie|medikamente?|médecin|hôpital|médicaments?|médico|hospital|huisarts|gestorben|gravid\w*)"""
_COMPLAINT = r"""(?:(?:my|his|her)\s(?:\w+\s)?(?:back|neck|wrists?|head|knees?|shoulders?|stomach|tooth|teeth
    |hands?|feet|foot|arms?    |legs?|throat|eyes?)\b[^.!?\n]{0,16}?\b(?:hurts?|aches?|aching|sore|killing|shot
    |stiff|swollen|numb|in\spain)
    |headaches?(?!-)|toothache|backache|stomach\s?ache|sore\sthroat|the\sflu|hung\s?over|insomnia
    |food\spoisoning|concussion
    |(?:have|has|had|got|caught|with)\sa\s(?:bad\s|nasty\s)?(?:cold(?!\s(?:start|cache|boot|path|stor))|fever)
    |(?:kopf|rücken|zahn|bauch|hals)schmerzen|erkältet|fieber|grippe|mal\s(?:à\sla\stête|de\stête|au\sdos
    |de\sdos|au\sventre)
    |fièvre|dolor\sde\s(?:cabeza|espalda|muelas)|me\sduele|fiebre|hoofdpijn|rugpijn|koorts|griep|verkouden
    |doente|gripad[oa]|febre|dor\s(?:de|nas)\s(?:cabeça|costas|dente|barriga)|grávida|malat[oa]|febbre|incinta
    |mal\sdi\s(?:testa|schiena|denti|gola)|(?:är|er|blev|var)\s(?:sjuk|syk|syg|förkyld|gravid)\w*|sjukskriven
    |sykmeldt|sygemeldt
    |ont\si\s(?:ryggen|huvudet|magen|halsen)|sairaana|sairasloma\w*|lääkäri\w*|kuume(?:tta)?|flunssa\w*
    |raskaana|masentu\w+
    |(?:selkä|pää|vatsa|polvi|niska|ranne|hammas)\w*\b[^.!?\n]{0,16}?\b(?:kipeä\w*|paskana|särkee|rikki|jumissa)
    |chor[ya]|choruję|lekarz\w*|boli\smnie|gorączk\w+|w\sciąży|w\sszpitalu|mam\sraka|nemocn[ýá]|bolí\smě
    |horečk\w+|těhotn\w+
    |болит|болею|заболел\w*|болен|больна|в\sбольнице|беременн\w+|у\sврача|захворі\w+|hastayım|hamile
    |başım\sağrıyor)"""
_OTHER_RELATIVE = r"""(?:(?:min|mitt|mina|mine|vår)\s(?:fru|make|mamma|pappa|mor|far|son|sønn|dotter|datter|bror
    |syster|søster|barn|kone)    |(?:vaimo|mieh(?=eni)|äiti|isä|tyttäre|poika|velje|sisko|lapse)(?:ni|mme|eni)
    |mun\s(?:vaimo|äiti|isä|mies
    |poika|tytär)
    |(?:moja|mój|moje|mojej|mojego|moją)\s(?:żon\w+|mąż|męż\w+|matk\w+|mam[aey]|ojciec|ojca|tat[aey]|syn\w{0,2}
    |córk\w+|brat\w{0,2}
    |siostr\w+|dzieck\w+|dzieci|babci\w+)|(?:minha|meus?|minhas)\s(?:mãe|pais?|esposa|mulher|marido|filh[oa]s?
    |irmãos?|irmãs?
    |avó|avô|namorad[oa]|sogr[oa])|(?:mio|mia|miei|mie)\s(?:mamma|papà|moglie|figli[oae]?|fratello|sorella|nonn[oa])
    |мо(?:я|й|и|ю|ей|его|их)\s(?:жен\w+|муж\w{0,2}|мам\w+|пап\w+|мать|отец|сын\w{0,2}|доч\w+|брат\w{0,2}
    |сестр\w+|дет\w+)
    |eşim|annem|babam|oğlum|kızım|kardeşim|karım|kocam|(?:moje|můj|mého|moji)\s(?:žen\w+|manžel\w*|mám\w+
    |tát\w+|dcer\w+|bratr\w*))"""
_MONTH = r"""(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|januar|februar|märz|mai|juni|juli|okt|dez)[a-z]*"""
_STREET = r"""(?:street|st|avenue|ave|road|rd|lane|ln|drive|dr|boulevard|blvd|court|ct|terrace|crescent|parkway|square
    |close|gardens)"""

# kind, pattern
_DETAIL_TABLE: tuple[tuple[str, str], ...] = (
    ("family", rf"(?i)\b{_POSSESSIVE}\s+(?:[\w-]{{1,24}}\s+){{0,2}}?{_RELATIVE}\b(?!\s+{_TRADE_NOUN}\b)"),
    ("family", rf"""(?i)\b(?:my|mein[er]?\w?|mon|ma|mes|mi
        |mijn)\s+{_VAGUE_RELATIVE}\b(?!['’]?s?[\s-]+{_TRADE_NOUN}\b)"""),
    ("family", r"""\b(?:Mom|Mum|Dad|Grandma|Grandpa|Mama|Papa|Oma|Opa|the\skids|die\sKinder|los\sniños|les\senfants
        |de\skinderen)\b"""),
    ("family", r"""(?i)\b(?:I|we|ich|wir)\W{1,2}(?:\w+\s+)?(?:am|are|got|m|'m|’m|re|bin|sind)?\s*(?:married|divorced
        |engaged\sto|widowed|verheiratet|geschieden)\b"""),
    ("health", rf"(?i)\b{_ILLNESS}\b"),
    ("health", rf"(?i)\b{_PERSON}\b[^.!?\n]{{0,60}}?\b{_VAGUE_ILLNESS}\b(?!\s(?:of\s|command))"),
    ("health", rf"(?i)\b{_COMPLAINT}\b"),
    ("family", rf"(?i)\b{_OTHER_RELATIVE}\b"),
    ("money", r"""(?i)\b(?:my|his|her|their)\s(?:\w+\s)?(?:salary|pay\s?che(?:ck|que)|wages?|rent|mortgage|debts?
        |credit\sscore)\b|\b(?:I|he|she)\s(?:only\s)?(?:makes?|earns?|made
    |earned)\s(?:\w+\s)?[$€£]?\d[\d.,]*\s?k?
        \s(?:a|per)\s(?:year|month|hour)"""),
    ("identity", r"""(?i)\b(?:I['’]?\s?a?m|(?:s?he)['’]?\s?i?s)\s(?:gay|lesbian|bisexual|trans(?:gender)?|queer
        |non-?binary|muslim|christian|jewish|hindu|buddhist|catholic)\b"""),
    ("identity", r"(?i)\b(?:goes?|went)\sto\s(?:my|our|his|her|the\ssame)\sschool\b|\bmy\s(?:class|school)\s?mates?\b"),
    ("contact", r"""(?<![\w.+%-])(?!(?:git|hg|svn|no-?reply|donotreply|root|postgres|www-data|ubuntu
        |ec2-user)@)[A-Za-z0-9][\w.+%-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,4}[A-Za-z]{2,24}\b(?!:[\w~/])"""),
    ("contact", r"(?<![\w.+-])\+\d{1,3}[\s./-]?(?:\(0?\d{1,4}\)|\d{1,4})(?:[\s./-]?\d{2,4}){2,5}(?![\w.]*\d)"),
    ("contact", r"(?<![\w.-])(?:\(\d{3}\)\s?|\d{3}[-.\s])\d{3}[-.\s]\d{4}(?![\w.-]*\d)"),
    ("contact", r"""(?i)\b(?:phone|telephone|tel|mobile|cell|handy|whatsapp|signal|fax|telefon\w*|téléphone|teléfono
        |portable|móvil|mobiel|call\sme|reach\s(?:me|him|her)|text\sme
        |ring\sme|(?:my|his|her)\snumber)\b[^\n\d]{0,30}?(?:\(?\+?\d[\d\s()./-]{5,18}\d)(?!\w)"""),
    ("contact", rf"\b\d{{1,5}}[a-z]?,?\s(?:[NSEW]\.?\s)?(?:[A-Z][\w'’-]+\s){{1,3}}(?i:{_STREET})\b\.?"),
    ("contact", r"""\b[A-ZÄÖÜ][\wäöüß-]{2,30}(?:straße|strasse|str\.|weg|gasse|platz|allee|ring|straat|laan|plein
        |gracht|kade)\s\d{1,4}\s?[a-z]?\b"""),
    ("contact", r"""(?i)\b\d{1,4}\s?(?:bis|ter)?,?\s(?:rue|avenue|boulevard|place|chemin|allée|quai)\s(?:d[eu]s?\s
        |de\sla\s|de\sl['’])?\w+"""),
    ("contact", r"""(?i)\b(?:calle|avenida|plaza|paseo|via|viale|piazza
        |rua)\s(?:de\s(?:la\s)?)?\w+(?:\s\w+)?,?\s\d{1,4}\b"""),
    ("contact", r"""(?i)\b(?:I|we|she|he|ich|wir)\s(?:live|lives|lived|moved|wohnen?|wohnt)\s(?:at|in|on|near|to
        |bei|nach)\b"""),
    ("contact", r"""(?i)\b(?:my|our|his|her|home|postal|mailing|meine|mon|mi|mijn)\s(?:home\s|postal\s
        |private\s)?(?:address|adresse|dirección|adres|phone\snumber|(?:phone|mobile
    |cell)(?=\s\w+\b[^.!?\n]{0,20}\d)|telefonnummer
        |email(?:\saddress)?|e-mail)\s(?:is|ist|est|es)\b"""),
    ("identity", r"""(?i)\b(?:my|his|her|our|\w+['’]s|mein\w*|mon|mi|mijn)\s(?:\d+\w*\s)?(?:birthday|birth\s?date
        |date\sof\sbirth|geburtstag|geburtsdatum|anniversaire|cumpleaños|verjaardag)\b"""),
    ("identity", rf"""(?i)\b(?:born|birthday|dob|date\sof\sbirth|geboren|née?|naci[óo]
        |geb\.)\b[^.!?\n]{{0,20}}?\b(?:\d{{1,2}}[./-]\d{{1,2}}[./-]\d{{2,4}}|\d{{4}}-\d\d-\d\d|(?:19|20)\d\d
        |\d{{1,2}}(?:st|nd|rd|th|\.)?\s{_MONTH}|{_MONTH}\s\d{{1,2}})\b"""),
    ("identity", rf"""(?i)\b{_PERSON}\b[^.!?\n]{{0,30}}?\b\d{{1,3}}[\s-](?:years?[\s-]old|yo\b|jahre\salt|ans\b|años
        |jaar\soud)"""),
    ("identity", r"""(?i)\b(?:I['’]?m|he['’]?s|she['’]?s|I\sam|he\sis|she\sis|who\sis|turn(?:s|ed|ing)?
        |ich\sbin)\s(?:\d{2}|1[01]\d)(?=\s*(?:[,.!?;)]|$|and\b|now\b|und\b))"""),
    ("identity", r"""(?i)\b(?:ssn|social\ssecurity(?:\snumber)?|passport(?:\s(?:no|number))?|tax\sid|national\sid
        |driver['’]?s\slicen[cs]e|steuer-?id|personalausweis\w*|dni
        |bsn)\b[^\n\d]{0,20}?[A-Z]{0,2}\d[\d\s-]{5,14}\b"""),
    ("identity", r"\b[A-Z]{2}\d{2}(?:\s?[A-Z0-9]{4}){3,7}(?:\s?[A-Z0-9]{1,3})?\b(?=\W|$)"),
    ("identity", r"""(?<![\w.-])(?:\d{4}[ -]){3}\d{4}(?![\w.-]*\d)
        |(?<![\w.-])3[47]\d{2}[ -]\d{6}[ -]\d{5}(?![\w.-]*\d)"""),
)  # fmt: skip
# A text about software for medicine or families is not private, unless it names a person.
_TRADE_TEXT_PATTERN = (
    r"(?i)\b(?:datasets?|classifiers?|models?|predict\w*|detection|columns?|tables?|schemas?|enums?|fields?|endpoints?|api|apps?|"
    r"research|paper|study|studies|feature|page|patients?|users?|accessib\w+|wcag|aria|a11y|simulat\w+|palette|contrast|test|tests|"
    r"mode|keystrokes?|svg|stroke-?width|register\w*|canvas|path|package|import|class|function|dashboards?|data|statistics|charts?|project|repo|stats?|docs?)\b"
)
_SENTENCE_END_PATTERN = r"(?<![.!?;。！？])[.!?;。！？]+[\"'”’)\]]*(?=\s|$)\s*|\n\s*"
_ABBREVIATION_PATTERN = r"(?i)(?:^|[\s(])(?:e\.g|i\.e|dr|mr|mrs|ms|st|vs|no|etc|z\.b|d\.h|ca|prof|approx|str)\.$"
_SUBJECT = r"""(?:I|we|you|he|she|it|they|this|that|the|there|a|an|my|our|his|her|their|your|please|use|set|make|keep
    |put|ich|wir|er|sie|es|der|die|das|mein\w*|bitte|je|nous|il|elle|le|la|les|mon|ma|yo|él|ella|el|los|mi|ik|wij|hij
    |zij|de|het)"""
_CLAUSE_START_PATTERN = rf"""(?xi)
    (?<!\s) \s+ (?: (?<=[,:—–]\s) | (?=[—–-]{{1,2}}\s|\() | (?<=\)\s)
  | (?= (?:because|since|although|though|whereas|while|but|so\ (?!far\b|much|many|long|on\b|forth|called)|as\ (?:my
    |our|I|he|she|they)\b
             |weil|denn|obwohl|damit|aber|sondern|parce\ qu|car\ |puisqu|mais|porque|ya\ que|pero|omdat|want\ |maar) )
  | (?= (?:and|or|und|et|y|en)\s+ {_SUBJECT} \b )
  | (?<! \b is\s) (?<! \b are\s) (?<! \b was\s) (?<! \b ist\s) (?<! \b est\s)
    (?= (?:for|due\ to|because\ of|thanks\ to|on\ behalf\ of|wegen|für|pour|para|voor|à\ cause\ de
    |vanwege) \s+ {_POSSESSIVE} \s ) )
"""
# A clause that goes on with what a private clause says: "who is 82", "has lived there since", "and she forgets it".
_CONTINUATION_PATTERN = r"""(?xi)
    [\s,(—–-]* (?: (?:and|or|but|und|et|y|en) \s+ )?
    (?: who\b | whose\b | whom\b | which\b | where\b | has\b | have\b | had\b | is\b | was\b | lives?\b | needs?\b
    | takes?\b | forgets?\b
      | he\b | she\b | his\b | her\b | him\b | he['’]s | she['’]s | ext\b | extension\b | with\b | at\b | born\b
    | aged?\b | hat\b | ist\b
      | der\b | er\b | qui\b | elle\b | il\b | que\b | ella\b | die\b(?=\s\w+\s*[,.]) | apartment\b | apt\b | flat\b
    | \d{4,5}\b )
"""
_PERSON_CONTINUATION_PATTERN = r"(?i)\s*(?:and\s+)?(?:he|she|his|her|him|he['’]s|she['’]s|they|their|er|seine?|ihre?)\b"
_CONNECTOR_PATTERN = r"""(?xi)
    [\s,:;—–-]* (?: (?:and|but|so|so\ that|therefore|thus|hence|because|since|which\ is\ why|that['’]?s\ why|also
    |then|though|although
    |und|aber|deshalb|daher|also|darum|et|mais|donc|alors|y|pero|entonces|así\ que|en|maar|dus|daarom) [\s,]+ )*
"""


class PrivateDetail(NamedTuple):
    """The position of a private detail: `text[start:end]`; the kind is secret, health, family, contact or identity."""

    kind: str
    start: int
    end: int


@cache
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    # the patterns of the table are verbose without a space of their own
    return re.compile(pattern if pattern.startswith("(?x") else pattern.replace("\n", ""))


@cache
def _load_details() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((kind, re.compile(pattern, re.VERBOSE)) for kind, pattern in _DETAIL_TABLE)


def find_private_details(text: str) -> list[PrivateDetail]:
    """Return the secrets and the details of health, family, contact and identity in a text, in order."""
    details = [PrivateDetail("secret", start, end) for _, start, end in redaction.find_secrets(text)]
    for kind, pattern in _load_details():
        details += [
            PrivateDetail(kind, *match.span())
            for match in pattern.finditer(text)
            if kind != "health" or _is_about_person(text, *match.span())
        ]
    return sorted(details, key=lambda detail: detail.start)


def _is_about_person(text: str, start: int, end: int) -> bool:
    """Return whether a word of health is said of somebody, and not of data or a program."""
    before, after = text[max(0, start - 80) : start], text[end : end + 80]
    sentence = (
        before[max(before.rfind(". "), before.rfind("\n")) + 1 :] + text[start:end] + re.split(r"\.\s|\n", after)[0]
    )
    personal = re.compile(rf"(?i)\b(?:{_PERSON}|{_POSSESSIVE}\s+{_RELATIVE})\b", re.VERBOSE).search(sentence)
    return personal is not None or _compile_pattern(_TRADE_TEXT_PATTERN).search(sentence) is None


def remove_private_clauses(text: str) -> str:
    """Return the text without the clauses that hold a secret or a private detail; the rest stays as it is."""
    details = find_private_details(text)
    if not details:
        return text
    # details in order and apart from each other, so that a clause is compared with few of them
    spans = _join_spans(details)
    of_people = _join_spans(detail for detail in details if detail.kind in ("family", "health"))
    sentences: list[str] = []
    was_person = False
    for start, end in _split_sentences(text):
        goes_on = was_person and _compile_pattern(_PERSON_CONTINUATION_PATTERN).match(text, start, end) is not None
        was_person = goes_on or _overlaps(of_people, start, end)
        if goes_on or _overlaps(spans, start, end):
            part = _keep_clauses(text, start, end, spans, goes_on)
            if not part and "\n" in text[start:end] and sentences and not sentences[-1].endswith("\n"):
                part = "\n"
        else:
            part = text[start:end]
        sentences.append(part)
    return "".join(sentences).strip()


def _join_spans(details: Iterable[PrivateDetail]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for _, start, end in details:
        if spans and start <= spans[-1][1]:
            start, end = spans[-1][0], max(end, spans.pop()[1])
        spans.append((start, end))
    return spans


def _overlaps(spans: list[tuple[int, int]], start: int, end: int) -> bool:
    """Return whether one of the spans, which are in order, shares a character with `start` to `end`."""
    after = bisect_left(spans, (end, 0))
    return after > 0 and spans[after - 1][1] > start


def _split_sentences(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for match in _compile_pattern(_SENTENCE_END_PATTERN).finditer(text):
        before = text[max(start, match.start() - 8) : match.start() + 1]
        if not before.endswith(".") or not _compile_pattern(_ABBREVIATION_PATTERN).search(before):
            yield start, match.end()
            start = match.end()
    if start < len(text):
        yield start, len(text)


def _keep_clauses(text: str, start: int, end: int, spans: list[tuple[int, int]], goes_on: bool) -> str:
    """Return a sentence without its private clauses, with its end mark; empty if none is left."""
    stop = start + len(text[start:end].rstrip())
    mark = _compile_pattern(r"[.!?;。！？]{0,3}[\"'”’)\]]{0,3}$").search(text, max(start, stop - 6), stop)
    stop = mark.start() if mark else stop
    starts = [
        match.start()
        for match in _compile_pattern(_CLAUSE_START_PATTERN).finditer(text, start, stop)
        if not _overlaps(spans, match.start(), match.start() + 1)
    ]
    clauses: list[str] = []
    is_private, is_first_out = goes_on, goes_on
    for clause_start, clause_end in pairwise([start, *starts, stop]):
        clause = text[clause_start:clause_end]
        is_private = _overlaps(spans, clause_start, clause_end) or (is_private and _is_continuation(clause))
        is_first_out = is_first_out or (is_private and not clauses)
        if not is_private:
            clauses.append(clause)
        is_private = is_private and not clause.endswith(")")
    if not (kept := "".join(clauses).rstrip(" \t,:—–-(")).strip():
        return ""
    if is_first_out:
        kept = kept[_compile_pattern(_CONNECTOR_PATTERN).match(kept).end() :]  # type: ignore[union-attr]
        kept = kept[:1].upper() + kept[1:] if text[start : start + 1].isupper() else kept
    return kept + text[stop:end] if kept else ""


def _is_continuation(clause: str) -> bool:
    """Return whether a clause only goes on with what the private one before it says."""
    return len(clause.split(None, 3)) <= 2 or _compile_pattern(_CONTINUATION_PATTERN).match(clause) is not None
