"""Find numbers that belong to a person: cards, accounts, phones, national ids, addresses of machines, birth dates."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from athena.core.redaction.national_ids import find_national_ids
from athena.core.redaction.personal_values import BIRTH_DATE, CARD, IBAN, IP, PHONE, Finder, PersonalMatch, Zones
from athena.core.redaction.values import compile_pattern
from athena.core.redaction.zones import CUE_CHARS, OTHER_NUMBER_CUE, find_in_zones, has_cue, load_validator

if TYPE_CHECKING:
    from phonenumbers import PhoneNumber

MIN_BIRTH_YEAR, MAX_BIRTH_YEAR = 1890, 2035


# --- cards and accounts -----------------------------------------------------------------------------------------------

_CARD_PATTERN = (
    r"(?<![\w.+])(?<![\w.+]-)(?:(?P<whole>[2-6]\d{12,18})(?![\w-]|\.(?!0+\b)\d)"
    r"|[2-6]\d{3}(?P<gap>[ ./\t-]|  )(?:\d{4}(?P=gap)\d{4}(?P=gap)\d{4}(?:(?P=gap)\d{3})?|\d{6}(?P=gap)\d{4,5})"
    r"(?![\w-]|\.\d))"
)
_NEXT_GROUP_PATTERN = r"[ ./\t-]\d{4}(?!\d)"  # of a row of numbers, unless that is a card as well
_CARD_BRANDS = (
    r"4(?:\d{12}|\d{15}|\d{18})|(?:5[1-5]|2[2-7])\d{14}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}"
    r"|(?:6011|64[4-9]\d|65\d\d|62\d\d|35(?:2[89]|[3-8]\d))\d{12,15}"
    r"|(?:50(?:18|20|38)|5[68]\d\d|6304|67\d\d)\d{9,15}|220[0-4]\d{12,15}|(?:508[5-9]|60\d\d)\d{12}"
)
_CARD_CUE = r"card|visa|master|amex|karte|carte|carta|tarjeta|cartão|карт"
_IBAN_LENGTHS_TEXT = """AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DK18 DO28 EE20
EG29 ES24 FI18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21
LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MR27 MT31 MU30 NL18 NO15 PK24 PL28 PS29 PT25 QA29 RO24 RS22 SA24 SC31 SD18 SE24
SI19 SK24 SM27 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20"""
_IBAN_LENGTHS = {entry[:2]: int(entry[2:]) for entry in _IBAN_LENGTHS_TEXT.split()}


def find_cards(text: str, lower: str, zones: Zones) -> Iterator[PersonalMatch]:
    pattern = compile_pattern(_CARD_PATTERN)
    done = 0
    for match in find_in_zones(pattern, text, zones):
        start, end = match.span()
        digits = compile_pattern(r"\D").sub("", match[0])
        if not compile_pattern(_CARD_BRANDS).fullmatch(digits) or not _passes_luhn(digits):
            continue
        if match["gap"] and start != done + 1:
            before, after = text[max(0, start - 2) : start], compile_pattern(_NEXT_GROUP_PATTERN).match(text, end)
            if compile_pattern(r"\d[ ./-]").fullmatch(before):
                continue
            if after and not pattern.match(text, end + 1) and not has_cue(lower, start, _CARD_CUE):
                continue
        done = end
        yield PersonalMatch(CARD, start, end)


def _passes_luhn(digits: str) -> bool:
    if len(set(digits)) == 1:
        return False
    total = sum(map(int, digits[-1::-2]))
    return (total + sum(sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])) % 10 == 0


def find_ibans(text: str, lower: str, zones: Zones) -> Iterator[PersonalMatch]:
    for match in compile_pattern(r"(?<![A-Za-z0-9])([A-Za-z]{2})\d{2}(?=[ .-]?[A-Za-z0-9]{4})").finditer(text):
        length = _IBAN_LENGTHS.get(match[1].upper())
        if length is None:
            continue
        body = compile_pattern(rf"(?:[ .-]?[A-Za-z0-9]){{{length - 4}}}(?![A-Za-z0-9])").match(text, match.end())
        if body and load_validator("iban")(text[match.start() : body.end()].replace(".", "").upper()):
            yield PersonalMatch(IBAN, match.start(), body.end())


# --- addresses of machines --------------------------------------------------------------------------------------------

_VERSION_CUE = (
    r"(?:\b(?:v|ver|version|versions|versión|release|releases|rev|revision|build|firmware|tag|patch|upgrade[ds]?"
    r"|downgrade[ds]?|requires?|oid|section|clause|chapter|figure|assembly(?:version|fileversion)?)"
    r"[\s:=\"'.(#]{0,4}(?:to |from |is |of |no )?|[=<>~!]=\s?|[~^]|\bv)\Z"
)
_OTHER_VERSION_CUE = (
    r"(?:hotfix|bump(?:ed)?|changelog|\brv|versão|versione|versie|wersj\w|verze|верси\w|sürüm|phiên bản|"
    r"版本|バージョン|ver\.|버전|^#{1,6})[\s:：=\"'.(#v]{0,4}\Z"
)
_ADDRESS_CUE = (
    r"(?:\bip(?:v[46]|s)?\b|_ip\b|addr|host|server|serveur|\bfrom\b|\bvon\b|client|peer|ping|\bdns\b|gateway|router|remote|connect|listen|bind|"
    r"ssh|login|://|@|\bat\b|resolver|proxy|x-forwarded|адрес|地址|アドレス|주소)"
)
MAX_VERSION_PART = 31  # addresses whose parts are all that small are mostly versions
_PRODUCT_VERSION_CUE = r"[a-z][\w.+]{1,30}[/-]\Z"  # Chrome/120.0.0.0, openssl-1.0.2.1
_IPV6_PATTERN = (
    r"(?<![\w:.])(?:(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|(?:[0-9A-Fa-f]{1,4}:){1,6}(?::[0-9A-Fa-f]{1,4}){1,6}"
    r"|(?:[0-9A-Fa-f]{1,4}:){2,7}:|::(?:[0-9A-Fa-f]{1,4}:){1,6}(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]{1,4}))"
    r"(?![\w:]|\.\w)|(?<![\w:.])(?:[0-9A-Fa-f]{1,4}:){1,6}(?::[0-9A-Fa-f]{1,4}){1,6}(?=:\d{5}(?!\w))"  # with a port
)


def find_ips(text: str, lower: str, zones: Zones) -> Iterator[PersonalMatch]:
    if "." in text:
        versions: set[str] = set()  # a text names several of one product
        for match in compile_pattern(r"\d{1,3}(?:\.\d{1,3}){3}").finditer(text):
            series = ".".join(match[0].split(".")[:2])
            if has_cue(lower, match.start(), _VERSION_CUE, 24):
                versions |= set() if series.startswith(("10.", "192.168")) else {series}
            elif series not in versions and _is_ipv4(text, lower, match.start(), match.end()):
                yield PersonalMatch(IP, *match.span())
    if "::" in text or compile_pattern(r"(?:[0-9A-Fa-f]{1,4}:){7}").search(text):
        for match in compile_pattern(_IPV6_PATTERN).finditer(text):
            value = match[0]
            if value.count(":") < 3 and not value.lower().startswith(("2", "3", "fe80", "fc", "fd")):
                continue  # a name of C++ or Rust such as `dead::beef`
            if any(map(str.isdigit, value)) and _is_personal_address(value):
                yield PersonalMatch(IP, *match.span())


def _is_ipv4(text: str, lower: str, start: int, end: int) -> bool:
    before, after = text[start - 1 : start], text[end : end + 2]
    if before.isalnum() or before in (".", "_") or re.match(r"[\w-]|\.\w", after):
        return False
    if before in ("/", "-") and text[start - 2 : start] != "//" and has_cue(lower, start, _PRODUCT_VERSION_CUE, 32):
        return False
    value = text[start:end]
    if has_cue(lower, start, _OTHER_VERSION_CUE, 24) or _looks_like_version(value, text, lower, start, end):
        return False
    if after[:1] == "/" and (prefix := re.match(r"/(\d{1,2})(?!\d)", text[end:])) and int(prefix[1]) < 32:
        return not _is_network(f"{value}/{prefix[1]}")
    return _is_personal_address(value)


def _looks_like_version(value: str, text: str, lower: str, start: int, end: int) -> bool:
    """Return whether nothing but its form tells that small numbers are an address."""
    parts = [int(part) for part in value.split(".")]
    if parts[0] == 10 or max(parts) > MAX_VERSION_PART or compile_pattern(r":\d").match(text, end):
        return False
    around = lower[max(0, start - 40) : end + 24]
    return compile_pattern(_ADDRESS_CUE, re.U).search(around) is None


def _is_network(value: str) -> bool:
    import ipaddress  # few texts have an address

    try:
        ipaddress.ip_network(value)
    except ValueError:
        return False
    return True


def _is_personal_address(value: str) -> bool:
    import ipaddress

    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return False
    return not (
        address.is_loopback
        or address.is_unspecified
        or address.is_multicast
        or (address.version == 4 and (value.startswith("255.") or value == "169.254.169.254" or value[:2] == "0."))
    )


# --- dates of birth ---------------------------------------------------------------------------------------------------

_BIRTH_CUE_PATTERN = (
    r"(?:\bborn\b|\bd\.?o\.?b\b|birth[\s_-]?(?:day|date)|date[\s_-]of[\s_-]birth|\bbirth\b|\bbday\b|geboren|geburts"
    r"|geb\.|\bnée?\b|naissance|nacid[oa]|nacimiento|\bnac\.|\bnaiss\.|\bnací\b|\bnació\b|nascit[ao]|\bnat[oa]\s+(?:a|ad|il|in|nel|presso)\b"
    r"|nascimento|nascid[oa]|\bnasci\b|\bnasceu\b|naixement|geboorte|urodz|\bur\.|född|födelse|født|fødsels|syntym|\bsynt\."
    r"|narozen|született|születés|născut|nașter|rođen|roden|rojen|doğum|γεννή|γέννησ|рожд|родил|народж|роден|ngày sinh"
    r"|sinh (?:ngày|năm)"
    r"|tanggal lahir|נולד|לידה|الميلاد|जन्म|วันเกิด|출생|생년월일|出生|生年月日|誕生日|生日)"
)
_BIRTH_STEMS_TEXT = (
    "born dob d.o.b bday birth gebor geb. geburts naissance naiss. naci nac. nasc nato nata naixement geboorte urodz "
    "ur. synt narozen roden rojen sinh lahir"
)
_OTHER_BIRTH_STEMS_TEXT = (
    "né nací född födelse født fødsels szület născut nașter rođen doğum γεννή γέννησ рожд родил народж роден "
    "נולד לידה الميلاد जन्म วันเกิด 출생 생년월일 出生 生年月日 誕生日 生日"
)
_BIRTH_STEMS = tuple(_BIRTH_STEMS_TEXT.split())
_OTHER_BIRTH_STEMS = tuple(_OTHER_BIRTH_STEMS_TEXT.split())  # with letters beyond ASCII
_MONTHS_TEXT = """jan january januar janvier enero gennaio janeiro januari ianuarie janvāris január tammikuuta ocak
stycznia ledna siječnja gener января січня feb february februar février fevrier febrero febbraio fevereiro februari
februarie február helmikuuta şubat lutego února veljače febrer февраля лютого mar
march märz maerz mars marzo março maart
martie március maaliskuuta mart marca března ožujka març марта березня apr april avril abril aprile aprilie április
huhtikuuta nisan kwietnia dubna travnja апреля квітня may mai mayo maggio maio mei május toukokuuta mayıs maja května
svibnja maig мая травня jun june juni juin junio giugno junho iunie június kesäkuuta haziran czerwca června lipnja juny
июня червня jul july juli juillet julio luglio julho iulie július heinäkuuta temmuz lipca července srpnja juliol июля
липня aug august août aout agosto augustus augusti augusztus elokuuta ağustos sierpnia srpna kolovoza agost августа
серпня sep sept september septembre septiembre settembre setembro septembrie szeptember syyskuuta eylül września září
rujna setembre сентября вересня oct october okt oktober octobre octubre ottobre outubro octombrie október lokakuuta ekim
października října listopada octubre октября жовтня nov november novembre noviembre novembro noiembrie marraskuuta kasım
listopadu studenoga ноября листопада dec december dez dezember décembre decembre diciembre dicembre dezembro decembrie
joulukuuta aralık grudnia prosince prosinca desembre desember декабря грудня"""
_MONTH = rf"(?:{'|'.join(sorted({*_MONTHS_TEXT.split()}, key=len, reverse=True))})"
_DATE_PATTERN = (
    rf"(?:(?:19|20|18)\d\d\.\s\d{{1,2}}\.\s\d{{1,2}}\.|(?:19|20|18)\d\d[-/.年]\s?\d{{1,2}}[-/.月]\s?\d{{1,2}}日?"
    rf"|\d{{1,2}}[-/.]\s?\d{{1,2}}[-/.]\s?(?:(?:18|19|20)\d\d|\d\d)"
    rf"|\d{{1,2}}(?:st|nd|rd|th|\.|º|er)?[\s-](?:de |of )?{_MONTH}\.?,?[\s-](?:de |of |del )?(?:18|19|20)\d\d"
    rf"|\d{{1,2}}{_MONTH}(?:18|19|20)\d\d"
    rf"|{_MONTH}\.?\s\d{{1,2}}(?:st|nd|rd|th)?,?\s(?:18|19|20)\d\d|(?:19|20)\d\d[01]\d[0-3]\d)(?![\w/]|-\d)"
)


def find_birth_dates(text: str, lower: str, zones: Zones) -> Iterator[PersonalMatch]:
    for cue_end in sorted(_find_birth_cues(lower)):
        window = cue_end + CUE_CHARS
        date = compile_pattern(rf"(?<![\w./-]){_DATE_PATTERN}", re.U).search(lower, cue_end, window + 24)
        if date is None or date.start() > window:
            continue
        if compile_pattern(r"\n\s*\n|[.;!?]\s").search(lower, cue_end + 1, date.start()):
            continue
        if _is_birth_date(date[0]):
            yield PersonalMatch(BIRTH_DATE, *date.span())


def _find_birth_cues(lower: str) -> set[int]:
    """Return where words for birth end; looking for their stems is much quicker than the pattern."""
    cue = compile_pattern(_BIRTH_CUE_PATTERN, re.U)
    ends: set[int] = set()
    for stem in _BIRTH_STEMS if lower.isascii() else _BIRTH_STEMS + _OTHER_BIRTH_STEMS:
        at = lower.find(stem)
        while at >= 0:
            match = cue.search(lower, max(0, at - 8), at + 24)
            if match and not compile_pattern(r"[\w ]{0,40}_\d{1,15}\]").match(lower, at):  # in a token
                ends.add(match.end())
            at = lower.find(stem, at + len(stem))
    return ends


def _is_birth_date(text: str) -> bool:
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    if len(numbers) == 1:
        day = text[-2:]
        return 1 <= int(text[4:6]) <= 12 and 1 <= int(day) <= 31
    if any(number > 31 and not MIN_BIRTH_YEAR <= number <= MAX_BIRTH_YEAR and number > 99 for number in numbers):
        return False
    small = numbers[1:] if numbers[0] > 31 else numbers[:-1]
    return all(1 <= number <= 31 for number in small) and (len(small) < 2 or min(small) <= 12)


# --- phone numbers ----------------------------------------------------------------------------------------------------

_PHONE_PATTERN = (
    r"(?<![\w.@/+#-])(?<!\d:)(?:\+|00(?=[1-9])|\((?=[+0-9]))?\+?\d"
    r"(?:[\d ()./-]|[ ]?\(0\)[ ]?){5,22}\d(?: ?x ?\d{1,6})?(?![\w@]|[.,:/-]\d)"
)
MIN_NATIONAL_DIGITS = 8  # of a number that only its groups tell
_EXTENSION_PATTERN = (
    r",? ?(?:ext(?:ension|n)?\.?|poste|durchwahl|dw\.?|int(?:erno|\.)|anexo|ramal|toestel|wew\.|доб\.?)"
    r"[ :]{0,2}\d{1,6}(?!\w)"
)
_PHONE_CUE = (
    r"(?:phone|\btel(?:s|e|no)?\b|\btel[.:]|telephone|telefon|téléphone|teléfono|telefono|telefone|mobil|\bcell\b|"
    r"cellular|móvil|celular|cellulare|portable|handy|whatsapp|signal\b|\bsms\b|\bfax\b|\bcall(?:ed|ing)?\b|\bring\b|"
    r"\bdial\b|\btext(?:ed)? (?:me|her|him|them)\b|hotline|numéro|rufnummer|contact number|reach(?:ed|able)? |电话|手机"
    r"|電話|"
    r"手機|携帯|連絡先|联系方式|聯絡|핸드폰|휴대폰|điện thoại|\bsđt\b|di động|telemóvel|\btlm\b|\btlf\b|\btfn\b|puhelin"
    r"|\bpuh\b|telepon|telpon|\bhp\b|\bgsm\b|\bcep\b|\bkom\b|komórk|\bcel\b|τηλ|κινητ|\bмоб|هاتف|جوال|טלפון|נייד|फ़ोन|फोन|मोबाइल|โทร|เบอร์|"
    r"телефон|тел\.|звони|llám|llam[ae]|appele[rz]|joindre|chiam|ligue|ligar|zadzwo|dzwoni|ruf(?:e|en)? |anruf|erreich|"
    r"\bbel(?:len)?\b|ring(?:a|e)?\b|전화|연락처|☎|📞|📱)[^\d\n]{0,30}"
    r"(?:\+?\d[\d ()./-]{4,20}(?:,| or | and |/| und | oder | ou | et | o | oppure | e | y | of | en | lub | или )"
    r"[^\d\n]{0,8})?\Z"
)
_PHONE_REGIONS_TEXT = (
    "GB DE FR ES IT NL BE CH AT AU IN BR MX JP CN KR SE NO DK FI PL PT IE CZ GR TR RU UA ZA SG HK IL NZ AR"
)
_PHONE_REGIONS = tuple(_PHONE_REGIONS_TEXT.split())
_NORTH_AMERICAN_PATTERN = r"(?:\+?1[ .-]?)?(?:\([2-9]\d\d\) ?|[2-9]\d\d[-. ])[2-9]\d\d[-. ]\d{4}"


def find_phones(text: str, lower: str, zones: Zones) -> Iterator[PersonalMatch]:
    for match in find_in_zones(compile_pattern(_PHONE_PATTERN), text, zones):
        start, end = match.span()
        value = match[0]
        if value.count("(") != value.count(")"):
            if value.startswith("(") and ")" not in value:
                start, value = start + 1, value[1:]
            elif value.count(")") > value.count("("):
                end = start + value.index(")")
                value = text[start:end]
        if extension := compile_pattern(_EXTENSION_PATTERN, re.U | re.I).match(text, end):
            end = extension.end()
        if _is_phone(value.partition("x")[0].rstrip(), lower, start):
            yield PersonalMatch(PHONE, start, end)


def _is_phone(value: str, lower: str, start: int) -> bool:
    digits = re.sub(r"\D", "", value)
    if not 7 <= len(digits) <= 15 or len(set(digits)) < 3 or compile_pattern(r"[ ()./–-]{4}").search(value):
        return False
    if value.startswith("+"):
        return _is_valid_phone(value, None, is_strict=False)
    if value.startswith("00"):
        return _is_valid_phone(f"+{digits[2:]}", None, is_strict=True)
    is_told = has_cue(lower, start, _PHONE_CUE, 72)
    if compile_pattern(r"(?:19|20)\d\d[-/.]\d{1,2}[-/.]\d{1,2}.*|\d{1,2}[./-]\d{1,2}[./-](?:19|20)\d\d.*").fullmatch(
        value
    ):
        return False
    if compile_pattern(_NORTH_AMERICAN_PATTERN).fullmatch(value):
        return is_told or not value[:1].isdigit() or compile_pattern(r"[.-]").search(value) is not None
    if is_told:
        return True
    is_chinese = compile_pattern(r"1[3-9]\d[ -]\d{4}[ -]\d{4}").fullmatch(value) is not None
    if not is_chinese and (value[0] not in "0(" or not compile_pattern(r"\D").search(value)):
        return False
    if compile_pattern(rf"\b[a-z]+\d+ \Z|{OTHER_NUMBER_CUE}").search(lower[max(0, start - 24) : start]):
        return False  # goes on from a code such as 1Z 999 AA1
    if len(digits) < MIN_NATIONAL_DIGITS:
        return False
    is_grouped = compile_pattern(r"\(0.*|0\d{1,5}[-/]\d{2,4}(?: \d{2,4}){1,3}").fullmatch(value) is not None
    return is_chinese or (is_grouped and _is_national_phone(digits)) or _has_national_format(value)


@lru_cache(maxsize=4_096)
def _is_national_phone(digits: str) -> bool:
    """Return whether digits are a phone number of some country."""
    return any(_is_valid_phone(digits, region, is_strict=True) for region in _PHONE_REGIONS)


@lru_cache(maxsize=4_096)
def _has_national_format(value: str) -> bool:
    """Return whether some country writes a number exactly like this."""
    return any(_is_own_format(value, region) for region in _PHONE_REGIONS)


def _is_valid_phone(value: str, region: str | None, *, is_strict: bool) -> bool:
    import phonenumbers  # 60 ms, and most texts have no candidate

    number = _parse_phone(value, region)
    if number is None:
        return False
    return bool(phonenumbers.is_valid_number(number) if is_strict else phonenumbers.is_possible_number(number))


def _parse_phone(value: str, region: str | None) -> "PhoneNumber | None":
    import phonenumbers

    try:
        return phonenumbers.parse(value, region)
    except phonenumbers.NumberParseException:
        return None


def _is_own_format(value: str, region: str) -> bool:
    """Return whether a country writes a number exactly like this: in these groups."""
    import phonenumbers

    number = _parse_phone(value, region)
    if number is None or not phonenumbers.is_valid_number(number):
        return False
    written = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.NATIONAL)
    return re.findall(r"\d+", written) == re.findall(r"\d+", re.sub(r"\A0 ", "0", value))


NUMBER_FINDERS: tuple[Finder, ...] = (
    find_cards,
    find_ibans,
    find_national_ids,
    find_ips,
    find_phones,
    find_birth_dates,
)
