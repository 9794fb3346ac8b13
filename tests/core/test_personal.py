"""Personal data in texts: what is found, what is not, and how well on labelled texts."""

import time

import pytest
from evaluate_personal import FOLDER, measure_labels, read_labels

from athena.core.redaction.personal import PersonalRules, find_personal

CHECKSUM_KINDS = ("CARD", "IBAN", "NATIONAL_ID")


def find(text: str, rules: PersonalRules | None = None) -> list[tuple[str, str]]:
    return [(match.kind, text[match.start : match.end]) for match in find_personal(text, rules or PersonalRules())]


@pytest.mark.parametrize("name", ["own", "faker", "judge", "other", "third"])
def test_labelled_texts(name: str) -> None:
    labels = list(read_labels(FOLDER / f"{name}.jsonl"))
    assert len(labels) >= 500
    for kind, score in measure_labels(labels).items():
        floor = 0.97 if kind in CHECKSUM_KINDS else 0.95
        assert score.recall >= floor, (kind, score.misses)
        assert score.precision >= floor, (kind, score.misses)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("to ada.lovelace@example.com, please", [("EMAIL", "ada.lovelace@example.com")]),
        ("mailto:o'brien@example.ie", [("EMAIL", "o'brien@example.ie")]),
        ("用户 张伟@例子.公司 来信", [("EMAIL", "张伟@例子.公司")]),
        ("x=ada%40example.com&y=1", [("EMAIL", "ada%40example.com")]),
        (r"{\"to\": \"ada\u0040example.com\"}", [("EMAIL", r"ada\u0040example.com")]),
        ("blob YWRhLmxvdmVsYWNlQGV4YW1wbGUuY29t end", [("EMAIL", "YWRhLmxvdmVsYWNlQGV4YW1wbGUuY29t")]),
        ("https://user:pw@example.com/ git@github.com:a/b.git", []),
        (
            "call (415) 555-2671 x12 or +44 20 7946 0958.",
            [("PHONE", "(415) 555-2671 x12"), ("PHONE", "+44 20 7946 0958")],
        ),
        ("card 4111 1111 1111 1111", [("CARD", "4111 1111 1111 1111")]),
        ("card 4111 1111 1111 1112", []),
        ("ES91 2100 0418 4502 0005 1332 is mine", [("IBAN", "ES91 2100 0418 4502 0005 1332")]),
        ("ES92 2100 0418 4502 0005 1332 is not", []),
        ("version 10.2.3.4 on 10.2.3.4", [("IP", "10.2.3.4")]),
        ("from 2001:db8::8a2e:370:7334.", [("IP", "2001:db8::8a2e:370:7334")]),
        ("localhost 127.0.0.1, ::1, std::vector, aa:bb:cc:dd:ee:ff", []),
        ("SSN 536-90-4399, not 000-12-3456", [("NATIONAL_ID", "536-90-4399")]),
        ("born 1980-03-04, released 2020-03-04", [("BIRTH_DATE", "1980-03-04")]),
        ("Născut la 2 septembrie 1949", [("BIRTH_DATE", "2 septembrie 1949")]),
        ("Születési idő: 1982. 03. 15.", [("BIRTH_DATE", "1982. 03. 15.")]),
        ("PAN: VQYPU7314U", [("NATIONAL_ID", "VQYPU7314U")]),
        ("mobile 139-3752-5817; 0 532 387 61 33", [("PHONE", "139-3752-5817"), ("PHONE", "0 532 387 61 33")]),
        (
            "INSERT INTO patients (id, nhs_number) VALUES\n (90211, '304 242 5010'),\n (90212, NULL);",
            [("NATIONAL_ID", "304 242 5010")],
        ),
        ("b'ada@example.com' f'eve@example.com'", [("EMAIL", "ada@example.com"), ("EMAIL", "eve@example.com")]),
        ("ada@example.com.txt and logo@2x.png", [("EMAIL", "ada@example.com")]),
        ("请联系ada@example.com谢谢", [("EMAIL", "ada@example.com")]),
        ("ADA＠EXAMPLE.COM", [("EMAIL", "ADA＠EXAMPLE.COM")]),
        ("٤١١١١١١١١١١١١١١١", [("CARD", "٤١١١١١١١١١١١١١١١")]),
        ("4111\u00a01111\u00a01111\u00a01111", [("CARD", "4111\u00a01111\u00a01111\u00a01111")]),
        ("4111 1111 1111 1111 12/27 123", [("CARD", "4111 1111 1111 1111")]),
        (
            "4111111111111111 5555555555554444.0",
            [("CARD", "4111111111111111"), ("CARD", "5555555555554444")],
        ),
        ("[-4111111111111111]", [("CARD", "4111111111111111")]),
        ("4000 4001 4002 4003 4004 4005", []),
        ("+1\u00a0415\u2009555\u20112671", [("PHONE", "+1\u00a0415\u2009555\u20112671")]),
        ("Phone:\n  4155552671", [("PHONE", "4155552671")]),
        (
            "name,mobile,dob\nAda,4155552671,1985-12-10\nBob,4155552672,1985-12-11",
            [
                ("PHONE", "4155552671"),
                ("BIRTH_DATE", "1985-12-10"),
                ("PHONE", "4155552672"),
                ("BIRTH_DATE", "1985-12-11"),
            ],
        ),
        ("| name | phone |\n|---|---|\n| Ada | 4155552671 |", [("PHONE", "4155552671")]),
        ("order,amount\n4155552671,12", []),
        ("tokens [EMAIL_1] and [PHONE_4155552671] stay", []),
    ],
)
def test_value_is_found_exactly(text: str, expected: list[tuple[str, str]]) -> None:
    assert find(text) == expected


def test_names_patterns_and_known_values() -> None:
    rules = PersonalRules(frozenset({"Ada Lovelace"}), {"CUSTOMER": r"C-\d{6}"}, {"19800304": "BIRTH_DATE"})
    text = "ADA  lovelace (C-123456) on 1980-03-04 and 1980-03-05; Adalbert Lovelace"
    assert find(text, rules) == [("NAME", "ADA  lovelace"), ("CUSTOMER", "C-123456"), ("BIRTH_DATE", "1980-03-04")]
    assert find(text) == []


def test_known_number_is_found_in_each_spelling() -> None:
    rules = PersonalRules(known={"4155552671": "PHONE", "301234567": "PHONE"})
    text = "17 4155552671, 415/555-2671; 030 1234567 and 12 030 123 45 67 but not 41555526711 or 15552671"
    assert find(text, rules) == [
        ("PHONE", "4155552671"),
        ("PHONE", "415/555-2671"),
        ("PHONE", "030 1234567"),
        ("PHONE", "030 123 45 67"),
    ]


@pytest.mark.parametrize(
    "unit",
    [
        "1 ",
        "a@b.cc:",
        "born ",
        "@",
        "+1 ",
        "::1:",
        "AB12 ",
        "1.",
        "(",
        "a" * 63 + "@",
        "phone 1",
        "1:" * 7 + ":",
        "phone,",
        "phone,x\n",
        "12 ",
    ],
)
def test_work_is_linear(unit: str) -> None:
    """Four times the text may take about four times as long, not sixteen times; both measured as CPU time."""

    def measure(chars: int) -> float:
        text = unit * (chars // len(unit))
        began = time.process_time()
        find_personal(text, PersonalRules(known={"4155552671": "PHONE"}))
        return time.process_time() - began

    measure(1_000)
    short = max(measure(20_000), 0.01)
    assert measure(80_000) < 11 * short
